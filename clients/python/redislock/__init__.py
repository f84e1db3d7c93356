"""Locks of the redislock module for redis-py. `redislock.asyncio` has the same for asyncio."""

from ._core import Owner
from ._errors import (
    Busy,
    Cancelled,
    InvalidRequest,
    LockError,
    Lost,
    Misconfigured,
    Quarantined,
    Unavailable,
)
from ._sync import Held, Lock, close

__all__ = [
    "Busy",
    "Cancelled",
    "Held",
    "InvalidRequest",
    "Lock",
    "LockError",
    "Lost",
    "Misconfigured",
    "Owner",
    "Quarantined",
    "Unavailable",
    "close",
]
