"""Changes the configuration when nobody uses the old one any more: change_config.py VALUE"""

import os
import sys

import redis
from redislock import Lock

r = redis.Redis.from_url(os.environ["REDIS_URL"])

with Lock(r, "{config}:lock", ttl=5, wait=60) as held:
    held.guard("SET", "{config}", sys.argv[1])
print("changed", flush=True)
