"""Locks for redis.asyncio. The same as in `redislock`, to be awaited."""

from __future__ import annotations

import asyncio
import weakref
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import redis.asyncio as aredis
import redis.exceptions as theirs

from . import _core
from ._core import ANSWER, MAX_OPENING, MAX_WAITING, Name, Sending, Words, Work, now
from ._errors import Lost, Unavailable


class _Link(_core.Link):
    def __init__(self, client: Any) -> None:
        super().__init__(client, aredis.RedisCluster)
        self.loop = asyncio.get_running_loop()
        self.waiting = asyncio.Semaphore(MAX_WAITING)
        self.opening = asyncio.Semaphore(MAX_OPENING)
        self.tasks: set[asyncio.Task[Any]] = set()

    async def source(self, key: Name) -> Any:
        client: Any = self.client()
        if not self.is_cluster:
            return client.connection_pool
        await client.initialize()
        return client.get_node_from_key(key)

    async def open(self, connection: Any) -> None:
        async with asyncio.timeout(ANSWER):
            await connection.connect()

    async def is_stale(self, connection: Any) -> bool:
        try:
            return not connection.is_connected or await connection.can_read_destructive()
        except theirs.ConnectionError:
            return True

    async def exchange(
        self, sending: Sending, build: Callable[[], Words], limit: float | None
    ) -> Any:
        async with asyncio.timeout(limit):
            words, sending.is_sent = build(), True
            await sending.connection.send_command(*words, check_health=False)
            return await _read(sending.connection)

    async def is_refused(self, connection: Any) -> bool:
        try:
            async with asyncio.timeout(0):
                return await _read(connection) is None
        except theirs.ResponseError:
            return True
        except (theirs.RedisError, OSError):
            return False

    async def cut(self, connection: Any) -> None:
        try:
            await connection.disconnect(nowait=True)
        except RuntimeError:  # the loop has ended, and the connection with it
            pass

    async def turn(self, turns: Any, deadline: float | None, full: str) -> None:
        try:
            async with asyncio.timeout(None if deadline is None else max(0.0, deadline - now())):
                await turns.acquire()
        except TimeoutError:
            raise Unavailable(full) from None

    async def rediscover(self) -> None:
        if self.is_cluster:
            try:
                await self.client().nodes_manager.initialize()
            except Exception:  # of several kinds if no node answers; the next attempt does it again
                pass

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))

    async def in_background(
        self, release: Callable[[float], Work], until: float, stay: float
    ) -> None:
        """The caller may be cancelled because the loop ends: so it stays for the first answer."""
        task = self.task(release(until))
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        await asyncio.wait([task], timeout=stay)

    def task(self, work: Work) -> asyncio.Task[Any]:

        async def run(_client: Any) -> Any:
            return await work  # the client stays alive until then

        task = self.loop.create_task(run(self.client()))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def close(self) -> None:
        for idle in self.idle.values():
            while idle:
                await idle.pop()[0].disconnect()


async def _read(connection: Any) -> Any:
    """A read that is cancelled may be begun again."""
    return await connection.read_response(timeout=float("inf"), disconnect_on_error=False)


_links: weakref.WeakKeyDictionary[Any, _Link] = weakref.WeakKeyDictionary()


def _link(client: Any) -> _Link:
    if client not in _links or _links[client].loop is not asyncio.get_running_loop():
        _links[client] = _Link(client)
    return _links[client]


async def close(client: Any) -> None:
    """Closes the idle connections that locks of this client have used."""
    await _link(client).close()


class Held(_core.Held):
    """A lock that is held. `async with` releases it, and cancels its body when the lock is lost."""

    def __init__(self, lock: Any, link: _Link, token: str, reply: Any, sent: float) -> None:
        super().__init__(lock, link, token, reply, sent)
        self._ended = asyncio.Event()
        self._renewal: asyncio.TimerHandle | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._bodies: list[tuple[asyncio.Task[Any] | None, list[bool]]] = []

    def _end(self) -> None:
        super()._end()
        self._ended.set()
        for timer in (self._renewal, self._alarm):
            if timer is not None:
                timer.cancel()
        if self._entries:  # lost, not released
            found_by = asyncio.current_task()  # if a body: it gets an exception already
            for body, interrupted in self._bodies:
                if body is not None and body is not found_by and not interrupted:
                    interrupted.append(True)
                    body.cancel()

    def _watch(self) -> None:
        """Signals the loss in time, also while a renewal gets no answer."""
        if self.lost:
            self._end()
        else:
            left = min(1.0, self._loss_at - now())  # the host may sleep
            self._alarm = self._link.loop.call_later(left, self._watch)

    def _renew_at(self, due: float) -> None:
        def begin() -> None:
            self._link.task(renew())

        async def renew() -> None:
            next_one = await self._renew()
            if next_one is not None:
                self._renew_at(next_one)

        self._renewal = self._link.loop.call_later(max(0.0, due - now()), begin)

    async def wait_lost(self) -> None:
        """Returns when the lock is lost (or released)."""
        await self._ended.wait()

    async def guard(self, *command: Any) -> Any:
        """Runs a command on the server if and only if the lock is held, in one step. Never twice.

        Returns the plain reply. Of a lock with several names, the first one is checked.
        """
        return await self._guard(command)

    async def release(self) -> bool:
        """Releases the lock. False: it was lost before. Undelivered, it goes on by itself."""
        was_held, last = self._leave()
        if not last:
            return was_held
        delivered = self._link.task(self._release(self._over_at))
        await asyncio.wait([delivered], timeout=ANSWER)
        return was_held and not (delivered.done() and delivered.result() is False)

    async def __aenter__(self) -> Held:
        self._bodies.append((asyncio.current_task(), []))
        return self

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        body, interrupted = self._bodies.pop()
        if self._is_left:  # by the body
            return
        was_held = await self.release()
        only_by_loss = interrupted and body is not None and body.uncancel() == 0
        if only_by_loss and kind is asyncio.CancelledError:
            raise Lost("the lock was lost, and the work under it was cancelled") from error
        self._report(was_held, error)


class Lock(_core.Lock):
    """`async with Lock(r, "nightly", ttl=10, wait=30) as held:` · may be used again and again."""

    _clients = (aredis.Redis, aredis.RedisCluster)
    _needs = "a redis.asyncio.Redis or redis.asyncio.RedisCluster"

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._entered: dict[Any, list[Held]] = defaultdict(list)

    async def acquire(self) -> Held:
        """Raises Busy when the wait is over. Whatever is raised, nothing is left held."""
        held: Held = await self._enter(_link(self._client), Held)
        if held is held._first:
            held._watch()
            if self._owner:
                self._owner._holds.append(held)
            if self._every is not None:
                held._renew_at(held._confirmed + self._every)
        return held

    async def __aenter__(self) -> Held:
        held = await self.acquire()
        self._entered[asyncio.current_task()].append(held)
        return await held.__aenter__()

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        task = asyncio.current_task()
        held = self._entered[task].pop()
        if not self._entered[task]:
            del self._entered[task]
        await held.__aexit__(kind, error, trace)
