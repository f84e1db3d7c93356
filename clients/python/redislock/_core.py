"""What a correct client does, without any input or output: `_sync` and `asyncio` carry it out."""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ._errors import (
    Busy,
    InvalidRequest,
    Lost,
    Misconfigured,
    NoAnswer,
    Refused,
    Unavailable,
    explain,
)

# CLOCK_BOOTTIME goes on while the host sleeps; the lease on the server does, too.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
ANSWER = 2.0  # seconds that a healthy server needs for an answer at most
PATIENCE = 30.0  # seconds without a server after which `wait=None` gives up
MAX_TTL = 604_800.0
Name = str | bytes


def now() -> float:
    return time.clock_gettime(_CLOCK)


@dataclass(frozen=True)
class Request:
    """What is asked for, checked."""

    keys: tuple[Name, ...]
    ttl: float
    wait: float | None
    shared: bool
    limit: int | None
    renew_every: float | None
    label: str | None

    @staticmethod
    def checked(
        name: Name | Sequence[Name],
        ttl: float,
        wait: float | None,
        shared: bool,
        limit: int | None,
        renew: bool,
        renew_every: float | None,
        label: str | None,
    ) -> Request:
        keys = (name,) if isinstance(name, (str, bytes)) else name
        if not isinstance(keys, (list, tuple)) or not all(
            isinstance(k, (str, bytes)) and k for k in keys
        ):
            raise InvalidRequest(
                "the name of a lock is a str or bytes that is not empty, or a list of them"
            )
        if not 1 <= len(keys) <= 1000 or len(set(keys)) < len(keys):
            raise InvalidRequest("a lock has 1 to 1000 names, none twice")
        if not _is_number(ttl) or not 0.01 <= ttl <= MAX_TTL:
            raise InvalidRequest(f"ttl must be from 0.01 to {MAX_TTL:.0f} seconds")
        if wait is not None and (not _is_number(wait) or not 0 <= wait <= 1e9):
            raise InvalidRequest(
                "wait must be 0 (try once) or more seconds, or None (until it is free)"
            )
        if limit is not None and (
            not shared
            or isinstance(limit, bool)
            or not isinstance(limit, int)
            or not 1 <= limit <= 1_000_000
        ):
            raise InvalidRequest("limit must be from 1 to 1000000 and needs shared=True")
        if renew_every is not None and (
            not _is_number(renew_every) or not 0 < renew_every <= ttl / 2
        ):
            raise InvalidRequest("renew_every must be above 0 and at most half of the ttl")
        every = (renew_every or ttl / 3) if renew else None
        return Request(tuple(keys), float(ttl), wait, shared, limit, every, label)

    def _command(self, verb: str, token: str, *rest: Any) -> list[Any]:
        if len(self.keys) == 1:
            return [f"LOCK.{verb}", self.keys[0], token, *rest]
        return [f"LOCK.M{verb}", len(self.keys), *self.keys, token, *rest]

    def acquire(self, token: str, wait: float | None) -> list[Any]:
        options: list[Any] = ["ONCE"]
        if self.shared:
            options += ["SHARED"] if self.limit is None else ["SHARED", "LIMIT", self.limit]
        if self.label is not None:
            options += ["OWNER", self.label]
        if wait is None or wait >= 0.001:
            options += ["BLOCK", 0 if wait is None else int(wait * 1000)]
        return self._command("ACQUIRE", token, milliseconds(self.ttl), *options)

    def extend(self, token: str, ttl: float) -> list[Any]:
        return self._command("EXTEND", token, milliseconds(ttl))

    def release(self, token: str) -> list[Any]:
        return self._command("RELEASE", token, "ALL")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


@dataclass
class Hold:
    """A lock that was granted: what is known of it, by the clock of this host."""

    request: Request
    token: str
    fence: int
    valid_until: float
    ttl: float
    entries: int = 1
    gone: bool = False  # lost for certain, or released
    confirmed: float = 0.0  # when the last confirmed command was sent
    mutex: threading.Lock = field(default_factory=threading.Lock)

    def confirm(self, sent: float, ttl: float) -> None:
        """The lease began after `sent`, so it does not end before this. A loss is final."""
        with self.mutex:
            if not self.gone:
                self.confirmed = max(self.confirmed, sent)
                self.valid_until = max(self.valid_until, sent + ttl - ttl / 100 - 0.002)

    @property
    def loss_at(self) -> float:
        """The holder is told of the loss a little before validity ends."""
        return self.valid_until - self.ttl / 10

    def is_lost(self) -> bool:
        with self.mutex:
            self.gone = self.gone or now() >= self.loss_at
            return self.gone


class Ask(NamedTuple):
    """A command; `build` makes it just before it is sent, with the limit for its answer."""

    build: Callable[[], tuple[list[Any], float | None]]
    patience: float = ANSWER  # seconds for getting connected
    waiting: bool = False  # takes one of the connections that may wait
    deadline: float | None = None  # for getting one of those


class Sleep(NamedTuple):
    seconds: float


class Rediscover(NamedTuple):
    """Ask the cluster where its slots are now. Failing to do so is no error."""


Steps = Generator[Ask | Sleep | Rediscover, Any, Any]


def ask(command: list[Any], limit: float = ANSWER) -> Ask:
    return Ask(lambda: (command, limit), limit)


def is_fence(reply: object, fence: int) -> bool:
    return all(one == fence for one in reply) if isinstance(reply, list) else reply == fence


class _Attempt:
    """One request with a token of its own, which nobody has used and nobody will use again."""

    def __init__(self, request: Request, deadline: float | None) -> None:
        self.request, self.deadline = request, deadline
        self.token = secrets.token_hex(16)
        self.sent = 0.0
        self.granted = False

    def build(self) -> tuple[list[Any], float | None]:
        left = None if self.deadline is None else max(0.0, self.deadline - now())
        self.sent = now()
        return self.request.acquire(self.token, left), None if left is None else left + ANSWER

    def steps(self) -> Steps:
        """Returns a Hold, or None: somebody else has the lock."""
        request, ttl = self.request, self.request.ttl
        reply = yield Ask(self.build, ANSWER, request.wait != 0, self.deadline)
        if reply is None:
            return None
        self.granted = True
        fence = reply[0] if isinstance(reply, list) else reply
        hold = Hold(request, self.token, fence, 0.0, ttl)
        hold.confirm(self.sent, ttl)
        if hold.valid_until - now() < ttl / 2:
            # The reply does not say when the grant was made: let a command that is sent now tell.
            sent = now()
            if not is_fence((yield ask(request.extend(self.token, ttl))), fence):
                raise NoAnswer("the lease ended before the grant arrived", sent=True)
            hold.confirm(sent, ttl)
        if hold.is_lost():
            raise NoAnswer("the answer took longer than the lease", sent=True)
        return hold


def acquiring(request: Request, give_back: Callable[[str], None], follows_master: bool) -> Steps:
    """Attempt after attempt until the lock is granted or the wait is over."""
    deadline = None if request.wait is None else now() + request.wait
    trouble_since: float | None = None
    pause = 0.05
    while True:
        attempt = _Attempt(request, deadline)
        began = now()
        try:
            hold = yield from attempt.steps()
        except Refused as refused:
            error = explain(refused, follows_master)
            if attempt.granted:  # it is the EXTEND after the grant that was refused
                give_back(attempt.token)
        except NoAnswer as silence:
            error = explain(silence, follows_master)
            if silence.sent or attempt.granted:
                give_back(attempt.token)
        except BaseException:
            if attempt.sent:
                give_back(attempt.token)
            raise
        else:
            if hold is not None:
                return hold
            if deadline is not None and now() >= deadline - 0.001:
                raise Busy(f"somebody else holds the lock after a wait of {request.wait} s")
            error = Unavailable("the server ended the wait early")  # CLIENT UNBLOCK, for example
        if not isinstance(error, Unavailable):
            raise error from None
        if now() - began > 1.0 or trouble_since is None:
            trouble_since, pause = now(), 0.05
        rest = getattr(error, "retry_after", 0.0) or pause * random.uniform(0.5, 1.0)
        end = trouble_since + PATIENCE if deadline is None else deadline
        if now() + rest >= end:
            raise error from None
        pause = min(1.0, pause * 2)
        yield Sleep(rest)
        yield Rediscover()


def entering_again(hold: Hold, request: Request, follows_master: bool) -> Steps:
    """The owner holds these keys already: make sure of it, and for long enough."""
    ttl, sent = max(hold.ttl, request.ttl), now()
    try:
        reply = yield ask(hold.request.extend(hold.token, ttl))
    except (Refused, NoAnswer) as error:
        raise explain(error, follows_master) from None
    if not is_fence(reply, hold.fence) or hold.gone:
        hold.gone = True
        raise Lost("the owner's hold of this lock was lost")
    hold.ttl = ttl
    hold.confirm(sent, ttl)
    hold.entries += 1


def keeping(hold: Hold) -> Steps:
    """Renews the hold until it is lost. The caller stops it at the release."""
    every = hold.request.renew_every
    while not hold.is_lost():
        if every is None:
            yield Sleep(hold.loss_at - now())
            continue
        yield Sleep(min(hold.confirmed + every, hold.loss_at) - now())
        while not hold.is_lost():
            sent, ttl = now(), hold.ttl
            try:
                reply = yield ask(
                    hold.request.extend(hold.token, ttl), min(ANSWER, hold.loss_at - sent)
                )
            except (Refused, NoAnswer):
                yield Sleep(min(ttl / 20, hold.loss_at - now()))
                yield Rediscover()
                continue
            if is_fence(reply, hold.fence):
                hold.confirm(sent, ttl)
            else:
                hold.gone = True
            break
    hold.gone = True


def releasing(request: Request, token: str, until: float, granted: bool) -> Steps:
    """RELEASE ALL until it is done or the lease is over. Returns whether the lock was held.

    After a request without an answer (not `granted`), null is not the end: it may still arrive.
    """
    pause = 0.05
    while True:
        try:
            reply = yield ask(request.release(token))
            taken = reply if isinstance(reply, list) else [reply]
            held = all(isinstance(one, int) and one > 0 for one in taken)
            if granted or held:
                return held
        except Refused as refused:
            if isinstance(explain(refused, True), Misconfigured):
                return None
        except NoAnswer:
            pass
        if now() + pause > until:
            return None
        yield Sleep(pause)
        pause = min(1.0, pause * 2)
        yield Rediscover()


class Owner:
    """Acquiring with the same owner enters again a lock whose keys the owner holds already.

    An owner stands for one line of work, it is not for threads or tasks side by side.
    """

    def __init__(self) -> None:
        self._holds: list[Any] = []

    def _entered(self, request: Request) -> Any:
        """The Held that covers the request; None if the owner holds none of its keys."""
        self._holds = [held for held in self._holds if not held._hold.gone]
        for held in self._holds:
            mine = held._hold.request
            if set(request.keys) <= set(mine.keys):
                if mine.shared and (not request.shared or request.limit != mine.limit):
                    raise InvalidRequest(
                        "the owner holds this lock shared: release it before using another mode"
                    )
                return held
            if set(request.keys) & set(mine.keys):
                raise InvalidRequest(
                    "the owner holds some of these keys: release them first, or ask for all at once"
                )
        return None


class HeldBase:
    """What is known of a hold without asking anybody."""

    def __init__(self, client: Any, hold: Hold) -> None:
        self._client, self._hold, self._released = client, hold, False

    @property
    def fence(self) -> int:
        """Grows from holder to holder. Show it to the resource that the lock protects."""
        return self._hold.fence

    @property
    def lost(self) -> bool:
        """True from a little before the lock may pass to somebody else."""
        return self._released or self._hold.is_lost()

    def valid_for(self) -> float:
        """Seconds for which nobody else is granted the lock."""
        gone = self._released or self._hold.gone
        return 0.0 if gone else max(0.0, self._hold.valid_until - now())

    def check(self) -> None:
        """Raises Lost if the lock is lost. Call it before steps that need the lock."""
        if self.lost:
            raise Lost("the lock is not held any longer")

    def _guarded(self, command: Sequence[Any]) -> Ask:
        self.check()
        return ask(["LOCK.GUARD", self._hold.request.keys[0], self._hold.token, *command])

    def _leave(self) -> tuple[bool, bool]:
        """Whether it was held until now, and whether it is to be released on the server."""
        if self._released:
            return False, False
        was_held, self._released = not self.lost, True
        self._hold.entries -= 1
        if not self._hold.entries:
            self._hold.gone = True
        return was_held, not self._hold.entries

    def _releasing(self) -> Steps:
        hold = self._hold
        until = max(now(), hold.valid_until) + hold.ttl / 50
        return releasing(hold.request, hold.token, until, True)


class LockBase:
    """A request that may be carried out again and again."""

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
        self._request = Request.checked(name, ttl, wait, shared, limit, renew, renew_every, label)
        self._client, self._owner = client, owner
        self._prepare()

    def _prepare(self) -> None:
        """What the flavour needs besides."""
        raise NotImplementedError
