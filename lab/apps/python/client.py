"""The client: calls as stdin asks for them, on one channel."""

import dataclasses
import json
import sys
import threading
from collections.abc import Callable
from typing import Any

import grpc

import events
from stream import ARGUMENTS, Ledger, Source, pour


@dataclasses.dataclass
class Keepalive:
    """How the channel pings; an interval of 0 is not at all."""

    interval_ms: int
    timeout_ms: int
    idle: bool


def run(target: str, keepalive: Keepalive, window: int, own_authority: bool) -> None:
    """Obeys stdin until it ends or says `quit`."""
    client = Client(grpc.insecure_channel(target, options(target, keepalive, window, own_authority)))
    events.emit("ready")
    for line in iter(sys.stdin.buffer.readline, b""):
        command = json.loads(line)
        op = command.get("op")
        if op == "call":
            Running(client, command).begin()
        elif op == "cancel":
            client.cancel(command.get("call", ""))
        elif op == "state":
            events.emit("state", state=client.state())
        elif op == "quit":
            break
        else:
            sys.exit(f"no such op: {op!r}")
    client.channel.close()


def options(target: str, keepalive: Keepalive, window: int, own_authority: bool) -> list[tuple[str, Any]]:
    # A proxy of the environment is no part of what is measured.
    chosen: list[tuple[str, Any]] = [("grpc.enable_http_proxy", 0)]
    if target.startswith("unix:") and not own_authority:
        # The default is the socket's path with %2F, which Rust servers refuse.
        chosen.append(("grpc.default_authority", "localhost"))
    if keepalive.interval_ms > 0:
        chosen += [
            ("grpc.keepalive_time_ms", keepalive.interval_ms),
            ("grpc.keepalive_timeout_ms", keepalive.timeout_ms),
            ("grpc.keepalive_permit_without_calls", int(keepalive.idle)),
        ]
    if window > 0:
        # Without the probe the window stays as it is.
        chosen += [("grpc.http2.lookahead_bytes", window), ("grpc.http2.bdp_probe", 0)]
    return chosen


class Client:
    """The channel and its open calls."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.channel = channel
        self._lock = threading.Lock()
        self._open: dict[str, Any] = {}

    def opened(self, name: str, call: Any) -> None:
        with self._lock:
            self._open[name] = call

    def cancel(self, name: str) -> None:
        with self._lock:
            call = self._open.pop(name, None)
        if call is not None:
            call.cancel()

    def ended(self, name: str, call: Any) -> None:
        with self._lock:
            if self._open.get(name) is call:
                del self._open[name]

    def state(self) -> str:
        """The channel's state: the library has no question for it, but tells it to whoever subscribes."""
        told = threading.Event()
        states: list[grpc.ChannelConnectivity] = []

        def tell(state: grpc.ChannelConnectivity) -> None:
            states.append(state)
            told.set()

        self.channel.subscribe(tell)
        told.wait()
        self.channel.unsubscribe(tell)
        return states[0].name


class Running:
    """One call from its start to its end."""

    def __init__(self, client: Client, command: dict[str, Any]) -> None:
        self.client = client
        self.command = command
        self.name = command.get("call", "")
        self.method = command.get("method", "")
        self.arguments = {key: command.get(key, absent) for key, absent in ARGUMENTS.items()}
        self.ledger = Ledger()
        self.ended = threading.Event()
        self.more: dict[str, object] = {}

    def begin(self) -> None:
        events.emit("start", call=self.name, method=self.method)
        methods: dict[str, Callable[[], tuple[Any, Callable[[], None]]]] = {
            "echo": self.echo,
            "never": self.never,
            "deadline": self.deadline,
            "fail": self.fail,
            "ticks": self.ticks,
            "check": self.check,
        }
        if self.method not in methods:
            self.end("UNIMPLEMENTED", f"no such method: {self.method}")
            return
        call, follow = methods[self.method]()
        self.client.opened(self.name, call)
        cancel_after_ms = self.command.get("cancel_after_ms", 0)
        if cancel_after_ms > 0:
            timer = threading.Timer(cancel_after_ms / 1e3, self.client.cancel, [self.name])
            timer.daemon = True
            timer.start()
        threading.Thread(target=self.wait, args=(call, follow), daemon=True).start()

    def wait(self, call: Any, follow: Callable[[], None]) -> None:
        try:
            follow()
        except (grpc.RpcError, grpc.FutureCancelledError):
            # `code` below says the same.
            pass
        code, details = call.code(), call.details()
        self.ended.set()
        self.client.ended(self.name, call)
        # Some servers send a text with OK too.
        self.end(code.name, "" if code is grpc.StatusCode.OK else details or "")

    def end(self, status: str, message: str) -> None:
        self.ledger.emit("end", call=self.name, status=status, message=message, **self.more)

    def how(self) -> dict[str, Any]:
        deadline_ms = self.command.get("deadline_ms", 0)
        return {
            "timeout": deadline_ms / 1e3 if deadline_ms > 0 else None,
            "metadata": (("lab-call", self.name), ("lab-args", json.dumps(self.arguments))),
        }

    def unary(self, method: str, request: bytes, answered: Callable[[bytes], None]) -> tuple[Any, Callable[[], None]]:
        call = self.client.channel.unary_unary(f"/lab.Lab/{method}").future(request, **self.how())
        return call, lambda: answered(call.result())

    def echo(self) -> tuple[Any, Callable[[], None]]:
        request = Source(self.arguments["seed"]).take(self.arguments["bytes"])
        self.ledger.sent.add(request)
        return self.unary("Echo", request, self.ledger.received.add)

    def never(self) -> tuple[Any, Callable[[], None]]:
        return self.unary("Never", b"", lambda _: None)

    def fail(self) -> tuple[Any, Callable[[], None]]:
        return self.unary("Fail", b"", lambda _: None)

    def deadline(self) -> tuple[Any, Callable[[], None]]:
        def answered(text: bytes) -> None:
            if text != b"none":
                self.more["left_ms"] = float(text)

        return self.unary("Deadline", b"", answered)

    def ticks(self) -> tuple[Any, Callable[[], None]]:
        call = self.client.channel.unary_stream("/lab.Lab/Ticks")(b"", **self.how())

        def follow() -> None:
            over = threading.Event()
            for n, _ in enumerate(call, 1):
                events.emit("message", call=self.name, n=n)
                if n == self.command.get("read_most", 0) and call.add_callback(over.set):
                    over.wait()

        return call, follow

    def check(self) -> tuple[Any, Callable[[], None]]:
        source = Source(self.arguments["seed"])
        send, rate = self.command.get("send", 0), self.command.get("send_rate", 0)
        requests = pour(source, self.ledger.sent, send, self.arguments["chunk"], rate, self.ended)
        self.ledger.watch(self.name, self.ended)
        call = self.client.channel.stream_stream("/lab.Lab/Check")(requests, **self.how())

        def follow() -> None:
            for data in call:
                self.ledger.received.add(data)

        return call, follow
