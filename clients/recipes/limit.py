"""Calls a service that serves three calls at a time: limit.py URL..."""

import os
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import redis
from redislock import Lock

r = redis.Redis.from_url(os.environ["REDIS_URL"])
three_at_a_time = Lock(r, "partner", ttl=10, wait=60, shared=True, limit=3)


def call(url):
    with three_at_a_time, urllib.request.urlopen(url, timeout=30) as answer:
        return answer.status


with ThreadPoolExecutor(8) as pool:
    for status in pool.map(call, sys.argv[1:]):
        print(status, flush=True)
