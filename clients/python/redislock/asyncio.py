"""Locks for redis.asyncio. The same as in `redislock`, to be awaited."""

from __future__ import annotations

import asyncio
import weakref
from collections import defaultdict, deque
from typing import Any, cast

import redis.asyncio as aredis
import redis.exceptions as theirs

from . import _core
from ._core import ANSWER, Ask, HeldBase, Hold, LockBase, Name, Sleep, Steps, now
from ._errors import InvalidRequest, Lost, NoAnswer, Refused, explain
from ._link import settings, translated

MAX_WAITING = 100  # connections that wait in the server's queues, for each client


class _Link:
    """Our own connections, made as the user's client makes its own. Waiting ones are bounded."""

    def __init__(self, client: Any) -> None:
        self._client = weakref.ref(client)
        self._idle: dict[Any, deque[Any]] = defaultdict(deque)
        self._waiting = asyncio.Semaphore(MAX_WAITING)
        self._tasks: set[asyncio.Task[Any]] = set()
        self.follows_master = isinstance(client, aredis.RedisCluster) or hasattr(
            getattr(client, "connection_pool", None), "sentinel_manager"
        )

    async def _take(self, key: Name) -> tuple[Any, Any]:
        client: Any = self._client()
        if isinstance(client, aredis.RedisCluster):
            await client.initialize()
            source: Any = client.get_node_from_key(cast(str, key))
        else:
            source = client.connection_pool
        where = (source.connection_kwargs.get("host"), source.connection_kwargs.get("port"))
        try:
            return where, self._idle[where].pop()
        except IndexError:
            return where, source.connection_class(**settings(source.connection_kwargs))

    async def ask(self, key: Name, step: Ask) -> Any:
        if not step.waiting:
            return await self._ask_where_it_is(key, step)
        limit = None if step.deadline is None else max(0.0, step.deadline - now())
        try:
            async with asyncio.timeout(limit):
                await self._waiting.acquire()
        except TimeoutError:
            raise NoAnswer(
                f"{MAX_WAITING} requests of this client wait already", sent=False
            ) from None
        try:
            return await self._ask_where_it_is(key, step)
        finally:
            self._waiting.release()

    async def _ask_where_it_is(self, key: Name, step: Ask) -> Any:
        for _ in range(5):
            try:
                return await self._ask(key, step)
            except Refused as refused:
                if refused.code != "MOVED":
                    raise
                await self.rediscover()  # a node that redirects has done nothing
        return await self._ask(key, step)

    async def _ask(self, key: Name, step: Ask) -> Any:
        sent, connection, where = False, None, None
        try:
            async with asyncio.timeout(max(0.01, step.patience)):
                where, connection = await self._take(key)
                await _ready(connection)
            command, limit = step.build()
            sent = True
            async with asyncio.timeout(limit):
                await connection.send_command(*command, check_health=False)
                reply = await connection.read_response(timeout=float("inf"))
        except theirs.ResponseError as error:
            self._idle[where].append(connection)
            raise translated(error, sent) from None
        except BaseException as error:
            if connection is not None:
                await connection.disconnect(nowait=True)
            raise (translated(error, sent) if isinstance(error, Exception) else error) from None
        else:
            self._idle[where].append(connection)
            return reply

    async def rediscover(self) -> None:
        client = self._client()
        try:
            if isinstance(client, aredis.RedisCluster):
                await client.nodes_manager.initialize()
        except (theirs.RedisError, OSError):
            pass

    async def close(self) -> None:
        for idle in self._idle.values():
            while idle:
                await idle.pop().disconnect()

    async def run(self, client: Any, steps: Steps, key: Name) -> Any:
        """Carries out the steps. `client` is only kept alive by this."""
        send, value = steps.send, None
        try:
            while True:
                step = send(value)
                send, value = steps.send, None
                try:
                    if isinstance(step, Ask):
                        value = await self.ask(key, step)
                    elif isinstance(step, Sleep):
                        await asyncio.sleep(max(0.0, step.seconds))
                    else:
                        await self.rediscover()
                except BaseException as error:
                    send, value = steps.throw, error
        except StopIteration as end:
            return end.value

    def background(self, client: Any, steps: Steps, key: Name) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(self.run(client, steps, key))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _ready(connection: Any) -> None:
    """Connects; a connection that the server closed meanwhile is made again."""
    await connection.connect()
    try:
        stale = await connection.can_read_destructive()
    except theirs.ConnectionError:
        stale = True
    if stale:
        await connection.disconnect()
        await connection.connect()


_links: weakref.WeakKeyDictionary[Any, _Link] = weakref.WeakKeyDictionary()


def _link(client: Any) -> _Link:
    if not isinstance(client, (aredis.Redis, aredis.RedisCluster)):
        raise InvalidRequest("a redis.asyncio.Redis or redis.asyncio.RedisCluster is needed")
    return _links.setdefault(client, _Link(client))


async def close(client: Any) -> None:
    """Closes the idle connections that locks of this client have used."""
    await _link(client).close()


class Held(HeldBase):
    """A lock that is held. `async with` releases it, and cancels its body when the lock is lost."""

    def __init__(self, client: Any, link: _Link, hold: Hold, keeper: Any = None) -> None:
        super().__init__(client, hold)
        self._link = link
        self._keeper: asyncio.Task[Any] = keeper or link.background(
            client, _core.keeping(hold), hold.request.keys[0]
        )
        self._body: asyncio.Task[Any] | None = None
        self._interrupted = False

    async def wait_lost(self) -> None:
        """Returns when the lock is lost (or released)."""
        while not self.lost:
            await asyncio.wait([self._keeper], timeout=max(0.0, self._hold.loss_at - now()))

    async def guard(self, *command: Any) -> Any:
        """Runs a command on the server if and only if the lock is held, in one step. Never twice.

        Returns the plain reply. Of a lock with several names, the first one is checked.
        """
        try:
            return await self._link.ask(self._hold.request.keys[0], self._guarded(command))
        except (Refused, NoAnswer) as error:
            explained = explain(error, self._link.follows_master)
            if isinstance(explained, Lost):
                self._hold.gone = True
                self._keeper.cancel()
            raise explained from None

    async def release(self) -> bool:
        """Releases the lock. False: it was lost before. Undelivered, it goes on by itself."""
        was_held, last = self._leave()
        if not last:
            return was_held
        self._keeper.cancel()
        key = self._hold.request.keys[0]
        delivered = self._link.background(self._client, self._releasing(), key)
        await asyncio.wait([delivered], timeout=ANSWER)
        return was_held and not (delivered.done() and delivered.result() is False)

    async def __aenter__(self) -> Held:
        self._body = asyncio.current_task()
        self._keeper.add_done_callback(self._interrupt)
        return self

    def _interrupt(self, _keeper: Any) -> None:
        if not self._released and self._body is not None:
            self._interrupted = True
            self._body.cancel()

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._keeper.remove_done_callback(self._interrupt)
        body, self._body = self._body, None
        held = await self.release()
        interrupted = self._interrupted and body is not None and body.uncancel() == 0
        if interrupted and kind is asyncio.CancelledError:
            raise Lost("the lock was lost, and the work under it was cancelled") from error
        if not held and error is None:
            raise Lost("the lock was lost before it was released")


class Lock(LockBase):
    """`async with Lock(r, "nightly", ttl=10, wait=30) as held:` · may be used again and again."""

    def _prepare(self) -> None:
        self._link = _link(self._client)
        self._entered: dict[Any, list[Held]] = defaultdict(list)

    async def acquire(self) -> Held:
        """Raises Busy when the wait is over. Whatever is raised, nothing is left held."""
        link, request, key = self._link, self._request, self._request.keys[0]
        outer = self._owner._entered(request) if self._owner else None
        if outer:
            again = _core.entering_again(outer._hold, request, link.follows_master)
            await link.run(self._client, again, key)
            held = Held(self._client, link, outer._hold, outer._keeper)
        else:
            steps = _core.acquiring(request, self._give_back, link.follows_master)
            held = Held(self._client, link, await link.run(self._client, steps, key))
        if self._owner:
            self._owner._holds.append(held)
        return held

    def _give_back(self, token: str) -> None:
        request = self._request
        steps = _core.releasing(request, token, now() + request.ttl, False)
        self._link.background(self._client, steps, request.keys[0])

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
