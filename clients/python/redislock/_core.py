"""What a correct client does, written once as coroutines.

`asyncio` awaits them in a loop. `_sync` has blocking connections: there, a coroutine never pauses,
and runs to its end in one step.
"""

from __future__ import annotations

import os
import random
import time
import uuid
import weakref
from asyncio import CancelledError
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import redis.exceptions as theirs

from ._errors import (
    Busy,
    Cancelled,
    InvalidRequest,
    LockError,
    Lost,
    Misconfigured,
    Unavailable,
    explain,
)

ANSWER = 2.0  # seconds in which a healthy server answers
PATIENCE = 30.0  # seconds without a server after which `wait=None` gives up
LINGER = 1.0  # seconds that a cancelled caller stays, for the first answer to its release
FRESH = 0.1  # seconds after its use in which a connection is not looked at before the next one
MAX_WAITING = 100  # connections that wait in the server's queues, for each client
MAX_OPENING = 10  # connections that attempts open at once: a busy machine opens a few soon
Name = str | bytes
Words = list[Any]
Work = Coroutine[Any, Any, Any]

# CLOCK_BOOTTIME goes on while the host sleeps; the lease on the server does, too.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
# Settings of the user's client that would retry or time out behind our back, or need its pool.
_NOT_OURS = ("retry", "health_check_interval", "himport", "maint", "oss_cluster", "orig_", "cache")


def now() -> float:
    return time.clock_gettime(_CLOCK)


def staying(error: BaseException) -> float:
    """Seconds that a caller stays for the first answer to its release: it may end the process."""
    is_cancelled = isinstance(error, Cancelled) or not isinstance(error, Exception)
    return LINGER if is_cancelled else LINGER / 10


def _is_number(value: object, least: float, most: float) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and least <= value <= most  # type: ignore[operator]


class Link:
    """Our own connections, made as the user's client makes its own. Waiting ones are bounded."""

    # Of the flavours. `source` has the settings of the node that has the key, `open` connects,
    # `is_stale`: has the server closed it? `cut` closes a connection at once; `is_refused`: is a
    # reply here, and null or an error?
    source: Callable[[Name], Work]
    turn: Callable[[Any, float | None, str], Work]
    open: Callable[[Any], Work]
    is_stale: Callable[[Any], Work]
    exchange: Callable[[Sending, Callable[[], Words], float | None], Work]
    is_refused: Callable[[Any], Work]
    cut: Callable[[Any], Work]
    rediscover: Callable[[], Work]
    opening: Any  # a semaphore

    def __init__(self, client: Any, cluster: type) -> None:
        self.client: Callable[[], Any] = weakref.ref(client)
        self.plain = self
        self.is_cluster = isinstance(client, cluster)
        pool = getattr(client, "connection_pool", None)
        self.follows_master = self.is_cluster or hasattr(pool, "sentinel_manager")
        self.idle: dict[Any, deque[tuple[Any, float]]] = defaultdict(deque)
        self.opened_at = now()  # the last connection

    async def call(self, key: Name, words: Words, limit: float | None = ANSWER) -> Any:
        """Sends one command, once, and returns the reply."""
        sending = Sending()
        try:
            return await self.ask(key, lambda: words, limit, sending)
        finally:
            if sending.connection is not None:
                await self.cut(sending.connection)

    async def ask(
        self,
        key: Name,
        build: Callable[[], Words],
        limit: float | None,
        sending: Sending,
        may_queue: bool = False,
    ) -> Any:
        """The same for a command that is built just before the sending, and that may have to queue
        for a connection: a renewal or a release never does. The caller looks after `sending`."""
        redirected = 0
        while True:
            try:
                source = await self.source(key)
                settings = source.connection_kwargs
                idle = self.idle[settings.get("host"), settings.get("port")]
                if not await self.take(idle, sending, may_queue):
                    await self.connect(source, idle, sending, may_queue)
                reply = await self.exchange(sending, build, limit)
                await self.keep(idle, sending)
                return reply
            except theirs.ResponseError as error:
                sending.is_sent = False  # the server has done nothing
                if sending.connection is not None:
                    await self.keep(idle, sending)
                redirected += 1
                if not (self.is_cluster and isinstance(error, theirs.MovedError)) or redirected > 5:
                    raise explain(error, self.follows_master) from None
                await self.rediscover()
            except BaseException as error:
                sending.is_sent = sending.is_sent and not isinstance(error, theirs.DataError)
                raise explain(error, self.follows_master) from None

    async def take(self, idle: deque[tuple[Any, float]], sending: Sending, leave: bool) -> bool:
        """An idle connection that the server has not closed meanwhile, if there is one. An attempt
        leaves one for a release: waiters must not take it from the holder."""
        while (taken := _taken(idle, int(leave))) is not None:
            sending.connection, used = taken
            if now() < used + FRESH or not await self.is_stale(sending.connection):
                return True
            await self.cut(sending.connection)
        sending.connection = None
        return False

    async def connect(
        self, source: Any, idle: deque[tuple[Any, float]], sending: Sending, may_queue: bool
    ) -> None:
        if may_queue:
            await self.turn(self.opening, now() + ANSWER, "opening a connection takes too long")
        try:
            if not await self.take(idle, sending, may_queue):
                sending.connection = _new(source)
                await self.open(sending.connection)
                self.plain.opened_at = now()
        finally:
            if may_queue:
                self.opening.release()

    async def keep(self, idle: deque[tuple[Any, float]], sending: Sending) -> None:
        connection, sending.connection = sending.connection, None
        if len(idle) < MAX_WAITING:
            idle.append((connection, now()))
        else:
            await self.cut(connection)

    def begins(self, key: Name, undo: Words) -> None:
        """An attempt begins, which `undo` ends."""

    def check(self) -> None:
        """Raises if another thread has cancelled this acquire."""


class Sending:
    """A command: its connection while that is not used for others, and whether it was sent."""

    connection: Any = None
    is_sent = False


def _taken(idle: deque[tuple[Any, float]], leave: int) -> tuple[Any, float] | None:
    try:
        return idle.pop() if len(idle) > leave else None
    except IndexError:  # perhaps another thread was faster
        return None


def _new(source: Any) -> Any:
    """A connection with the user's settings, but without retries and health checks."""
    settings = {k: v for k, v in source.connection_kwargs.items() if not k.startswith(_NOT_OURS)}
    settings |= {"socket_timeout": ANSWER, "socket_connect_timeout": ANSWER}
    return source.connection_class(**settings)


class Held:
    """A lock that is held: what is known of it, by the clock of this host."""

    # Every entry of an owner is an object, with the same `__dict__`: each is released once.
    __slots__ = ("__dict__", "__weakref__", "_is_left")

    def __init__(self, lock: Lock, link: Any, token: str, reply: Any, sent: float) -> None:
        self._lock, self._link, self._token, self._ttl = lock, link, token, lock._ttl
        fences = lock._each(reply)
        if not all(type(fence) is int and fence == fences[0] for fence in fences):
            raise Misconfigured(f"the server's reply {reply!r} is not a fence")
        self._fence: int = fences[0]
        self._confirmed, self._valid_until, self._entries, self._gone = sent, 0.0, 1, False
        self._process, self._is_left = os.getpid(), False
        self._first = self  # of the entries
        self._confirm(sent, self._ttl)

    def _entered_again(self) -> Any:
        entry = object.__new__(type(self))
        entry.__dict__, entry._is_left = self.__dict__, False
        self._entries += 1
        return entry

    @property
    def fence(self) -> int:
        """Grows from holder to holder. Show it to the resource that the lock protects."""
        return self._fence

    @property
    def lost(self) -> bool:
        """True from a little before the lock may pass to somebody else."""
        self._gone = self._gone or now() >= self._loss_at or os.getpid() != self._process
        return self._gone

    def valid_for(self) -> float:
        """Seconds for which nobody else is granted the lock."""
        return 0.0 if self._gone else max(0.0, self._valid_until - now())

    def check(self) -> None:
        """Raises Lost if the lock is lost. Call it before steps that need the lock."""
        if self.lost:
            raise Lost("the lock is no longer held")

    @property
    def _loss_at(self) -> float:
        return self._valid_until - self._ttl / 10

    def _end(self) -> None:
        self._gone = True

    def _confirm(self, sent: float, ttl: float) -> None:
        """The lease began after `sent`, so it does not end before this. A loss is final."""
        if not self._gone:
            self._confirmed = max(self._confirmed, sent)
            self._valid_until = max(self._valid_until, sent + ttl - ttl / 100 - 0.002)

    async def _extend(self, ttl: float, limit: float = ANSWER) -> bool:
        """Sends EXTEND and counts from there. Returns whether this hold is still there."""
        sent = now()
        command = self._lock._command("EXTEND", self._token, round(ttl * 1000))
        reply = await self._link.call(self._lock._keys[0], command, limit)
        if not all(one == self._fence for one in self._lock._each(reply)):
            return False
        self._confirm(sent, ttl)
        return True

    async def _renew(self) -> float | None:
        """One renewal. Returns when the next one is due; None if the lock is lost."""
        try:
            left = max(0.001, min(ANSWER, self._loss_at - now()))
            if not await self._extend(self._ttl, left):
                self._end()
        except Exception:  # of any kind: the next one may succeed
            await self._link.rediscover()
            return None if self.lost else now() + self._ttl / 20
        return None if self.lost else self._confirmed + (self._lock._every or 0)

    async def _guard(self, command: Sequence[Any]) -> Any:
        self.check()
        words = ["LOCK.GUARD", self._lock._keys[0], self._token, *command]
        try:
            return await self._link.call(self._lock._keys[0], words)
        except Lost:
            self._end()
            raise

    def _leave(self) -> tuple[bool, bool]:
        """Whether it was held until now, and whether it is to be released on the server."""
        if self._is_left or os.getpid() != self._process:
            return False, False  # a child process does not release what its parent holds
        was_held, self._is_left = not self.lost, True
        self._entries -= 1
        if not self._entries:
            self._end()
        return was_held, not self._entries

    def _report(self, was_held: bool, error: BaseException | None) -> None:
        """At the end of a block: a loss is an exception, or a note to that of the body."""
        if was_held or isinstance(error, Lost):
            return
        if error is None:
            raise Lost("the lock was lost before it was released")
        error.add_note("redislock: the lock was lost before it was released")

    @property
    def _over_at(self) -> float:
        """When the lease is over on the server, too."""
        return max(now(), self._valid_until) + self._ttl / 50

    async def _release(self, until: float) -> bool | None:
        return await self._lock._release_all(self._link, self._token, until)


class Owner:
    """Acquiring with the same owner enters again a lock whose keys the owner holds already.

    An owner stands for one line of work, it is not for threads or tasks side by side.
    """

    def __init__(self) -> None:
        self._holds: list[Any] = []

    def _covering(self, lock: Lock) -> Any:
        """What this owner holds of the keys of the lock: all of them, or none."""
        self._holds = [held for held in self._holds if not held.lost]
        for held in self._holds:
            mine, asked = held._lock, set(lock._keys)
            if mine._client is not lock._client or not asked & set(mine._keys):
                continue
            if not asked <= set(mine._keys):
                raise InvalidRequest("the owner holds some of these keys: release them first")
            if mine._shared and (not lock._shared or lock._limit != mine._limit):
                raise InvalidRequest("the owner holds this lock shared: release it first")
            return held
        return None


class Lock:
    """A request that may be carried out again and again."""

    _clients: tuple[type, ...]  # what the flavour takes
    _needs: str

    def __init__(
        self,
        client: Any,
        name: Name | Sequence[Name],
        *,
        ttl: float = 10.0,
        wait: float | None = None,
        shared: bool = False,
        limit: int | None = None,
        owner: Owner | None = None,
        renew: bool = True,
        renew_every: float | None = None,
        label: str | None = None,
    ) -> None:
        """Asks for nothing yet.

        name: the key, or several keys that are taken all or none.
        ttl: seconds of the lease; it is renewed while the lock is held, unless renew is False.
        wait: seconds to wait at most; 0 tries once, None waits until the lock is free.
        shared, limit: together with other shared holders, at most so many.
        owner: enters again what this owner holds. label: shown by LOCK.INFO.
        """
        if not isinstance(client, self._clients):
            raise InvalidRequest(f"the client must be {self._needs}")
        keys = (name,) if isinstance(name, (str, bytes)) else name
        if not isinstance(keys, (list, tuple)) or not all(
            isinstance(key, (str, bytes)) and key for key in keys
        ):
            raise InvalidRequest("the name of a lock is a str or bytes, or a list of them")
        keys = [key.encode() if isinstance(key, str) else key for key in keys]
        if not 1 <= len(keys) <= 1000 or len(set(keys)) < len(keys):
            raise InvalidRequest("a lock has 1 to 1000 names, none twice")
        if not _is_number(ttl, 0.01, 604_800):
            raise InvalidRequest("ttl must be from 0.01 to 604800 seconds")
        if wait is not None and not _is_number(wait, 0, 1e9):
            raise InvalidRequest("wait must be 0 (try once) or more seconds, or None (no limit)")
        if limit is not None and not (
            shared and isinstance(limit, int) and _is_number(limit, 1, 1_000_000)
        ):
            raise InvalidRequest("limit must be from 1 to 1000000 and needs shared=True")
        if renew_every is not None and not _is_number(renew_every, 0.001, ttl / 2):
            raise InvalidRequest("renew_every must be at least 0.001 and at most half of the ttl")
        self._client, self._keys, self._ttl, self._wait = client, tuple(keys), float(ttl), wait
        self._shared, self._limit, self._owner, self._label = shared, limit, owner, label
        self._every = (renew_every or ttl / 3) if renew else None

    def _command(self, verb: str, token: str, *rest: Any) -> Words:
        if len(self._keys) == 1:
            return [f"LOCK.{verb}", self._keys[0], token, *rest]
        return [f"LOCK.M{verb}", len(self._keys), *self._keys, token, *rest]

    def _each(self, reply: Any) -> list[Any]:
        """The replies for each key. A reply of another form has none of them."""
        replies = reply if len(self._keys) > 1 else [reply]
        is_right = isinstance(replies, list) and len(replies) == len(self._keys)
        return replies if is_right else [None] * len(self._keys)

    def _acquire_command(self, token: str, deadline: float | None) -> Words:
        options: Words = ["ONCE"]
        if self._shared:
            options += ["SHARED"] if self._limit is None else ["SHARED", "LIMIT", self._limit]
        if self._label is not None:
            options += ["OWNER", self._label]
        milliseconds = 0 if deadline is None else int((deadline - now()) * 1000)
        if deadline is None or milliseconds > 0:
            options += ["BLOCK", milliseconds]
        return self._command("ACQUIRE", token, round(self._ttl * 1000), *options)

    async def _attempt(self, link: Any, held: type, deadline: float | None) -> Any:
        """One request with a token of its own, which is never used again. None: busy."""
        # Servers save a lock whose token is a UUID fastest and in the least room.
        token, sent, sending = str(uuid.uuid4()), 0.0, Sending()

        def build() -> Words:
            nonlocal sent
            sent = now()
            return self._acquire_command(token, deadline)

        async def ask() -> Any:
            limit = None if deadline is None else max(0.0, deadline - now()) + ANSWER
            return await link.ask(self._keys[0], build, limit, sending, True)

        link.begins(self._keys[0], self._command("RELEASE", token, "ALL"))
        try:
            if self._wait == 0:
                reply = await ask()
            else:
                full = f"{MAX_WAITING} requests of this client already wait"
                await link.turn(link.waiting, deadline, full)
                try:
                    reply = await ask()
                finally:
                    link.waiting.release()
            if reply is None:
                return None
            granted = held(self, link, token, reply, sent)
            # After a wait, the reply does not say when the grant was made. A command sent now does.
            if granted.valid_for() < self._ttl / 2 and not await granted._extend(self._ttl):
                raise Unavailable("the lease ended before the grant arrived")
            if granted.lost:
                raise Unavailable("the reply took longer than the lease")
            link.check()  # who cancels releases what this token has
            return granted
        except BaseException as error:
            if sending.is_sent:
                release = partial(self._release_all, link.plain, token, sending=sending)
                await link.in_background(release, now() + self._ttl, staying(error))
            elif sending.connection is not None:
                await link.cut(sending.connection)
            raise

    async def _granted(self, link: Any, held: type) -> Any:
        """Attempt after attempt until the lock is granted or the wait is over."""
        deadline = None if self._wait is None else now() + self._wait
        trouble_since, pause = None, 0.05
        while True:
            began = now()
            try:
                if granted := await self._attempt(link, held, deadline):
                    return granted
                if deadline is not None and now() >= deadline - 0.002:
                    raise Busy(f"another client holds the lock after a wait of {self._wait} s")
                trouble = Unavailable("the server ended the wait early")  # by CLIENT UNBLOCK
            except Unavailable as error:
                trouble = error
            if trouble_since is None or now() - began > 3 * ANSWER:  # it was in the queue
                trouble_since, pause = now(), 0.05
            rest = getattr(trouble, "retry_after", pause * random.uniform(0.5, 1.0))
            patient = max(trouble_since, link.plain.opened_at) + PATIENCE
            if now() + rest >= (patient if deadline is None else deadline):
                raise trouble
            pause = min(1.0, pause * 2)
            await link.sleep(rest)
            await link.rediscover()

    async def _enter(self, link: Any, held: type) -> Any:
        """Acquires, or enters again what the owner holds already, for long enough."""
        outer = self._owner._covering(self) if self._owner else None
        if outer is None:
            return await self._granted(link, held)
        ttl = max(outer._ttl, self._ttl)
        if not await outer._extend(ttl) or outer._gone:
            outer._end()
            raise Lost("the owner's hold of this lock was lost")
        outer._ttl = ttl
        return outer._entered_again()

    async def _release_all(
        self, link: Any, token: str, until: float, sending: Sending | None = None
    ) -> bool | None:
        """RELEASE ALL until it is done or the lease is over. Was it held? None: not known.

        A request without an answer (a `sending` that has its connection) may still arrive, so null
        is not the end. But a wait that is released ends with null: once that is here, nothing can
        come any more.
        """
        asked = sending and sending.connection
        answered, cut_at, pause = asked is None, now() + ANSWER, 0.05
        try:
            while True:
                try:
                    held = await self._release_once(link, token)
                    if answered or held:
                        return held
                except LockError:
                    await link.rediscover()
                if now() + pause > until:
                    return None
                try:
                    await link.sleep(pause)
                except CancelledError:  # the loop ends: a last one, at once
                    until = 0.0
                if asked is not None and await link.is_refused(asked):
                    return None
                if asked is not None and now() > cut_at:
                    await link.cut(asked)
                    asked = None
                pause = min(1.0, pause * 2)
        finally:
            if asked is not None:
                await link.cut(asked)

    async def _release_once(self, link: Any, token: str) -> bool:
        reply = await link.call(self._keys[0], self._command("RELEASE", token, "ALL"))
        return all(type(count) is int and count > 0 for count in self._each(reply))
