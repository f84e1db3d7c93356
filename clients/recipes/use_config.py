"""Handles the lines of its standard input, all with one configuration: use_config.py"""

import os
import sys

import redis
from redislock import Lock

r = redis.Redis.from_url(os.environ["REDIS_URL"], decode_responses=True)

with Lock(r, "{config}:lock", ttl=5, wait=60, shared=True) as held:
    config = r.get("{config}")  # nobody changes it before the end of this block
    print(f"uses {config}", flush=True)
    for line in sys.stdin:
        held.check()
        print(f"{config}: {line.strip()}", flush=True)
