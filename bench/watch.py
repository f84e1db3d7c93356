#!/usr/bin/env python3
"""The share of a core that a server spends on `redlock serve`, by instruction count.

    bench/watch.py target/release/redlock redislock.so [locks]

valgrind counts the instructions of a server, idle and watched. A counted server is slow, so the
count is per round of questions; two rounds make a second. What a core executes in a second is
measured, too: a saturated server of the same kind replies to the command of the watch with most
calls. Its calls in a second of CPU time, times the counted instructions of a call, is a full core.
The kernel's part is not counted, but its time is in that second, so a core counts as slow.

A second figure needs no valgrind: the CPU time of a server, with the kernel's part.
"""
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

PORT, PAGE, SECONDS, BATCH, CALLS = 17101, 17102, 20, 2000, 20000
redlock, module = sys.argv[1:3]
locks = int(sys.argv[3]) if len(sys.argv) > 3 else 100000
server_program = os.environ.get("REDIS_SERVER", "redis-server")


class Server:
    """A server that is full of locks, counted or not; stopped at the end of its block."""

    def __init__(self, counted):
        self.folder, self.dumps = tempfile.mkdtemp(), 0
        before = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={self.folder}/counts"]
        command = [server_program, "--port", str(PORT), "--save", "", "--hz", "1", "--dynamic-hz",
                   "no", "--dir", self.folder, "--loadmodule", os.path.abspath(module)]
        self.process = subprocess.Popen((before if counted else []) + command,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __enter__(self):
        try:
            self.ask(f"LOCK.ACQUIRE lock:{n} token 86400000 OWNER ada@host-7:812"
                     for n in range(locks))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder)

    def connected(self):
        for _ in range(300):
            if self.process.poll() is not None:
                break
            try:
                return socket.create_connection(("127.0.0.1", PORT))
            except OSError:
                time.sleep(0.2)
        sys.exit("the server does not start")

    def ask(self, commands):
        """Sends commands whose reply is one line or a map about a lock with one holder."""
        connection = self.connected()
        replies, commands = connection.makefile("rb"), list(commands)
        for first in range(0, len(commands), BATCH):
            batch = commands[first:first + BATCH]
            connection.sendall("".join(f"{command}\r\n" for command in batch).encode())
            for _ in batch:
                read(replies)
        connection.close()

    def count(self):
        """Instructions since the last count."""
        self.dumps += 1
        command = ["callgrind_control", "--dump", str(self.process.pid)]
        subprocess.run(command, capture_output=True, check=True)
        while True:
            try:
                with open(f"{self.folder}/counts.{self.dumps}") as file:
                    found = re.search(r"^totals: (\d+)", file.read(), re.M)
                if found:
                    return int(found.group(1))
            except OSError:
                pass
            time.sleep(0.05)

    def seconds(self):
        """CPU time of its main thread, with the kernel's part."""
        with open(f"/proc/{self.process.pid}/schedstat") as file:
            return int(file.read().split()[0]) / 1e9


def read(replies):
    line = replies.readline()
    if line[:1] == b"-":
        sys.exit(f"the server replies {line.decode().strip()}")
    if line[:1] == b"$" and line[:2] != b"$-":
        replies.read(int(line[1:]) + 2)
    if line[:1] == b"*":
        for _ in range(max(0, int(line[1:]))):
            read(replies)


class Watch:
    """redlock serve with one open page, ended at the end of its block."""

    def __enter__(self):
        words = [redlock, "serve", "--listen", f"127.0.0.1:{PAGE}", "--node-timeout", "30s",
                 "--node", f"redis://127.0.0.1:{PORT}"]
        self.process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
        time.sleep(SECONDS / 4)
        page = ["curl", "-sN", "-o", os.devnull, f"http://127.0.0.1:{PAGE}/events"]
        self.page = subprocess.Popen(page)
        time.sleep(SECONDS / 4)
        return self

    def __exit__(self, *_):
        for process in (self.page, self.process):
            process.kill()
            process.wait()

    def rounds(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{PAGE}/api/nodes") as reply:
            return json.load(reply)["overview"]["round"]


def looks(count):
    return (f"LOCK.INFO lock:{n % locks} COUNT 16" for n in range(count))


def counted():
    """Instructions of an idle second, of two rounds, and of one call."""
    with Server(counted=True) as server:
        server.count()
        time.sleep(SECONDS / 2)
        idle = server.count() / (SECONDS / 2)
        server.ask(looks(CALLS))
        call = server.count() / CALLS
        with Watch() as watch:
            server.count()
            before, start = watch.rounds(), time.monotonic()
            time.sleep(SECONDS)
            busy, after = server.count(), watch.rounds()
            busy -= idle * (time.monotonic() - start)
        return idle, 2 * busy / (after - before), call


def timed():
    """Calls in a second of CPU time, and the share of CPU time, idle and watched."""
    with Server(counted=False) as server:
        start = server.seconds()
        server.ask(looks(20 * CALLS))
        calls = 20 * CALLS / (server.seconds() - start)

        def share():
            start, since = server.seconds(), time.monotonic()
            time.sleep(SECONDS)
            return (server.seconds() - start) / (time.monotonic() - since)

        idle = share()
        with Watch():
            return calls, idle, share()


calls, idle_share, watched_share = timed()
idle, watched, call = counted()
core = calls * call
print(f"{locks} locks\n"
      f"a full core: {core / 1e6:.0f} million instructions in a second "
      f"({calls:.0f} LOCK.INFO of {call:.0f} instructions)\n"
      f"idle: {idle / 1e6:.2f} million, watched: {watched / 1e6:.2f} million more: "
      f"{100 * watched / core:.2f} % of a core\n"
      f"CPU time with the kernel's part: idle {100 * idle_share:.2f} %, "
      f"watched {100 * watched_share:.2f} %")
