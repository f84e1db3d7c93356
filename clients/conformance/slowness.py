"""How much the machine held up a driver, to distinguish a slow machine from a late library."""

from __future__ import annotations

import threading
import time
from pathlib import Path

STEP = 0.02  # seconds


class _Control:
    """A timer of the runner itself: how late it was in total, for example as the host paused."""

    def __init__(self) -> None:
        self.late = 0.0  # seconds
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            began = time.monotonic()
            time.sleep(STEP)
            late = time.monotonic() - began - STEP
            if late > STEP:  # a little is ordinary, and would add up
                self.late += late


_control = _Control()


def _of_threads(pid: int) -> float:
    """Seconds that threads of the process have run or have waited for a processor (Linux)."""
    total = 0
    for file in Path("/proc", str(pid), "task").glob("*/schedstat"):
        try:
            ran, waited, _ = file.read_text().split()
        except (OSError, ValueError):  # the thread has ended
            continue
        total += int(ran) + int(waited)
    return total / 1e9


class Slowness:
    """From its beginning on. A thread that only sleeps too long, by its own fault, adds nothing."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before = self._total()

    def _total(self) -> float:
        return _of_threads(self._pid) + _control.late

    def seconds(self) -> float:
        return self._total() - self._before
