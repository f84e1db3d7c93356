"""16 workers, one lock: worker.py PEER PORT WORKERS SECONDS (protocol: ../run.py)"""

import asyncio
import json
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


def locks():
    """A lock for each worker, on one client."""
    client = (redis.asyncio if "asyncio" in peer else redis).Redis(port=port)
    module = redislock.asyncio if "asyncio" in peer else redislock
    if peer.startswith("redislock"):
        return [module.Lock(client, "bench", ttl=TTL) for _ in range(workers)]
    return [client.lock("bench", timeout=TTL) for _ in range(workers)]


class Tally:
    """What one period of work came to."""

    def __init__(self, length):
        self.end = time.perf_counter() + length
        self.grants, self.waits = [0] * workers, []
        self.handovers, self.last = 0, None

    def granted(self, worker, asked):
        now = time.perf_counter()
        self.waits.append(round((now - asked) * 1e6))
        if now < self.end:
            self.grants[worker] += 1
            self.handovers += worker != self.last
            self.last = worker


def work(lock, worker, tally):
    while (asked := time.perf_counter()) < tally.end:
        with lock:
            tally.granted(worker, asked)


async def work_async(lock, worker, tally):
    while (asked := time.perf_counter()) < tally.end:
        async with lock:
            tally.granted(worker, asked)


def threads(all_locks, length):
    tally = Tally(length)
    team = [
        threading.Thread(target=work, args=(lock, i, tally)) for i, lock in enumerate(all_locks)
    ]
    for one in team:
        one.start()
    for one in team:
        one.join()
    return tally


async def tasks(all_locks, length):
    tally = Tally(length)
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
    all_locks = locks()
    threads(all_locks, 1)
    ready()
    report(threads(all_locks, seconds))


asyncio.run(main_async()) if "asyncio" in peer else main()
