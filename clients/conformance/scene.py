"""What a scenario has at hand: servers, proxies, and the library behind its driver."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

from driver import Driver, LibraryError, Pending, Skip
from proxy import Proxy
from servers import Server, eventually
from slowness import Slowness
from suspension import NotPossible, Suspension

LONG = 300_000  # a ttl or wait in ms that no scenario lives to see the end of
ANSWER = 2.0  # seconds that the libraries wait for a connection or a reply
PACES = (1, 2, 4)  # a scenario that a slow machine has spoiled is repeated with longer times


class TooSlow(AssertionError):
    """The machine was too slow for a result: the scenario is repeated with longer times."""


class Scene:
    """What a scenario has at hand; everything it took is given back at its end."""

    def __init__(self, driver: Driver, pace: int = 1) -> None:
        self.driver, self.pace = driver, pace
        self._slowness = Slowness(driver.process.pid)
        self._unavailable = driver.unavailable
        self._taken: list = []
        self._names = iter(range(1_000_000))

    def take(self, thing):
        self._taken.append(thing)
        return thing

    def close(self) -> None:
        for thing in reversed(self._taken):
            thing.close()

    def in_time(self, is_right: bool, spare: float, what: str) -> None:
        """A check that a slow machine can fail: one that held up the driver for half of `spare`
        (ms), the time that a correct library has left. On any other machine it is a failure."""
        if not is_right:
            held_up = self._slowness.seconds()
            kind = TooSlow if held_up * 1000 >= spare / 2 else AssertionError
            raise kind(f"{what} (the machine held up the driver for {held_up:.1f} s)")

    def is_spoiled(self) -> bool:
        """A reply took longer than the limit of the library, on a machine that is that slow."""
        is_slow = self._slowness.seconds() >= ANSWER / 2
        return is_slow and self.driver.unavailable > self._unavailable

    def on_a_host_that_is_suspended(self) -> Suspension:
        """From now on the driver is a new process, on a host that the scenario can suspend."""
        try:
            suspension = self.take(Suspension())
            self.driver = self.take(self.driver.again(suspension))
        except NotPossible as error:
            if os.environ.get("CI") == "true" and sys.platform == "linux":
                raise
            print(f"skipping the suspension of a host: {error}", flush=True)
            raise Skip(str(error)) from None
        self._slowness = Slowness(self.driver.process.pid)
        self._unavailable = 0
        return suspension

    def server(self, *settings: str, module: bool = True) -> Server:
        return self.take(Server(*settings, module=module))

    def proxy(self, server: Server) -> Proxy:
        return self.take(Proxy(server.port))

    def open(self, *at: Server | Proxy, mode: str = "single", **fields: object) -> str:
        """The user's client, by default with the client's own defaults. Only the limit for an
        answer is longer than the 100 ms of the Rust client, which a busy machine exceeds.
        """
        fields.setdefault("answer", 600)
        name = f"client{next(self._names)}"
        addresses = [["127.0.0.1", one.port] for one in at]
        self.driver.call("open", client=name, mode=mode, addresses=addresses, **fields)
        return name

    def behind_proxy(self, **fields: object) -> tuple[Server, Proxy, str]:
        """A server, the proxy in front of it, and a client that connects to the proxy."""
        server = self.server()
        proxy = self.proxy(server)
        return server, proxy, self.open(proxy, **fields)

    def acquire(
        self,
        client: str,
        key: object = "door",
        *,
        ttl: object = LONG,
        wait: object = 0,
        **options: object,
    ) -> Asked:
        return Asked(
            self.driver,
            f"held{next(self._names)}",
            dict(client=client, name=key, ttl=ttl, wait=wait, **options),
        )

    def hold(self, client: str, key: object = "door", **options: object) -> Asked:
        asked = self.acquire(client, key, **options)
        asked.granted()
        return asked

    def queue(self, server: Server, client: str, count: int) -> list[Asked]:
        """So many requests that wait at the server."""
        waiting = [self.acquire(client, wait=LONG) for _ in range(count)]
        queued(server, count)
        return waiting

    def run(self, client: str, work: str, **options: object) -> Pending:
        """The library's block (`with`, `withLock`, `Do`, `try`), and the work in it."""
        fields = dict(client=client, held=f"held{next(self._names)}", name="door", wait=0)
        return self.driver.start("run", work=work, **fields, **options)

    def refused(self, client: str, key: object = "door", **options: object) -> LibraryError:
        return self.acquire(client, key, **options).error()


class Asked:
    """An acquire that was asked for, and the hold that comes out of it."""

    def __init__(self, driver: Driver, name: str, fields: dict) -> None:
        self._driver, self._name = driver, name
        self.asked_at = time.monotonic()
        self.pending: Pending = driver.start("acquire", held=name, **fields)

    def granted(self) -> dict:
        return self.pending.result()

    def error(self) -> LibraryError:
        return self.pending.error()

    @property
    def fence(self) -> int:
        return self.granted()["fence"]

    @property
    def done(self) -> bool:
        return self.pending.done

    def cancel(self) -> LibraryError:
        self._driver.call("cancel", acquire=self.pending.number)
        return self.pending.error()

    def release(self) -> bool:
        return self.start_release().result()["held"]

    def start_release(self, **fields: object) -> Pending:
        return self._driver.start("release", held=self._name, **fields)

    def fork(self) -> bool:
        """Does a child process with a copy of the hold know that it is not its own?"""
        return self._driver.call("fork", held=self._name)["child_is_right"]

    def state(self) -> dict:
        """valid_for (ms) and lost."""
        return self._driver.call("state", held=self._name)

    def valid_until(self) -> float:
        """On the runner's clock: not after the end of the validity that the library claims."""
        before = time.monotonic()
        return before + self.state()["valid_for"] / 1000

    def start_await_lost(self) -> Pending:
        return self._driver.start("await_lost", held=self._name)

    def guard(self, *command: str) -> object:
        return self.start_guard(*command).result()["reply"]

    def start_guard(self, *command: str) -> Pending:
        return self._driver.start("guard", held=self._name, command=list(command))


SCENARIOS: dict[str, Callable[[Scene], None]] = {}


def scenario(function: Callable[[Scene], None]) -> Callable[[Scene], None]:
    SCENARIOS[function.__name__] = function
    return function


def is_free(server: Server, key: str = "door", within: float = 60.0) -> None:
    """Nobody holds it and nobody waits, well before a lease of LONG could have ended."""
    eventually(lambda: server.lock(key) is None, within, f"the end of everything at {key!r}")


def is_quiet(server: Server, command: str, what: str, seconds: float = 1.5) -> None:
    """The command is not called any more; one that was on its way may still come."""

    def rests() -> bool:
        calls = server.calls(command)
        time.sleep(seconds)
        return server.calls(command) == calls

    eventually(rests, 30, f"an end of {command}: {what}")


def block_by_hand(server: Server, key: str = "door", ttl: int = LONG) -> None:
    assert server.wire("LOCK.ACQUIRE", key, "somebody", ttl)


def give_back_by_hand(server: Server, key: str = "door") -> None:
    assert server.wire("LOCK.RELEASE", key, "somebody")


def release_all(waiting: list[Asked]) -> None:
    """Each one as it is granted, in whatever order they came to the server."""
    waiting = list(waiting)
    while waiting:
        done = eventually(
            lambda: next((one for one in waiting if one.done), None), what="the next grant"
        )
        waiting.remove(done)
        assert done.release() is True


def queued(server: Server, count: int = 1, key: str = "door") -> None:
    eventually(lambda: server.waiters(key) == count, what=f"a queue of {count}")
