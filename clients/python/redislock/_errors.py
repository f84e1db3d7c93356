"""What can go wrong, for the user and inside."""

from __future__ import annotations

import re


class LockError(Exception):
    """Base of everything that this package raises."""


class Busy(LockError):
    """Somebody else holds the lock, and the wait is over."""


class Lost(LockError):
    """The lock was held and is not held any longer. Stop what needs it."""


class Unavailable(LockError):
    """The server could not be reached, or cannot serve locks now. Trying again later may help."""


class Quarantined(Unavailable):
    """The server may have forgotten grants and pauses granting for `retry_after` seconds."""

    retry_after: float = 0.0


class Misconfigured(LockError):
    """Trying again does not help: the message says what to change on the server or the client."""


class InvalidRequest(LockError, ValueError):
    """The arguments can never be right."""


class Cancelled(LockError):
    """Lock.cancel() was called while another thread waited in acquire()."""


class Refused(Exception):
    """The server's error reply. Nothing was changed."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code} {message}")
        self.code = code


class NoAnswer(Exception):
    """No reply: the command may have been carried out, now or later, if it was `sent`."""

    def __init__(self, why: object, sent: bool) -> None:
        super().__init__(str(why))
        self.sent = sent


_TRANSIENT = {
    *("UNBLOCKED", "MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "LOADING", "MASTERDOWN"),
    *("NOREPLICAS", "MISCONF", "OOM", "BUSY"),
}
_ADVICE = {
    "READONLY": "this server is a replica: connect to the master",
    "NOPERM": "allow the ACL user +lock.acquire, +lock.macquire, +lock.extend, +lock.mextend, "
    "+lock.release, +lock.mrelease, +lock.guard and the keys of its locks",
    "NOAUTH": "give the client a user name and password",
    "WRONGPASS": "check the client's user name and password",
    "CROSSSLOT": "several keys of one lock need a common {hash tag} in a cluster",
    "WRONGTYPE": "the key holds other data: use another name for the lock",
}


def explain(error: Exception, follows_master: bool) -> LockError:
    """The exception for the user. `follows_master`: the client finds the new master by itself."""
    text = str(error)
    if isinstance(error, NoAnswer):
        return Unavailable(f"no answer from the server: {text}")
    if not isinstance(error, Refused):
        raise error
    if "unknown command" in text.lower():
        return Misconfigured(
            "the server has no redislock module: start it with loadmodule redislock.so"
        )
    if error.code == "NOTHELD":
        return Lost("the lock is not held any longer, the command was not run")
    if error.code == "QUARANTINE":
        quarantined = Quarantined(text)
        found = re.search(r"retry in (\d+) ms", text)
        quarantined.retry_after = int(found.group(1)) / 1000 if found else 0.1
        return quarantined
    if error.code in _TRANSIENT or (error.code == "READONLY" and follows_master):
        return Unavailable(text)
    advice = _ADVICE.get(error.code)
    return Misconfigured(f"{text}: {advice}" if advice else text)
