"""What can go wrong."""

from __future__ import annotations

import re

import redis.exceptions as theirs


class LockError(Exception):
    """Base of everything that this package raises."""


class Busy(LockError):
    """Another client holds the lock, and the wait is over."""


class Lost(LockError):
    """The lock was held and is no longer held. Stop what needs it."""


class Unavailable(LockError):
    """The server could not be reached, or cannot serve locks now. Trying again later may help."""


class Quarantined(Unavailable):
    """The server may have forgotten grants and pauses granting for `retry_after` seconds."""

    retry_after = 0.1


class Misconfigured(LockError):
    """Trying again does not help: the message says what to change on the server or the client."""


class InvalidRequest(LockError, ValueError):
    """The arguments can never be right."""


class Cancelled(LockError):
    """Lock.cancel() was called while another thread waited in acquire()."""


# redis-py removes the code from the text of these.
_CODES = {
    theirs.ReadOnlyError: "READONLY",
    theirs.MovedError: "MOVED",
    theirs.AskError: "ASK",
    theirs.TryAgainError: "TRYAGAIN",
    theirs.ClusterDownError: "CLUSTERDOWN",
    theirs.ClusterCrossSlotError: "CROSSSLOT",
    theirs.NoPermissionError: "NOPERM",
    theirs.OutOfMemoryError: "OOM",
    theirs.BusyLoadingError: "LOADING",
    theirs.AuthenticationError: "NOAUTH",
}
_TRANSIENT = (
    "UNBLOCKED ASK TRYAGAIN CLUSTERDOWN LOADING MASTERDOWN NOREPLICAS MISCONF OOM BUSY"
).split()
_ADVICE = {
    "READONLY": "this server is a replica: connect to the master",
    "MOVED": "this server is part of a cluster: use the client for a cluster",
    "NOPERM": "allow the ACL user +lock.acquire, +lock.macquire, +lock.extend, +lock.mextend, "
    "+lock.release, +lock.mrelease, +lock.guard and the keys of its locks",
    "NOAUTH": "give the client a user name and password",
    "WRONGPASS": "check the client's user name and password",
    "CROSSSLOT": "several keys of one lock need a common {hash tag} in a cluster",
    "WRONGTYPE": "the key holds other data: use another name for the lock",
}


def explain(error: BaseException, follows_master: bool) -> BaseException:
    """The exception for the user. `follows_master`: the client finds the new master by itself."""
    code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), None)
    if code is None and not isinstance(error, theirs.ResponseError):
        if isinstance(error, theirs.DataError):
            return InvalidRequest(str(error))
        # That of a cluster is no RedisError.
        if not isinstance(error, (theirs.RedisError, theirs.RedisClusterException, OSError)):
            return error
        return Unavailable(f"no reply from the server: {error}")
    text = f"{code} {error}" if code else str(error)
    code = code or text.split(" ", 1)[0]
    if "unknown command" in text.lower():
        return Misconfigured(
            "the server has no redislock module: start it with loadmodule redislock.so"
        )
    if code == "NOTHELD":
        return Lost("the lock is no longer held, the command was not run")
    if code == "QUARANTINE":
        quarantined = Quarantined(text)
        if found := re.search(r"retry in (\d+) ms", text):
            quarantined.retry_after = int(found[1]) / 1000
        return quarantined
    if code in _TRANSIENT or (code in ("READONLY", "MOVED") and follows_master):
        return Unavailable(text)
    return Misconfigured(f"{text}: {_ADVICE[code]}" if code in _ADVICE else text)
