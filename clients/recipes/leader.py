"""One instance of a service leads, the others stand by: leader.py NAME"""

import os
import signal
import sys

import redis
from redislock import Lock, Lost, Unavailable

name = sys.argv[1]
r = redis.Redis.from_url(os.environ["REDIS_URL"])
leadership = Lock(r, "{scheduler}", ttl=5, label=name)


def lead(held):
    """Works until the leadership is lost. The server refuses the work of a leader that lost it."""
    print(f"{name} leads in term {held.fence}", flush=True)
    while not held.wait_lost(timeout=0.2):
        held.guard("RPUSH", "{scheduler}:log", held.fence)


signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # resign at once when stopped
while True:
    try:
        with leadership as held:
            lead(held)
    except (Lost, Unavailable) as error:
        print(f"{name} does not lead: {error}", flush=True)
