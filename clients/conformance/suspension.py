"""A driver on a host that seems to have been suspended: CLOCK_BOOTTIME has gone on, and
CLOCK_MONOTONIC has not. Only on Linux; it needs no privileges, but a C compiler.

The kernel passes every clock_gettime(CLOCK_BOOTTIME) of the driver to the runner (seccomp, user
notification), which adds the shift. So this also works for programs without a C library (Go). For
the others, suspension.c makes this system call of what they do instead.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import select
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

_CALLS = {"x86_64": (228, 317), "aarch64": (113, 277)}  # clock_gettime, seccomp
_PR_SET_NO_NEW_PRIVS, _SET_MODE_FILTER, _NEW_LISTENER = 38, 1, 8  # of linux/prctl.h and seccomp.h
_ALLOW, _ASK = 0x7FFF0000, 0x7FC00000  # SECCOMP_RET_ALLOW, SECCOMP_RET_USER_NOTIF
_RECEIVE, _SEND = 0xC0502100, 0xC0182101  # SECCOMP_IOCTL_NOTIF_RECV and _SEND
_ASKED = struct.Struct("QIIiIQ6Q")  # struct seccomp_notif
_ANSWER = struct.Struct("QqiI")  # struct seccomp_notif_resp
_TIMESPEC = struct.Struct("qq")


class NotPossible(Exception):
    """This machine does not allow it."""


def _filter() -> bytes:
    """The program for the kernel: clock_gettime(CLOCK_BOOTTIME) is asked for, all else runs."""
    load, equal, end = 0x20, 0x15, 0x06  # BPF_LD+W+ABS, BPF_JMP+JEQ+K, BPF_RET+K
    steps = [
        (load, 0, 0, 0),  # the number of the call
        (equal, 0, 3, _CALLS[platform.machine()][0]),
        (load, 0, 0, 16),  # its first argument
        (equal, 0, 1, time.CLOCK_BOOTTIME),
        (end, 0, 0, _ASK),
        (end, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("HBBI", *step) for step in steps)


class Suspension:
    """What a driver needs in order to start (`environment`, `prepare`), and its suspension."""

    def __init__(self) -> None:
        if sys.platform != "linux" or platform.machine() not in _CALLS:
            raise NotPossible("needs Linux on x86-64 or ARM64")
        compiler = shutil.which("cc")
        if compiler is None:
            raise NotPossible("needs a C compiler")
        self._directory = tempfile.mkdtemp(prefix="redislock-suspension-")
        library = Path(self._directory, "suspension.so")
        source = Path(__file__).with_name("suspension.c")
        words = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", source, "-o", library]
        try:
            subprocess.run([*words, "-ldl"], check=True)
        except subprocess.CalledProcessError:
            self.close()
            raise NotPossible("the C compiler refuses suspension.c") from None
        except BaseException:
            self.close()
            raise
        self.environment = {"LD_PRELOAD": str(library)}
        self._shift = 0
        self._ours, self._theirs = socket.socketpair()

    def prepare(self) -> Callable[[], None]:
        """A `preexec_fn`, which sends the runner the descriptor for its answers."""
        libc = ctypes.CDLL(None, use_errno=True)
        steps = ctypes.create_string_buffer(_filter())
        count = len(steps) // 8
        program = ctypes.create_string_buffer(
            struct.pack("HxxxxxxP", count, ctypes.addressof(steps))
        )
        call = _CALLS[platform.machine()][1]
        prctl, syscall = libc.prctl, libc.syscall  # looked up here: after a fork, little is allowed

        def arrange() -> None:
            prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            file = syscall(call, _SET_MODE_FILTER, _NEW_LISTENER, program)
            if file < 0:
                self._theirs.send(b"no")
            else:
                socket.send_fds(self._theirs, [b"ok"], [file])
            steps  # noqa: B018 the program refers to them

        return arrange

    def begin(self, process: int) -> None:
        """After the start of the driver."""
        _, files, _, _ = socket.recv_fds(self._ours, 2, 1)
        if not files:
            raise NotPossible("the kernel does not allow seccomp")
        try:
            open(f"/proc/{process}/mem", "r+b", buffering=0).close()
        except OSError as error:
            os.close(files[0])
            raise NotPossible(f"the memory of the driver cannot be opened: {error}") from None
        threading.Thread(target=self._answer, args=(files[0],), daemon=True).start()

    def suspended_for(self, seconds: int) -> None:
        """From now on it looks as if the host had been suspended for so long in total."""
        self._shift = seconds

    def _answer(self, listener: int) -> None:
        try:
            self._answer_all(listener)
        finally:
            # Nobody waits for an answer that does not come.
            os.close(listener)

    def _answer_all(self, listener: int) -> None:
        events = select.poll()
        events.register(listener, select.POLLIN)
        while not any(event & select.POLLHUP for _, event in events.poll()):
            asked = bytearray(_ASKED.size)
            try:
                fcntl.ioctl(listener, _RECEIVE, asked)
                number, thread, *rest = _ASKED.unpack(asked)
                now = time.clock_gettime_ns(time.CLOCK_BOOTTIME) + self._shift * 1_000_000_000
                with open(f"/proc/{thread}/mem", "r+b", buffering=0) as memory:
                    os.pwrite(memory.fileno(), _TIMESPEC.pack(*divmod(now, 1_000_000_000)), rest[5])
                fcntl.ioctl(listener, _SEND, bytearray(_ANSWER.pack(number, 0, 0, 0)))
            except OSError as error:
                # The thread has ended, or a signal interrupted it: then it asks again.
                if error.errno not in (errno.ENOENT, errno.EINTR, errno.ESRCH, errno.EIO):
                    raise

    def close(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)
        if hasattr(self, "_ours"):
            self._ours.close()
            self._theirs.close()
