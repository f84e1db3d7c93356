#!/usr/bin/env python3
"""Instructions that a server spends on `redlock serve`, counted by valgrind: idle and watched.

    bench/watch.py target/debug/redlock redislock.so [locks]

A counted server is slow, so the count is per round; two rounds make a second. 1 % of a core is
taken as 10 million instructions in a second: a core that executes only one in each nanosecond.
"""
import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

PORT, PAGE, SECONDS, BATCH = 17101, 17102, 20, 2000
redlock, module = sys.argv[1:3]
locks = int(sys.argv[3]) if len(sys.argv) > 3 else 100000


def connected():
    for _ in range(300):
        try:
            return socket.create_connection(("127.0.0.1", PORT))
        except OSError:
            time.sleep(0.2)
    sys.exit("the server does not start")


def fill(connection):
    replies = connection.makefile("rb")
    for first in range(0, locks, BATCH):
        words = ("LOCK.ACQUIRE lock:%d token 86400000 OWNER ada@host-7:812\r\n" % n
                 for n in range(first, first + BATCH))
        connection.sendall("".join(words).encode())
        for _ in range(BATCH):
            replies.readline()


class Count:
    """Instructions since the last count."""

    def __init__(self, folder, pid):
        self.folder, self.pid, self.dumps = folder, str(pid), 0

    def take(self):
        self.dumps += 1
        subprocess.run(["callgrind_control", "--dump", self.pid], capture_output=True, check=True)
        while True:
            try:
                with open(f"{self.folder}/counts.{self.dumps}") as file:
                    found = re.search(r"^totals: (\d+)", file.read(), re.M)
                if found:
                    return int(found.group(1))
            except OSError:
                pass
            time.sleep(0.05)


def rounds():
    with urllib.request.urlopen(f"http://127.0.0.1:{PAGE}/api/nodes") as reply:
        return json.load(reply)["overview"]["round"]


def measure(folder, server):
    fill(connected())
    count = Count(folder, server.pid)
    count.take()
    time.sleep(SECONDS / 2)
    idle = count.take() / (SECONDS / 2)
    words = [redlock, "serve", "--listen", f"127.0.0.1:{PAGE}", "--node-timeout", "30s",
             "--node", f"redis://127.0.0.1:{PORT}"]
    page = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    try:
        time.sleep(SECONDS / 2)
        count.take()
        before, start = rounds(), time.monotonic()
        time.sleep(SECONDS)
        busy, after = count.take(), rounds()
        each = (busy - idle * (time.monotonic() - start)) / (after - before)
    finally:
        page.kill()
        page.wait()
    print(f"{locks} locks, {after - before} rounds: idle {idle / 1e6:.2f} million instructions in a "
          f"second, watched {2 * each / 1e6:.2f} million more: {2 * each / 1e7:.2f} % of a core")


folder = tempfile.mkdtemp()
command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/counts", "redis-server",
           "--port", str(PORT), "--save", "", "--hz", "1", "--dynamic-hz", "no", "--dir", folder,
           "--loadmodule", module]
server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
try:
    measure(folder, server)
finally:
    server.kill()
    server.wait()
    shutil.rmtree(folder)
