"""The server: a handler for each of the methods."""

import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc

import events
from stream import ARGUMENTS, Ledger, Source, pour

# Each open call holds a thread; they are made when they are needed.
HANDLERS = 1_000


def serve(listen: str, permit: bool, streams: int) -> None:
    """Serves until the process ends."""
    options = []
    if permit:
        options = [
            ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
            ("grpc.keepalive_permit_without_calls", 1),
        ]
    if streams > 0:
        options.append(("grpc.max_concurrent_streams", streams))
    server = grpc.server(futures.ThreadPoolExecutor(HANDLERS), options=options)
    methods = {
        "Echo": grpc.unary_unary_rpc_method_handler(unary("echo", echo)),
        "Never": grpc.unary_unary_rpc_method_handler(unary("never", never)),
        "Fail": grpc.unary_unary_rpc_method_handler(unary("fail", fail)),
        "Deadline": grpc.unary_unary_rpc_method_handler(unary("deadline", deadline)),
        "Ticks": grpc.unary_stream_rpc_method_handler(stream("ticks", ticks)),
        "Check": grpc.stream_stream_rpc_method_handler(stream("check", check)),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("lab.Lab", methods),))
    host = listen.rpartition(":")[0]
    port = server.add_insecure_port(listen)
    server.start()
    events.emit("listening", address=f"{host}:{port}")
    server.wait_for_termination()


class Visit:
    """One call at the server: says that its handler began, and once why it ended."""

    def __init__(self, method: str, context: grpc.ServicerContext) -> None:
        metadata = dict(context.invocation_metadata())
        self.call = metadata.get("lab-call", "")
        self.method = method
        self.context = context
        self.arguments = ARGUMENTS | parse(metadata.get("lab-args", "{}"), context)
        self.ledger = Ledger()
        self.ended = threading.Event()
        # The library tells no reason at the end; the time tells.
        left = self.left_ms()
        self.until = math.inf if left is None else time.monotonic() + left / 1e3
        # Set when the handler has read to an end and sent everything.
        self.finished: Iterator[bytes] | None = None
        self._lock = threading.Lock()
        self._said = False
        events.emit("handler", call=self.call, method=method, left_ms=left)
        if not context.add_callback(self.gone):
            self.gone()

    def left_ms(self) -> float | None:
        """What the deadline leaves; none without one."""
        left = self.context.time_remaining()
        return round(left * 1e3, 3) if left is not None and left < 1e9 else None

    def gone(self) -> None:
        """The call is over: by the handler's own end, which a unary handler has said before, or by what came first."""
        if self.finished is not None and clean(self.finished):
            self.end("returned")
        else:
            self.end("deadline" if time.monotonic() >= self.until else "canceled")

    def end(self, reason: str) -> None:
        with self._lock:
            if self._said:
                return
            self._said = True
        self.ended.set()
        self.ledger.emit("handler_end", call=self.call, method=self.method, reason=reason)


def clean(requests: Iterator[bytes]) -> bool:
    """Whether requests ended by the client's half-close, asked when the call is over.

    Before that nobody can know: those of a call that is just being cut end in the same way at first.
    """
    try:
        next(requests)
    except StopIteration:
        return True
    except grpc.RpcError:
        pass
    return False


def parse(text: str, context: grpc.ServicerContext) -> dict[str, Any]:
    try:
        return json.loads(text)
    except ValueError as error:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))


def unary(method: str, run: Callable[[Visit, bytes], bytes]) -> Callable[[bytes, grpc.ServicerContext], bytes]:
    def handler(request: bytes, context: grpc.ServicerContext) -> bytes:
        return run(Visit(method, context), request)

    return handler


def stream(
    method: str, run: Callable[[Visit, Any], Iterator[bytes]]
) -> Callable[[Any, grpc.ServicerContext], Iterator[bytes]]:
    def handler(requests: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
        return run(Visit(method, context), requests)

    return handler


def echo(visit: Visit, request: bytes) -> bytes:
    visit.end("returned")
    return request


def never(visit: Visit, _: bytes) -> bytes:
    visit.ended.wait()
    return b""


def fail(visit: Visit, _: bytes) -> bytes:
    visit.end("returned")
    visit.context.abort(grpc.StatusCode.UNAVAILABLE, "as asked")


def deadline(visit: Visit, _: bytes) -> bytes:
    left = visit.left_ms()
    visit.end("returned")
    return b"none" if left is None else f"{left:.3f}".encode()


def ticks(visit: Visit, _: bytes) -> Iterator[bytes]:
    """One message at once, then one each `every_ms`, or none for ever."""
    message = bytes(max(visit.arguments["bytes"], 1))
    every = visit.arguments["every_ms"] / 1e3
    due = time.monotonic()
    while not visit.ended.is_set():
        yield message
        # What was held up is not made up for.
        due = max(due + every, time.monotonic())
        visit.ended.wait(due - time.monotonic() if every > 0 else None)


def check(visit: Visit, requests: Iterator[bytes]) -> Iterator[bytes]:
    """Both directions at once: counts and hashes what comes until it ends, and sends its own stream."""
    visit.ledger.watch(visit.call, visit.ended)
    complete = threading.Event()
    over = threading.Event()

    def read() -> None:
        try:
            for data in requests:
                visit.ledger.received.add(data)
            complete.set()
        except grpc.RpcError:
            # The call is gone; the callback says so.
            pass
        over.set()

    threading.Thread(target=read, daemon=True).start()
    arguments = visit.arguments
    source = Source(arguments["seed"] + 1)
    sent, chunk, rate = visit.ledger.sent, arguments["chunk"], arguments["receive_rate"]
    yield from pour(source, sent, arguments["receive"], chunk, rate, visit.ended)
    over.wait()
    if complete.is_set():
        visit.finished = requests
