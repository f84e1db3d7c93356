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

from ._errors import Busy, InvalidRequest, LockError, Lost, Unavailable, explain

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


def listed(reply: Any) -> list[Any]:
    """The replies for each key."""
    return reply if isinstance(reply, list) else [reply]


def _is_number(value: object, least: float, most: float) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and least <= value <= most  # type: ignore[operator]


class Link:
    """Our own connections, made as the user's client makes its own. Waiting ones are bounded."""

    # Of the flavours. `source` has the settings of the node that has the key.
    source: Callable[[Name], Work]
    exchange: Callable[[Any, bool, Callable[[], Words], float | None], Work]
    rediscover: Callable[[], Work]

    def __init__(self, client: Any, cluster: type) -> None:
        self.client: Callable[[], Any] = weakref.ref(client)
        self.plain = self
        self.is_cluster = isinstance(client, cluster)
        pool = getattr(client, "connection_pool", None)
        self.follows_master = self.is_cluster or hasattr(pool, "sentinel_manager")
        self.idle: dict[Any, deque[tuple[Any, float]]] = defaultdict(deque)

    async def ask(self, key: Name, build: Callable[[], Words], limit: float | None = ANSWER) -> Any:
        """Sends one command, once, and returns the reply. `build` is called before the sending."""
        sent, redirected = False, 0

        def sending() -> Words:
            nonlocal sent
            sent = True
            return build()

        while True:
            try:
                source = await self.source(key)
                settings = source.connection_kwargs
                idle = self.idle[settings.get("host"), settings.get("port")]
                connection, used = idle.pop() if idle else (_new(source), 0.0)
                reply = await self.exchange(connection, now() < used + FRESH, sending, limit)
                idle.append((connection, now()))
                return reply
            except theirs.MovedError as moved:  # a node that redirects has done nothing
                idle.append((connection, now()))
                sent, redirected = False, redirected + 1
                if redirected > 5:
                    raise explain(moved, sent, True) from None
                await self.rediscover()
            except theirs.ResponseError as error:
                idle.append((connection, now()))
                raise explain(error, sent, self.follows_master) from None
            except Exception as error:
                raise explain(error, sent, self.follows_master) from None


def _new(source: Any) -> Any:
    """A connection with the user's settings, but without retries and health checks."""
    settings = {k: v for k, v in source.connection_kwargs.items() if not k.startswith(_NOT_OURS)}
    settings |= {"socket_timeout": ANSWER, "socket_connect_timeout": ANSWER}
    return source.connection_class(**settings)


class Held:
    """A lock that is held: what is known of it, by the clock of this host."""

    def __init__(self, lock: Lock, link: Any, token: str, reply: Any, sent: float) -> None:
        self._lock, self._link, self._token, self._ttl = lock, link, token, lock._ttl
        self._fence: int = listed(reply)[0]
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
        reply = await self._link.ask(self._lock._keys[0], lambda: command, limit)
        if not all(one == self._fence for one in listed(reply)):
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
            return await self._link.ask(self._lock._keys[0], lambda: words)
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

    async def _release(self) -> bool | None:
        until = max(now(), self._valid_until) + self._ttl / 50
        return await self._lock._release_all(self._link, self._token, until, granted=True)


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
            if not asked & set(mine._keys):
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
        token, sent, reply = secrets.token_hex(16), 0.0, None

        def build() -> Words:
            nonlocal sent
            sent = now()
            return self._acquire_command(token, deadline)

        try:
            if self._wait == 0:
                reply = await link.ask(self._keys[0], build)
            else:
                await link.turn(deadline)
                try:
                    limit = None if deadline is None else max(0.0, deadline - now()) + ANSWER
                    reply = await link.ask(self._keys[0], build, limit)
                finally:
                    link.end_turn()
            if reply is None:
                return None
            granted = held(self, link, token, reply, sent)
            # After a wait, the reply does not say when the grant was made. A command sent now does.
            if granted.valid_for() < self._ttl / 2 and not await granted._extend(self._ttl):
                raise Unavailable("the lease ended before the grant arrived")
            if granted.lost:
                raise Unavailable("the answer took longer than the lease")
            return granted
        except BaseException as error:
            not_sure = getattr(error, "may_be_done", not isinstance(error, LockError))
            if reply is not None or (sent and not_sure):
                until = now() + self._ttl
                await link.in_background(self._release_all(link.plain, token, until, granted=False))
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
                    raise Busy(f"somebody else holds the lock after a wait of {self._wait} s")
                trouble = Unavailable("the server ended the wait early")  # by CLIENT UNBLOCK
            except Unavailable as error:
                trouble = error
            if trouble_since is None or now() - began > 1.0:
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

    async def _release_all(self, link: Any, token: str, until: float, granted: bool) -> bool | None:
        """RELEASE ALL until it is done or the lease is over. Was it held? None: not known.

        After a request without an answer (not `granted`), null is not the end: it may still arrive.
        """
        words, pause = self._command("RELEASE", token, "ALL"), 0.05
        while True:
            try:
                reply = await link.ask(self._keys[0], lambda: words)
                held = all(listed(reply))
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
            pause = min(1.0, pause * 2)
