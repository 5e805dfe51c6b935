"""One line of stdout: what happened, and when."""

import json
import os
import threading
import time

_out = threading.Lock()


def emit(event: str, **values: object) -> None:
    """Prints one line. `mono_ms` is CLOCK_MONOTONIC: the same for all processes of the machine."""
    body = {
        "event": event,
        **values,
        "mono_ms": time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000 / 1e3,
        "wall_ms": time.time_ns() // 1_000 / 1e3,
    }
    line = (json.dumps(body) + "\n").encode()
    with _out:
        try:
            while line:
                line = line[os.write(1, line) :]
        except OSError:
            # Nobody listens any more.
            os._exit(1)
