"""What both flavours of redis-py have in common below the commands: settings and errors."""

from __future__ import annotations

from typing import Any

import redis.exceptions as theirs

from ._errors import NoAnswer, Refused

# Settings of the user's client that would retry or time out behind our back, or need its pool.
_NOT_OURS = (
    "retry",
    "retry_on_timeout",
    "retry_on_error",
    "health_check_interval",
    "himport_registry",
)
_PREFIXES_NOT_OURS = ("maint", "oss_cluster", "orig_", "cache")
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


def settings(kwargs: dict[str, Any]) -> dict[str, Any]:
    """The user's settings for a connection of ours: without retries and health checks."""
    return {
        name: value
        for name, value in kwargs.items()
        if name not in _NOT_OURS and not name.startswith(_PREFIXES_NOT_OURS)
    }


def translated(error: Exception, sent: bool) -> Exception:
    """redis-py's exception as one of ours."""
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            return Refused(code, str(error))
    if isinstance(error, theirs.ResponseError):
        code, _, text = str(error).partition(" ")
        return Refused(code, text) if code.isupper() else Refused("ERR", str(error))
    if isinstance(error, (theirs.RedisError, OSError, TimeoutError)):
        return NoAnswer(error, sent)
    return error
