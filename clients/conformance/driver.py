"""The runner's side of the driver protocol (clients/README.md)."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import threading
import time

from suspension import Suspension

PATIENCE = 120.0  # seconds for any answer; only a broken driver uses them up


class Skip(Exception):
    """The library cannot be asked this, for example because its language checks types."""


class LibraryError(Exception):
    """An error of the library: its kind and its text."""

    def __init__(self, error: dict) -> None:
        super().__init__(f"{error['kind']}: {error['message']}")
        self.kind, self.message, self.retry_after = (
            error["kind"],
            error["message"],
            error.get("retry_after"),
        )


class Pending:
    """An answer that is still to come."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._queue: queue.Queue[dict] = queue.Queue()
        self.answered_at: float | None = None

    @property
    def done(self) -> bool:
        return not self._queue.empty()

    def put(self, answer: dict) -> None:
        self.answered_at = time.monotonic()
        self._queue.put(answer)

    def result(self, within: float = PATIENCE) -> dict:
        try:
            answer = self._queue.get(timeout=within)
        except queue.Empty:
            raise AssertionError(f"no answer within {within} s") from None
        self._queue.put(answer)
        if "skip" in answer:
            raise Skip(answer["skip"])
        if "error" in answer:
            raise LibraryError(answer["error"])
        return answer["ok"]

    def error(self, within: float = PATIENCE) -> LibraryError:
        try:
            value = self.result(within)
        except LibraryError as error:
            return error
        raise AssertionError(f"an error was expected, the answer was {value}")


class Driver:
    """A process that has the library in it."""

    def __init__(
        self, command: list[str], directory: str, suspension: Suspension | None = None
    ) -> None:
        self._command, self._directory = command, directory
        self.process = subprocess.Popen(
            command,
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **(suspension.environment if suspension else {})},
            preexec_fn=suspension.prepare() if suspension else None,
        )
        if suspension:
            try:
                suspension.begin(self.process.pid)
            except BaseException:
                self.close()
                raise
        self._pending: dict[int, Pending] = {}
        self.unavailable = 0  # answers: for example, the limit for a reply was over
        self._number = 0
        self._mutex = threading.Lock()
        threading.Thread(target=self._read, daemon=True).start()

    def again(self, suspension: Suspension) -> Driver:
        """Another process of the same library, on a host that seems to be suspended at times."""
        return Driver(self._command, self._directory, suspension)

    def start(self, op: str, **fields: object) -> Pending:
        with self._mutex:
            self._number += 1
            pending = self._pending[self._number] = Pending(self._number)
            line = json.dumps({"id": self._number, "op": op, **fields}) + "\n"
            self.process.stdin.write(line.encode())
            self.process.stdin.flush()
        return pending

    def call(self, op: str, **fields: object) -> dict:
        return self.start(op, **fields).result()

    def error(self, op: str, **fields: object) -> LibraryError:
        return self.start(op, **fields).error()

    def _read(self) -> None:
        for line in self.process.stdout:
            answer = json.loads(line)
            self.unavailable += answer.get("error", {}).get("kind") == "unavailable"
            self._pending.pop(answer["id"]).put(answer)
        for pending in list(self._pending.values()):
            pending.put({"error": {"kind": "ended", "message": "the driver ended"}})

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
