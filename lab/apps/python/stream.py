"""The seeded stream, and what both ends of a checked stream know of it."""

import hashlib
import threading
import time
from collections.abc import Iterator

import events

# The keys of `lab-args` and what they are when absent.
ARGUMENTS = {"every_ms": 0, "bytes": 0, "seed": 0, "receive": 0, "chunk": 0, "receive_rate": 0}
WORD = 0xFFFF_FFFF


class Source:
    """xorshift32, each word as four bytes, the lowest first."""

    def __init__(self, seed: int) -> None:
        self._word = (seed * 2_654_435_761) & WORD or 1
        self._rest = b""

    def take(self, length: int) -> bytes:
        """The next bytes of the stream. Several MB a second: enough for what the lab asks."""
        word = self._word
        parts = bytearray(self._rest)
        for _ in range((length - len(parts) + 3) // 4):
            word ^= (word << 13) & WORD
            word ^= word >> 17
            word ^= (word << 5) & WORD
            parts += word.to_bytes(4, "little")
        self._word = word
        self._rest = bytes(parts[length:])
        return bytes(parts[:length])


class Tally:
    """Counts and hashes one direction."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._hash = hashlib.sha256()

    def add(self, data: bytes) -> None:
        with self._lock:
            self._count += len(data)
            self._hash.update(data)

    def state(self) -> tuple[int, str]:
        with self._lock:
            return self._count, self._hash.hexdigest()


class Ledger:
    """Both directions of a stream."""

    def __init__(self) -> None:
        self.sent = Tally()
        self.received = Tally()
        self.printing = threading.Lock()

    def emit(self, event: str, **more: object) -> None:
        """Prints an event with the totals. Of two events the one that is printed later counts no less."""
        with self.printing:
            sent, sent_sha256 = self.sent.state()
            received, received_sha256 = self.received.state()
            totals = {
                "sent": sent,
                "sent_sha256": sent_sha256,
                "received": received,
                "received_sha256": received_sha256,
            }
            events.emit(event, **more, **totals)

    def watch(self, call: str, ended: threading.Event) -> None:
        """Prints the running totals twice a second until the call has ended, on a thread of its own."""

        def run() -> None:
            while not ended.wait(0.5):
                self.emit("progress", call=call)

        threading.Thread(target=run, daemon=True).start()


def pour(source: Source, tally: Tally, total: int, chunk: int, rate: int, ended: threading.Event) -> Iterator[bytes]:
    """Gives `total` bytes of the stream in chunks, at most `rate` bytes a second (0: as fast as it goes)."""
    began = time.monotonic()
    sent = 0
    while sent < total and not ended.is_set():
        data = source.take(min(max(chunk, 1), total - sent))
        # Counted before it is given away: what the other end has got was always sent.
        tally.add(data)
        yield data
        sent += len(data)
        if rate > 0 and ended.wait(max(0.0, began + sent / rate - time.monotonic())):
            return
