"""Locks for redis-py's ordinary client."""

from __future__ import annotations

import os
import threading
import weakref
from collections import defaultdict, deque
from typing import Any

import redis

from . import _core
from ._core import Ask, HeldBase, Hold, LockBase, Name, Request, Sleep, Steps, ask, now
from ._errors import Cancelled, InvalidRequest, Lost, NoAnswer, Refused, explain
from ._link import settings, translated

MAX_WAITING = 100  # connections that wait in the server's queues, for each client


class _Link:
    """Our own connections, made as the user's client makes its own. Waiting ones are bounded."""

    def __init__(self, client: Any) -> None:
        self._client = weakref.ref(client)
        self._start()
        self.follows_master = isinstance(client, redis.RedisCluster) or hasattr(
            getattr(client, "connection_pool", None), "sentinel_manager"
        )

    def _start(self) -> None:
        self._process = os.getpid()
        self._idle: dict[Any, deque[Any]] = defaultdict(deque)
        self._waiting = threading.BoundedSemaphore(MAX_WAITING)

    def _take(self, key: Name) -> tuple[Any, Any]:
        client: Any = self._client()
        if isinstance(client, redis.RedisCluster):
            client = client.get_redis_connection(client.get_node_from_key(key))  # type: ignore[no-untyped-call]
        pool = client.connection_pool
        where = (pool.connection_kwargs.get("host"), pool.connection_kwargs.get("port"))
        try:
            return where, self._idle[where].pop()
        except IndexError:
            return where, pool.connection_class(**settings(pool.connection_kwargs))

    def ask(self, key: Name, step: Ask, calling: _Calling | None = None) -> Any:
        if self._process != os.getpid():
            self._start()  # after a fork, the connections belong to the parent
        if not step.waiting:
            return self._ask_where_it_is(key, step, calling)
        while not self._waiting.acquire(timeout=0.1):
            if calling and calling.cancelled:
                raise Cancelled("the acquire was cancelled")
            if step.deadline is not None and now() >= step.deadline:
                raise NoAnswer(f"{MAX_WAITING} requests of this client wait already", sent=False)
        try:
            return self._ask_where_it_is(key, step, calling)
        finally:
            self._waiting.release()

    def _ask_where_it_is(self, key: Name, step: Ask, calling: _Calling | None) -> Any:
        for _ in range(5):
            try:
                return self._ask(key, step, calling)
            except Refused as refused:
                if refused.code != "MOVED":
                    raise
                self.rediscover()  # a node that redirects has done nothing
        return self._ask(key, step, calling)

    def _ask(self, key: Name, step: Ask, calling: _Calling | None) -> Any:
        sent, connection, where = False, None, None
        try:
            where, connection = self._take(key)
            connection.socket_timeout = connection.socket_connect_timeout = max(0.01, step.patience)
            _ready(connection)
            if calling:
                calling.uses(connection)  # cancel() reaches it from here on
            command, limit = step.build()
            sent = True
            connection.send_command(*command, check_health=False)
            end = None if limit is None else now() + limit
            while not connection.can_read(3600.0 if end is None else max(0.0, end - now())):
                if end is not None and now() >= end:
                    raise TimeoutError("the server does not answer")
            reply = connection.read_response()
        except redis.ResponseError as error:
            self._idle[where].append(connection)
            raise translated(error, sent) from None
        except BaseException as error:
            if connection is not None:
                connection.disconnect()
            if calling and calling.cancelled:
                raise Cancelled("the acquire was cancelled") from None
            raise (translated(error, sent) if isinstance(error, Exception) else error) from None
        else:
            self._idle[where].append(connection)
            return reply
        finally:
            if calling:
                calling.uses(None)

    def rediscover(self) -> None:
        client = self._client()
        try:
            if isinstance(client, redis.RedisCluster):
                client.nodes_manager.initialize()
        except (redis.RedisError, OSError):
            pass

    def close(self) -> None:
        for idle in self._idle.values():
            while idle:
                idle.pop().disconnect()

    def run(
        self, steps: Steps, key: Name, stop: threading.Event, calling: _Calling | None = None
    ) -> Any:
        """Carries out the steps; ends early, with None, when `stop` is set in a pause."""
        send, value = steps.send, None
        try:
            while True:
                step = send(value)
                send, value = steps.send, None
                try:
                    if isinstance(step, Ask):
                        value = self.ask(key, step, calling)
                    elif isinstance(step, Sleep):
                        if stop.wait(max(0.0, step.seconds)):
                            return None
                    else:
                        self.rediscover()
                except BaseException as error:
                    send, value = steps.throw, error
        except StopIteration as end:
            return end.value

    def in_background(self, client: Any, steps: Steps, request: Request) -> None:
        """Carries out the steps in a thread, which keeps the client alive, but not the process."""

        def work(_client: Any = client) -> None:
            self.run(steps, request.keys[0], threading.Event())

        threading.Thread(target=work, name="redislock-release", daemon=True).start()


def _ready(connection: Any) -> None:
    """Connects; a connection that the server closed meanwhile is made again."""
    connection.connect()
    try:
        stale = connection.can_read(0)
    except redis.ConnectionError:
        stale = True
    if stale:
        connection.disconnect()
        connection.connect()


class _Calling:
    """The acquire that runs, for cancel() from another thread."""

    def __init__(self) -> None:
        self.cancelled = False
        self.stop = threading.Event()
        self._connection: Any = None
        self._mutex = threading.Lock()

    def uses(self, connection: Any) -> None:
        with self._mutex:
            self._connection = connection
            if connection is not None and self.cancelled:
                raise Cancelled("the acquire was cancelled")

    def cancel(self) -> None:
        with self._mutex:
            self.cancelled = True
            self.stop.set()
            sock = getattr(self._connection, "_sock", None)
            if sock is not None:
                try:
                    sock.shutdown(2)  # wakes up the thread that reads
                except OSError:
                    pass


_links: weakref.WeakKeyDictionary[Any, _Link] = weakref.WeakKeyDictionary()
_links_mutex = threading.Lock()


def _link(client: Any) -> _Link:
    if not isinstance(client, (redis.Redis, redis.RedisCluster)):
        raise InvalidRequest(
            "a redis.Redis or redis.RedisCluster is needed (redislock.asyncio is for the others)"
        )
    with _links_mutex:
        return _links.setdefault(client, _Link(client))


def close(client: Any) -> None:
    """Closes the idle connections that locks of this client have used."""
    _link(client).close()


class Held(HeldBase):
    """A lock that is held. `with` releases it."""

    def __init__(self, client: Any, link: _Link, hold: Hold, stop: threading.Event | None) -> None:
        super().__init__(client, hold)
        self._link = link
        self._stop = stop or threading.Event()
        if stop is None:
            threading.Thread(target=self._keep, name="redislock-keep", daemon=True).start()

    def _keep(self) -> None:
        self._link.run(_core.keeping(self._hold), self._hold.request.keys[0], self._stop)
        self._stop.set()

    def wait_lost(self, timeout: float | None = None) -> bool:
        """Waits until the lock is lost or released: True; for `timeout` seconds at most: False."""
        end = float("inf") if timeout is None else now() + timeout
        while not self.lost and now() < end:
            self._stop.wait(max(0.0, min(end, self._hold.loss_at) - now()))
        return self.lost

    def guard(self, *command: Any) -> Any:
        """Runs a command on the server if and only if the lock is held, in one step. Never twice.

        Returns the plain reply. Of a lock with several names, the first one is checked.
        """
        try:
            return self._link.ask(self._hold.request.keys[0], self._guarded(command))
        except (Refused, NoAnswer) as error:
            explained = explain(error, self._link.follows_master)
            if isinstance(explained, Lost):
                self._hold.gone = True
                self._stop.set()
            raise explained from None

    def release(self) -> bool:
        """Releases the lock. False: it was lost before. Undelivered, it goes on by itself."""
        (was_held, last), request = self._leave(), self._hold.request
        if not last:
            return was_held
        self._stop.set()
        try:
            reply = self._link.ask(request.keys[0], ask(request.release(self._hold.token)))
        except BaseException as error:
            self._link.in_background(self._client, self._releasing(), request)
            if isinstance(error, (Refused, NoAnswer)):
                return was_held
            raise
        return was_held and (all(reply) if isinstance(reply, list) else reply is not None)

    def __enter__(self) -> Held:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if not self.release() and error is None:
            raise Lost("the lock was lost before it was released")


class Lock(LockBase):
    """`with Lock(r, "nightly", ttl=10, wait=30) as held:` · may be used again and again."""

    def _prepare(self) -> None:
        self._link = _link(self._client)
        self._calling: set[_Calling] = set()
        self._entered = threading.local()

    def acquire(self) -> Held:
        """Raises Busy when the wait is over. An exception of any kind leaves nothing held."""
        link, request, calling = self._link, self._request, _Calling()
        outer = self._owner._entered(request) if self._owner else None
        self._calling.add(calling)
        try:
            if outer:
                again = _core.entering_again(outer._hold, request, link.follows_master)
                link.run(again, request.keys[0], threading.Event(), calling)
                held = Held(self._client, link, outer._hold, outer._stop)
            else:
                steps = _core.acquiring(request, self._give_back, link.follows_master)
                hold = link.run(steps, request.keys[0], calling.stop, calling)
                if hold is None:
                    raise Cancelled("the acquire was cancelled")
                held = Held(self._client, link, hold, None)
        finally:
            self._calling.discard(calling)
        if self._owner:
            self._owner._holds.append(held)
        return held

    def _give_back(self, token: str) -> None:
        request = self._request
        steps = _core.releasing(request, token, now() + request.ttl, False)
        self._link.in_background(self._client, steps, request)

    def cancel(self) -> None:
        """Ends every acquire() of this Lock that waits in another thread: it raises Cancelled."""
        for calling in tuple(self._calling):
            calling.cancel()

    def __enter__(self) -> Held:
        held = self.acquire()
        self._entered.__dict__.setdefault("stack", []).append(held)
        return held

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._entered.stack.pop().__exit__(kind, error, trace)
