"""Locks for redis-py's ordinary client."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import redis

from . import _core
from ._core import ANSWER, MAX_OPENING, MAX_WAITING, Name, Sending, Words, Work, now, staying
from ._errors import Cancelled, LockError, Unavailable


def _run(work: Work) -> Any:
    """Runs a coroutine whose steps block: it never pauses."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("a blocking step paused")


class _Link(_core.Link):
    def __init__(self, client: Any) -> None:
        super().__init__(client, redis.RedisCluster)
        self.waiting = threading.BoundedSemaphore(MAX_WAITING)
        self.opening = threading.BoundedSemaphore(MAX_OPENING)

    async def source(self, key: Name) -> Any:
        client: Any = self.client()
        if self.is_cluster:
            client = client.get_redis_connection(client.get_node_from_key(key))
        return client.connection_pool

    async def open(self, connection: Any) -> None:
        connection.connect()

    async def is_stale(self, connection: Any) -> bool:
        try:
            return connection._sock is None or connection.can_read(0)
        except redis.ConnectionError:
            return True

    async def exchange(
        self, sending: Sending, build: Callable[[], Words], limit: float | None
    ) -> Any:
        connection = sending.connection
        try:
            self.uses(connection)
            words, sending.is_sent = build(), True
            connection.send_command(*words, check_health=False)
            if limit != ANSWER:
                end = None if limit is None else now() + limit
                while not connection.can_read(60.0 if end is None else max(0.0, end - now())):
                    if end is not None and now() >= end:
                        raise TimeoutError("the server does not reply")
            return connection.read_response()
        finally:
            self.uses(None)

    async def is_refused(self, connection: Any) -> bool:
        if connection._sock is None:
            return False
        try:
            return connection.can_read(0) and connection.read_response() is None
        except redis.ResponseError:
            return True
        except (redis.RedisError, OSError):
            return False

    async def cut(self, connection: Any) -> None:
        connection.disconnect()

    def uses(self, connection: Any) -> None:
        """The caller of an acquire knows it, so that it can be cancelled."""

    async def rediscover(self) -> None:
        if self.is_cluster:
            try:
                self.client().nodes_manager.initialize()
            except Exception:  # of several kinds if no node answers; the next attempt does it again
                pass

    async def sleep(self, seconds: float) -> None:
        threading.Event().wait(max(0.0, seconds))

    async def in_background(
        self, release: Callable[[float], Work], until: float, stay: float
    ) -> None:
        """In a thread, which keeps the client alive, but not the process: so the caller stays for
        the first answer."""

        def run(_client: Any = self.client()) -> None:  # noqa: B008 it is the client of now
            _run(release(until))

        thread = threading.Thread(target=run, name="redislock-release", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # too many threads: once, in this one
            _run(release(0.0))
        else:
            thread.join(stay)

    def close(self) -> None:
        for idle in self.idle.values():
            while idle:
                idle.pop()[0].disconnect()


class _Caller(_Link):
    """The link as one acquire sees it: another thread can cancel it."""

    def __init__(self, link: _Link) -> None:
        self.__dict__.update(link.__dict__)
        self.cancelled = threading.Event()
        self.in_use: Any = None
        self.mutex = threading.Lock()

    def check(self) -> None:
        if self.cancelled.is_set():
            raise Cancelled("the acquire was cancelled")

    def begins(self, key: Name, undo: Words) -> None:
        self.undo = (key, undo)

    async def turn(self, turns: Any, deadline: float | None, full: str) -> None:
        while not turns.acquire(timeout=0.1):
            self.check()
            if deadline is not None and now() >= deadline:
                raise Unavailable(full)

    async def ask(self, *request: Any) -> Any:
        try:
            reply = await super().ask(*request)
        except Unavailable:
            self.check()
            raise
        if reply is None:
            self.check()
        return reply

    def uses(self, connection: Any) -> None:
        with self.mutex:
            self.in_use = connection
        if connection is not None:
            self.check()

    async def sleep(self, seconds: float) -> None:
        self.cancelled.wait(max(0.0, seconds))
        self.check()

    def cancel(self) -> None:
        with self.mutex:
            self.cancelled.set()
            in_use = self.in_use
        if in_use is not None:
            work, name = self.end_wait, "redislock-cancel"
            thread = threading.Thread(target=work, args=(in_use,), name=name, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # too many threads
                self.end_wait(in_use)

    def end_wait(self, in_use: Any) -> None:
        """A wait that is released ends with null. If it does not, its connection is cut."""
        try:
            _run(self.plain.call(*self.undo))
        except LockError:
            pass
        until = now() + ANSWER
        while self.in_use is in_use and now() < until:
            time.sleep(0.01)
        if self.in_use is not in_use:
            return
        if sock := getattr(in_use, "_sock", None):
            try:
                sock.shutdown(2)  # wakes up the thread that reads
            except OSError:
                pass


class _Keeper:
    """One thread that renews what this process holds. A renewal itself has a thread of its own."""

    def __init__(self) -> None:
        self.due: dict[Held, float] = {}
        self.wakes_at = float("inf")
        self.change = threading.Condition()
        self.thread: threading.Thread | None = None

    def add(self, held: Held, due: float) -> None:
        with self.change:
            self.due[held] = due
            if due < self.wakes_at:  # seldom: a hold that ends soon wakes nobody
                self.wakes_at = due
                self.change.notify()

    def start(self) -> None:
        if self.thread is not None:
            return
        with self.change:
            if self.thread is None:
                thread = threading.Thread(target=self.run, name="redislock", daemon=True)
                thread.start()
                self.thread = thread

    def remove(self, held: Held) -> None:
        self.due.pop(held, None)

    def run(self) -> None:
        while True:
            with self.change:
                self.change.wait(min(max(0.0, self.wakes_at - now()), 3600.0))
                if now() < self.wakes_at:
                    continue
                ready = [held for held, due in self.due.copy().items() if due <= now()]
                for held in ready:
                    self.remove(held)
                self.wakes_at = min(self.due.copy().values(), default=float("inf"))
            for held in ready:
                try:
                    threading.Thread(target=self.renew, args=(held,), daemon=True).start()
                except RuntimeError:  # too many threads: later, or the loss is reported
                    self.add(held, now() + held._ttl / 20)

    def renew(self, held: Held) -> None:
        due = _run(held._renew())
        if due is not None:
            self.add(held, due)


_links: weakref.WeakKeyDictionary[Any, _Link] = weakref.WeakKeyDictionary()
_links_mutex = threading.Lock()
_keeper = _Keeper()


def _after_fork() -> None:
    """Connections and holds belong to the parent, and its threads are not here."""
    global _links, _links_mutex, _keeper
    _links, _links_mutex, _keeper = weakref.WeakKeyDictionary(), threading.Lock(), _Keeper()


os.register_at_fork(after_in_child=_after_fork)


def _link(client: Any) -> _Link:
    with _links_mutex:
        if client not in _links:
            _links[client] = _Link(client)
        return _links[client]


def close(client: Any) -> None:
    """Closes the idle connections that locks of this client have used."""
    _link(client).close()


class Held(_core.Held):
    """A lock that is held. `with` releases it."""

    def __init__(self, lock: Any, link: Any, token: str, reply: Any, sent: float) -> None:
        super().__init__(lock, link, token, reply, sent)
        self._ended = threading.Event()

    def _end(self) -> None:
        super()._end()
        _keeper.remove(self._first)
        self._ended.set()

    def wait_lost(self, timeout: float | None = None) -> bool:
        """Waits until the lock is lost or released: True; for `timeout` seconds at most: False."""
        end = float("inf") if timeout is None else now() + timeout
        while not self.lost and now() < end:
            left = min(end, self._loss_at) - now()
            self._ended.wait(max(0.0, min(1.0, left)))  # the host may sleep
        return self.lost

    def guard(self, *command: Any) -> Any:
        """Runs a command on the server if and only if the lock is held, in one step. Never twice.

        Returns the plain reply. Of a lock with several names, the first one is checked.
        """
        return _run(self._guard(command))

    def release(self) -> bool:
        """Releases the lock. False: it was lost before. Undelivered, it goes on by itself."""
        was_held, last = self._leave()
        if not last:
            return was_held
        try:
            return _run(self._lock._release_once(self._link, self._token)) and was_held
        except BaseException as error:
            _run(self._link.in_background(self._release, self._over_at, staying(error)))
            if isinstance(error, LockError):
                return was_held
            raise

    def __enter__(self) -> Held:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if not self._is_left:  # the body may have released it
            self._report(self.release(), error)


class Lock(_core.Lock):
    """`with Lock(r, "nightly", ttl=10, wait=30) as held:` · may be used again and again."""

    _clients = (redis.Redis, redis.RedisCluster)
    _needs = "a redis.Redis or redis.RedisCluster (redislock.asyncio takes those of redis.asyncio)"

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._callers: set[_Caller] = set()
        self._entered = threading.local()

    def acquire(self) -> Held:
        """Raises Busy when the wait is over. An exception of any kind leaves nothing held."""
        link = _link(self._client)
        if self._every is not None:
            _keeper.start()  # if it cannot, nothing is held yet
        caller = _Caller(link)
        self._callers.add(caller)
        try:
            held: Held = _run(self._enter(caller, Held))
        finally:
            self._callers.discard(caller)
        held._link = link
        if held is held._first:
            if self._owner:
                self._owner._holds.append(held)
            if self._every is not None:
                _keeper.add(held, held._confirmed + self._every)
        return held

    def cancel(self) -> None:
        """Ends every acquire() of this Lock that waits in another thread: it raises Cancelled."""
        for caller in tuple(self._callers):
            caller.cancel()

    def __enter__(self) -> Held:
        held = self.acquire()
        self._entered.__dict__.setdefault("stack", []).append(held)
        return held

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._entered.stack.pop().__exit__(kind, error, trace)
