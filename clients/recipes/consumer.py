"""Buys one shipping label for every order in a stream: consumer.py NAME CARRIER-URL"""

import os
import sys
import urllib.request

import redis
from redislock import Busy, Lock, Lost, Unavailable

name, carrier = sys.argv[1:]
r = redis.Redis.from_url(os.environ["REDIS_URL"], decode_responses=True, protocol=2)


def messages():
    """New messages, and those that a consumer got 3 s ago or more and has not confirmed."""
    while True:
        yield from r.xautoclaim("orders", "shipping", name, min_idle_time=3000, count=1)[1]
        for _, new in r.xreadgroup("shipping", name, {"orders": ">"}, count=1, block=200):
            yield from new


def ship(order):
    label = f"{{{order}}}:label"
    with Lock(r, f"{{{order}}}:lock", ttl=5, wait=60) as held:
        if r.exists(label):
            return  # an earlier delivery of this message was handled
        ask = urllib.request.Request(carrier + order, headers={"Idempotency-Key": order})
        with urllib.request.urlopen(ask, timeout=30) as answer:
            held.guard("SET", label, answer.read())


for number, fields in messages():
    try:
        ship(fields["order"])
    except (Busy, Lost, Unavailable, OSError) as error:
        print(f"{name} leaves {fields['order']} for later: {error}", flush=True)
    else:
        r.xack("orders", "shipping", number)
        print(f"{name} confirms {fields['order']}", flush=True)
