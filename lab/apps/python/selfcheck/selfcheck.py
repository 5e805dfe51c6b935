"""Checks that the applications keep their contract (../../README.md): what they print is what Go's prints.

    python3 lab/apps/python/selfcheck/selfcheck.py [--out FOLDER] [java python node]

Each language's client talks to its own server and to Go's, and Go's client to its server, over loopback: TCP, and a
unix socket whose other end is joined to the server here. With --all every client talks to every server. All lines of
both programs are compared with those of Go with Go: same keys, same types, same values, but for times and for the texts
that are a library's own. Needs no root.
"""

import argparse
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
APPS = HERE.parent.parent
sys.path.insert(0, str(APPS / "python"))
sys.dont_write_bytecode = True

from stream import Source, Tally  # noqa: E402

# From the contract.
KNOWN = {
    "small": "47f3768467acc9ad0861829c22ac8610c7e78d3fbdf9e0f12a4920dc5189e5de",
    "big": "3c3a5d3baaa7675ac1ec8fd5a241803776e1ebf476ba4be28ae8f09f0e9f2380",
}
PATIENCE = 30.0
# A stream that no test reads to its end.
ENDLESS = 1 << 40


class Wrong(Exception):
    """The contract is not kept."""


def build(name: str, out: pathlib.Path) -> list[str]:
    if name == "go":
        program = out / "go" / "app"
        subprocess.run(["go", "build", "-o", program, "."], cwd=APPS / "go", check=True)
        return [str(program)]
    built = subprocess.run([APPS / name / "build.sh", out / name], stdout=subprocess.PIPE, text=True, check=True)
    return built.stdout.split("\n")[:-1]


class App:
    """A running program and the lines that it has printed."""

    def __init__(self, *words: str) -> None:
        self.began = time.monotonic() * 1e3
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.words = " ".join(words)
        self.lines: list[dict[str, Any]] = []
        self.errors: list[str] = []
        self.more = threading.Condition()
        self.over = False
        self.readers = [threading.Thread(target=self.read), threading.Thread(target=self.complain)]
        for reader in self.readers:
            reader.start()

    def read(self) -> None:
        for text in self.process.stdout:
            line = json.loads(text)
            now = time.monotonic() * 1e3
            if not self.began - 1 <= line["mono_ms"] <= now + 1:
                self.errors.append(f"mono_ms {line['mono_ms']} is not between {self.began} and {now}")
            if abs(line["wall_ms"] - time.time() * 1e3) > 5_000:
                self.errors.append(f"wall_ms {line['wall_ms']} is far off")
            with self.more:
                self.lines.append(line)
                self.more.notify_all()
        with self.more:
            self.over = True
            self.more.notify_all()

    def complain(self) -> None:
        self.stderr = self.process.stderr.read()

    def find(self, event: str, call: str | None = None, **values: Any) -> dict[str, Any]:
        """The first such line; waits for it."""
        wanted = {"event": event, **values} | ({} if call is None else {"call": call})
        until = time.monotonic() + PATIENCE
        with self.more:
            while True:
                for line in self.lines:
                    if wanted.items() <= line.items():
                        return line
                if self.over or not self.more.wait(max(0.0, until - time.monotonic())):
                    if self.over or time.monotonic() >= until:
                        raise Wrong(f"{self.words}: no {wanted}")

    def say(self, op: str, **values: Any) -> None:
        self.process.stdin.write(json.dumps({"op": op, **values}) + "\n")
        self.process.stdin.flush()

    def call(self, name: str, method: str, **values: Any) -> None:
        self.say("call", call=name, method=method, **values)

    def ended(self, name: str, method: str, **values: Any) -> dict[str, Any]:
        self.call(name, method, **values)
        return self.find("end", name)

    def kill(self) -> None:
        self.process.kill()
        self.wait()

    def wait(self) -> int:
        code = self.process.wait(PATIENCE)
        for reader in self.readers:
            reader.join()
        for pipe in [self.process.stdin, self.process.stdout, self.process.stderr]:
            pipe.close()
        return code


class Joint:
    """A unix socket whose connections come out at a TCP address."""

    def __init__(self, path: str, address: str) -> None:
        self.address = address
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            here, _ = self.listener.accept()
            host, _, port = self.address.rpartition(":")
            there = socket.create_connection((host, int(port)))
            there.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for pair in [(here, there), (there, here)]:
                threading.Thread(target=self.copy, args=pair, daemon=True).start()

    @staticmethod
    def copy(source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65_536):
                sink.sendall(data)
        except OSError:
            pass
        for end in [source, sink]:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def must(condition: bool, what: str) -> None:
    if not condition:
        raise Wrong(what)


def conversation(client: App, server: App) -> dict[str, float]:
    """Every method in every form that the contract has; gives the times that were measured."""
    times = {}
    for name, values in [("small", {"bytes": 100, "seed": 3}), ("big", {"bytes": 1_000_000, "seed": 7}), ("none", {})]:
        client.ended(name, "echo", **values)
    for name, sha256 in KNOWN.items():
        must(client.find("end", name)["received_sha256"] == sha256, f"{name}: not the contract's SHA-256")
    client.ended("left", "deadline", deadline_ms=3_000)
    client.ended("unbounded", "deadline")
    client.ended("unknown", "nope")

    times["deadline"] = elapsed(client, client.ended("deadline", "never", deadline_ms=500))
    must(times["deadline"] >= 495, f"the deadline of 500 ms came after {times['deadline']} ms")
    times["deadline's handler"] = elapsed(client, server.find("handler_end", "deadline"))
    times["cancel"] = elapsed(client, client.ended("cancel", "never", cancel_after_ms=300))
    times["cancel's handler"] = elapsed(client, server.find("handler_end", "cancel"))
    for name, count, values in [("idle", 1, {}), ("ticking", 3, {"every_ms": 50, "bytes": 200})]:
        client.call(name, "ticks", **values)
        client.find("message", name, n=count)
        client.say("cancel", call=name)
        client.find("end", name)
        server.find("handler_end", name)
    client.say("state")
    client.find("state")

    client.ended("both", "check", seed=5, send=300_000, receive=200_000, chunk=7_000)
    client.ended("up", "check", seed=6, send=3_000_000, receive=0, chunk=65_536)
    client.ended("down", "check", seed=4_294_967_295, send=0, receive=3_000_000, chunk=65_536)
    client.ended("bytes", "check", seed=0, send=500, receive=500, chunk=0)
    client.ended("empty", "check")
    pace = {"send_rate": 50_000, "receive_rate": 50_000, "chunk": 5_000}
    client.ended("paced", "check", seed=9, send=60_000, receive=60_000, **pace)
    client.ended("cut", "check", seed=10, send=ENDLESS, receive=ENDLESS, deadline_ms=900, **pace)
    client.ended("flood", "check", seed=11, send=ENDLESS, receive=ENDLESS, chunk=10_000, cancel_after_ms=400)
    # The handler has nothing to send: only a clean end of what it reads would be its own end.
    client.ended("dropped", "check", seed=12, send=ENDLESS, receive=0, chunk=10_000, cancel_after_ms=400)
    for name in ["both", "up", "down", "bytes", "empty", "paced", "cut", "flood", "dropped"]:
        server.find("handler_end", name)
    return times


def elapsed(client: App, line: dict[str, Any]) -> float:
    return line["mono_ms"] - client.find("start", line["call"])["mono_ms"]


def prefix(seed: int, count: int) -> str:
    tally = Tally()
    tally.add(Source(seed & 0xFFFF_FFFF).take(count))
    return tally.state()[1]


def check_cut(client: App, server: App, name: str, seed: int) -> None:
    """Of a check that was cut: what has come is how the other's stream began."""
    end, handler = client.find("end", name), server.find("handler_end", name)
    for line, key, own in [(end, "sent", 0), (end, "received", 1), (handler, "sent", 1), (handler, "received", 0)]:
        if line[key] < 20_000_000:
            must(line[f"{key}_sha256"] == prefix(seed + own, line[key]), f"{name}: {key} is another stream: {line}")
    must(handler["received"] <= end["sent"], f"{name}: the handler received more than was sent")
    must(end["received"] <= handler["sent"], f"{name}: the client received more than was sent")
    must(end["received"] > 0 and handler["received"] > 0, f"{name}: nothing has come")


def transcript(app: App, ends_first: bool = False) -> dict[str, list[Any]]:
    """What was printed, call by call, without what may differ."""
    calls: dict[str, list[Any]] = {}
    for line in app.lines:
        line = {key: value for key, value in line.items() if key not in ("mono_ms", "wall_ms")}
        name, event = line.get("call", ""), line["event"]
        if event == "progress":
            line = {key: type(value).__name__ for key, value in line.items()} | {"event": event}
        if event == "end" and name in ("deadline", "cut"):
            # The server's clock may be first: some clients then read its reset, and say what it says.
            must(line["status"] in ("DEADLINE_EXCEEDED", "CANCELLED"), f"{name}: {line}")
            line["status"] = "a race"
        if event == "end" and line["status"] != "OK":
            must(isinstance(line["message"], str), "message is a text")
            line["message"] = "its own"
        if event == "listening":
            line["address"] = line["address"].rpartition(":")[0]
        if isinstance(left := line.get("left_ms"), float | int):
            # Python rounds its deadline up by 10 ms; a machine that is busy has used some of it.
            nominal = {"left": 3_000, "deadline": 500, "cut": 900}[name]
            must(nominal * 0.8 <= left <= nominal + 11, f"{name}: left_ms is {left}")
            line["left_ms"] = "about right"
        if event == "handler_end" and name in ("deadline", "cut"):
            must(line["reason"] in ("deadline", "canceled"), f"{name}: {line}")
            line["reason"] = "a race"
        if event == "handler_end" and name == "dropped" and ends_first:
            must(line["reason"] in ("returned", "canceled"), f"{name}: {line}")
            line["reason"] = "canceled"
        if name in ("cut", "flood", "dropped"):
            line = {key: 0 if key[:4] in ("sent", "rece") else value for key, value in line.items()}
        told = calls.setdefault(name, [])
        surplus = event == "message" and line["n"] > 3
        if not surplus and not (event == "progress" and line in told):
            told.append(line)
    # How often there was something to say before a short call had ended is chance.
    for name, told in calls.items():
        if name not in ("paced", "cut"):
            told[:] = [line for line in told if line["event"] != "progress"]
    return calls


def differences(what: str, ours: dict[str, list[Any]], theirs: dict[str, list[Any]]) -> list[str]:
    found = []
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            found.append(f"{what}, call {name!r}:\n    is  {ours.get(name)}\n    go's {theirs.get(name)}")
    return found


def pair(client_words: list[str], server_words: list[str], unix: str | None) -> tuple[Any, Any, dict[str, float]]:
    """A conversation, then a server's sudden end under a stream; both transcripts and the times."""
    server = App(*server_words, "server", "--listen", "127.0.0.1:0")
    client = None
    try:
        address = server.find("listening")["address"]
        if unix:
            Joint(unix, address)
        client = App(*client_words, "client", "--target", f"unix:{unix}" if unix else address)
        client.find("ready")
        times = conversation(client, server)
        check_cut(client, server, "cut", 10)
        check_cut(client, server, "flood", 11)
        client.call("lost", "ticks")
        client.find("message", "lost")
        server.kill()
        client.find("end", "lost")
        client.say("quit")
        code = client.wait()
        must(code == 0, f"quit: exit code {code}: {client.stderr}")
        for app in [client, server]:
            must(not app.errors, "; ".join(app.errors))
        # A Node client that cancels may end its direction first and then reset the call: its server may read the end.
        return transcript(client), transcript(server, ends_first="node" in client_words[0]), times
    finally:
        for app in [client, server]:
            if app and app.process.poll() is None:
                app.kill()


def client_dies(client_words: list[str], server_words: list[str]) -> str:
    """Every handler of a client that is killed ends as canceled; says within what time."""
    server = App(*server_words, "server", "--listen", "127.0.0.1:0", "--permit-keepalive")
    client = None
    longest = 0.0
    try:
        address = server.find("listening")["address"]
        for round in range(5):
            keepalive = ["--keepalive-ms", "10000", "--keepalive-timeout-ms", "5000", "--keepalive-idle"]
            client = App(*client_words, "client", "--target", address, *keepalive)
            names = [f"{word}{round}" for word in ["never", "ticks", "check", "up"]]
            client.call(names[0], "never")
            client.call(names[1], "ticks", every_ms=10)
            rate = {"send_rate": 200_000, "receive_rate": 200_000, "chunk": 2_000}
            client.call(names[2], "check", seed=1, send=ENDLESS, receive=ENDLESS, **rate)
            # The handler has nothing to send: only a clean end of what it reads would be its own end.
            client.call(names[3], "check", seed=1, send=ENDLESS, receive=0, chunk=5_000)
            for name in names:
                server.find("handler", name)
            client.find("message", names[1], n=3)
            client.find("progress", names[2])
            killed = time.monotonic() * 1e3
            client.kill()
            for name in names:
                end = server.find("handler_end", name)
                must(end["reason"] == "canceled", f"after kill -9 of the client: {end}")
                longest = max(longest, end["mono_ms"] - killed)
        must(server.process.poll() is None, "the server has died")
        server.kill()
        must(not server.errors, "; ".join(server.errors))
    finally:
        for app in [client, server]:
            if app and app.process.poll() is None:
                app.kill()
    return f"handlers canceled within {longest:.1f} ms"


def command_line(words: list[str], name: str) -> str:
    """Unknown flags are refused, `version` says what is used, end of stdin ends a client; gives the versions."""
    for wrong in [["client", "--bogus"], ["server", "--bogus"], ["version", "--bogus"], ["nonsense"], []]:
        # grpc-go's program takes no flags after `version` at all, and ignores them.
        if wrong[:1] == ["version"] and name == "go":
            continue
        ran = subprocess.run([*words, *wrong], stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE)
        must(ran.returncode != 0 and not ran.stdout, f"{wrong}: exit code {ran.returncode}, {ran.stdout}")
    said = json.loads(subprocess.run([*words, "version"], capture_output=True, check=True).stdout)
    must(said["event"] == "version" and said["impl"] == name, f"version: {said}")
    must(all(isinstance(said[key], str) for key in ("library", "runtime")), f"version: {said}")
    client = App(*words, "client", "--target", "127.0.0.1:1")
    client.find("ready")
    # End of file is `quit`.
    client.process.stdin.close()
    must(client.process.wait(PATIENCE) == 0, "end of stdin")
    client.kill()
    return f"{said['library']}, {said['runtime']}"


def compare(title: str, words: tuple[list[str], list[str]], unix: str | None, reference: list[Any]) -> bool:
    """One pair on one way; the first one is the reference. False when it is not as Go's."""
    try:
        said, heard, times = pair(*words, unix)
    except Wrong as error:
        print(f"{title}: WRONG: {error}", flush=True)
        return False
    if not reference:
        reference[:] = [said, heard]
    found = differences("client", said, reference[0]) + differences("server", heard, reference[1])
    lines = sum(map(len, said.values())) + sum(map(len, heard.values()))
    measured = ", ".join(f"{key} {value:.1f}" for key, value in times.items())
    print(f"{title}: {'WRONG' if found else f'as Go with Go, {lines} lines'}; ms: {measured}", flush=True)
    for text in found:
        print(f"  {text}")
    return not found


def told(title: str, check: Callable[[], str]) -> bool:
    """False when the check fails."""
    try:
        print(f"{title}: {check()}", flush=True)
    except Wrong as error:
        print(f"{title}: WRONG: {error}", flush=True)
        return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=APPS.parent.parent / "target/lab")
    parser.add_argument("--all", action="store_true", help="every client with every server")
    parser.add_argument("languages", nargs="*", default=["java", "python", "node"])
    asked = parser.parse_args()
    programs = {name: build(name, asked.out.resolve()) for name in ["go", *asked.languages]}
    right = [told(name, lambda: command_line(words, name)) for name, words in programs.items()]
    pairs = [("go", "go")]
    for name in asked.languages:
        others = asked.languages if asked.all else [name]
        pairs += [(name, "go"), ("go", name), *((name, other) for other in others)]
    reference: list[Any] = []
    with tempfile.TemporaryDirectory() as folder:
        for client, server in pairs:
            words = (programs[client], programs[server])
            for way in ["tcp", "unix"]:
                unix = os.path.join(folder, f"{client}-{server}.sock") if way == "unix" else None
                right.append(compare(f"{client} -> {server}, {way}", words, unix, reference))
                if not reference:
                    sys.exit("without Go with Go there is nothing to compare with")
            right.append(told(f"{client} -> {server}, client killed", lambda: client_dies(*words)))
    print(f"{right.count(True)} passed, {right.count(False)} failed")
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
