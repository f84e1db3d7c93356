"""Workers that compete for one lock: worker.py PEER PORTS WORKERS SECONDS (protocol: ../run.py)"""

import asyncio
import json
import os
import sys
import threading
import time
from pathlib import Path

import redis
import redis.asyncio

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "clients/python"))
import redislock  # noqa: E402
import redislock.asyncio  # noqa: E402

peer, port, workers, seconds = sys.argv[1], *map(int, sys.argv[2:])
TTL = 30
MOST_WAITING = 100  # requests of one client that redislock lets wait at the server


def locks():
    """A lock for each worker, on one client as long as it lets all workers wait."""
    kind = redis.asyncio if "asyncio" in peer else redis
    if peer.startswith("redislock"):
        module = redislock.asyncio if "asyncio" in peer else redislock
        clients = [kind.Redis(port=port) for _ in range(0, workers, MOST_WAITING)]
        share = [clients[worker % len(clients)] for worker in range(workers)]
        return [module.Lock(client, "bench", ttl=TTL) for client in share]
    client = kind.Redis(port=port, max_connections=max(100, workers))
    return [client.lock("bench", timeout=TTL) for _ in range(workers)]


class Tally:
    """What one period of work came to."""

    def __init__(self, length):
        self.length = length
        self.grants, self.waits = [0] * workers, []
        self.handovers, self.last = 0, None

    def begin(self):
        self.end = time.perf_counter() + self.length

    def granted(self, worker, asked):
        now = time.perf_counter()
        self.waits.append(round((now - asked) * 1e6))
        if now < self.end:
            self.grants[worker] += 1
            self.handovers += worker != self.last
            self.last = worker


def work(lock, worker, tally, gate):
    gate.wait()
    while (asked := time.perf_counter()) < tally.end:
        with lock:
            tally.granted(worker, asked)


async def work_async(lock, worker, tally):
    while (asked := time.perf_counter()) < tally.end:
        async with lock:
            tally.granted(worker, asked)


def fail(thread):
    """A worker that fails ends the program, which would measure the others otherwise."""
    sys.__excepthook__(thread.exc_type, thread.exc_value, thread.exc_traceback)
    os._exit(1)


def threads(all_locks, length):
    """All of them begin when the last one is there: threads that compete start slowly."""
    tally, gate = Tally(length), threading.Event()
    team = [
        threading.Thread(target=work, args=(lock, i, tally, gate))
        for i, lock in enumerate(all_locks)
    ]
    for one in team:
        one.start()
    tally.begin()
    gate.set()
    for one in team:
        one.join()
    return tally


async def tasks(all_locks, length):
    tally = Tally(length)
    tally.begin()
    await asyncio.gather(*(work_async(lock, i, tally) for i, lock in enumerate(all_locks)))
    return tally


def report(tally):
    told = {"grants": tally.grants, "waits": tally.waits, "handovers": tally.handovers}
    print(json.dumps(told), flush=True)


def ready():
    print("ready", flush=True)
    sys.stdin.readline()


async def main_async():
    all_locks = locks()
    await tasks(all_locks, 1)
    ready()
    report(await tasks(all_locks, seconds))


def main():
    threading.excepthook = fail
    all_locks = locks()
    threads(all_locks, 1)
    ready()
    report(threads(all_locks, seconds))


asyncio.run(main_async()) if "asyncio" in peer else main()
