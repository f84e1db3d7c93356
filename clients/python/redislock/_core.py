"""What a correct client does, written once as coroutines.

`asyncio` awaits them in a loop. `_sync` has blocking connections: there, a coroutine never pauses,
and runs to its end in one step.
"""

from __future__ import annotations

import os
import random
import secrets
import time
import weakref
from asyncio import CancelledError
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import redis.exceptions as theirs

from ._errors import Busy, InvalidRequest, LockError, Lost, Misconfigured, Unavailable, explain

ANSWER = 2.0  # seconds in which a healthy server answers
PATIENCE = 30.0  # seconds without a server after which `wait=None` gives up
FRESH = 0.1  # seconds after its use in which a connection is not looked at before the next one
MAX_WAITING = 100  # connections that wait in the server's queues, for each client
Name = str | bytes
Words = list[Any]
Work = Coroutine[Any, Any, Any]

# CLOCK_BOOTTIME goes on while the host sleeps; the lease on the server does, too.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
# Settings of the user's client that would retry or time out behind our back, or need its pool.
_NOT_OURS = ("retry", "health_check_interval", "himport", "maint", "oss_cluster", "orig_", "cache")


def now() -> float:
    return time.clock_gettime(_CLOCK)


def _is_number(value: object, least: float, most: float) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and least <= value <= most  # type: ignore[operator]


class Link:
    """Our own connections, made as the user's client makes its own. Waiting ones are bounded."""

    # Of the flavours. `source` has the settings of the node that has the key, `cut` closes a
    # connection at once; `is_refused`: is a reply here, and null or an error?
    source: Callable[[Name], Work]
    exchange: Callable[[Any, bool, Callable[[], Words], float | None], Work]
    is_refused: Callable[[Any], Work]
    cut: Callable[[Any], Work]
    rediscover: Callable[[], Work]

    def __init__(self, client: Any, cluster: type) -> None:
        self.client: Callable[[], Any] = weakref.ref(client)
        self.plain = self
        self.is_cluster = isinstance(client, cluster)
        pool = getattr(client, "connection_pool", None)
        self.follows_master = self.is_cluster or hasattr(pool, "sentinel_manager")
        self.idle: dict[Any, deque[tuple[Any, float]]] = defaultdict(deque)

    async def tell(self, key: Name, words: Words, limit: float | None = ANSWER) -> Any:
        """Sends one command, once, and returns the reply."""
        try:
            return await self.ask(key, lambda: words, limit)
        except BaseException as error:
            if sending := getattr(error, "sending", None):
                await self.cut(sending)
            raise

    async def ask(self, key: Name, build: Callable[[], Words], limit: float | None) -> Any:
        """The same for a command that is built just before the sending.

        The exception of a command without an answer has a `sending`: a connection that is to be
        cut.
        """
        redirected = 0
        while True:
            connection, sent = None, False

            def sending() -> Words:
                nonlocal sent
                sent = True
                return build()

            try:
                source = await self.source(key)
                settings = source.connection_kwargs
                idle = self.idle[settings.get("host"), settings.get("port")]
                connection, used = _taken(idle) or (_new(source), 0.0)
                reply = await self.exchange(connection, now() < used + FRESH, sending, limit)
                await self.keep(idle, connection)
                return reply
            except theirs.ResponseError as error:
                if connection is not None:
                    await self.keep(idle, connection)
                redirected += 1
                if not (self.is_cluster and isinstance(error, theirs.MovedError)) or redirected > 5:
                    raise explain(error, self.follows_master) from None
                await self.rediscover()  # a node that redirects has done nothing
            except BaseException as error:
                known: Any = explain(error, self.follows_master)
                if sent and not isinstance(error, theirs.DataError):
                    known.sending = connection
                elif connection is not None:
                    await self.cut(connection)
                raise known from None

    async def keep(self, idle: deque[tuple[Any, float]], connection: Any) -> None:
        if len(idle) < MAX_WAITING:
            idle.append((connection, now()))
        else:
            await self.cut(connection)

    def begins(self, key: Name, undo: Words) -> None:
        """An attempt begins, which `undo` ends."""


def _taken(idle: deque[tuple[Any, float]]) -> tuple[Any, float] | None:
    try:
        return idle.pop()
    except IndexError:  # perhaps another thread was faster
        return None


def _new(source: Any) -> Any:
    """A connection with the user's settings, but without retries and health checks."""
    settings = {k: v for k, v in source.connection_kwargs.items() if not k.startswith(_NOT_OURS)}
    settings |= {"socket_timeout": ANSWER, "socket_connect_timeout": ANSWER}
    return source.connection_class(**settings)


class Held:
    """A lock that is held: what is known of it, by the clock of this host."""

    def __init__(self, lock: Lock, link: Any, token: str, reply: Any, sent: float) -> None:
        self._lock, self._link, self._token, self._ttl = lock, link, token, lock._ttl
        fences = lock._each(reply)
        if not all(type(fence) is int and fence == fences[0] for fence in fences):
            raise Misconfigured(f"the server's reply {reply!r} is not a fence")
        self._fence: int = fences[0]
        self._confirmed, self._valid_until, self._entries, self._gone = sent, 0.0, 1, False
        self._process = os.getpid()
        self._confirm(sent, self._ttl)

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
        reply = await self._link.tell(self._lock._keys[0], command, limit)
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
        except LockError:
            await self._link.rediscover()
            return None if self.lost else now() + self._ttl / 20
        return None if self.lost else self._confirmed + (self._lock._every or 0)

    async def _guard(self, command: Sequence[Any]) -> Any:
        self.check()
        words = ["LOCK.GUARD", self._lock._keys[0], self._token, *command]
        try:
            return await self._link.tell(self._lock._keys[0], words)
        except Lost:
            self._end()
            raise

    def _leave(self) -> tuple[bool, bool]:
        """Whether it was held until now, and whether it is to be released on the server."""
        if not self._entries or os.getpid() != self._process:
            return False, False  # a child process does not release what its parent holds
        was_held = not self.lost
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

    async def _release(self) -> bool | None:
        until = max(now(), self._valid_until) + self._ttl / 50
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
        token, sent = secrets.token_hex(16), 0.0

        def build() -> Words:
            nonlocal sent
            sent = now()
            return self._acquire_command(token, deadline)

        link.begins(self._keys[0], self._command("RELEASE", token, "ALL"))
        try:
            if self._wait == 0:
                reply = await link.ask(self._keys[0], build, ANSWER)
            else:
                await link.turn(deadline)
                try:
                    limit = None if deadline is None else max(0.0, deadline - now()) + ANSWER
                    reply = await link.ask(self._keys[0], build, limit)
                finally:
                    link.end_turn()
        except BaseException as error:
            if sending := getattr(error, "sending", None):
                until = now() + self._ttl
                await link.in_background(self._release_all(link.plain, token, until, sending))
            raise
        if reply is None:
            return None
        try:
            granted = held(self, link, token, reply, sent)
            # After a wait, the reply does not say when the grant was made. A command sent now does.
            if granted.valid_for() < self._ttl / 2 and not await granted._extend(self._ttl):
                raise Unavailable("the lease ended before the grant arrived")
            if granted.lost:
                raise Unavailable("the reply took longer than the lease")
            return granted
        except BaseException:
            until = now() + self._ttl
            await link.in_background(self._release_all(link.plain, token, until))
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
            if now() + rest >= (trouble_since + PATIENCE if deadline is None else deadline):
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
        outer._entries += 1
        return outer

    async def _release_all(
        self, link: Any, token: str, until: float, sending: Any = None
    ) -> bool | None:
        """RELEASE ALL until it is done or the lease is over. Was it held? None: not known.

        A request without an answer (`sending`) may still arrive, so null is not the end. But a wait
        that is released ends with null: once that is here, nothing can come any more.
        """
        granted, cut_at, pause = sending is None, now() + ANSWER, 0.05
        try:
            while True:
                try:
                    held = await self._release_once(link, token)
                    if granted or held:
                        return held
                except LockError:
                    await link.rediscover()
                if now() + pause > until:
                    return None
                try:
                    await link.sleep(pause)
                except CancelledError:  # the loop ends: a last one, at once
                    until = 0.0
                if sending is not None and await link.is_refused(sending):
                    return None
                if sending is not None and now() > cut_at:
                    await link.cut(sending)
                    sending = None
                pause = min(1.0, pause * 2)
        finally:
            if sending is not None:
                await link.cut(sending)

    async def _release_once(self, link: Any, token: str) -> bool:
        reply = await link.tell(self._keys[0], self._command("RELEASE", token, "ALL"))
        return all(self._each(reply))
