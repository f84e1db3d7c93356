"""Adds an amount to an account in PostgreSQL: echo 100 | deposit.py ACCOUNT"""

import os
import sys

import psycopg
import redis
from redislock import Lock

REGISTER = "UPDATE account SET fence = %(fence)s WHERE id = %(id)s AND fence <= %(fence)s"
READ = "SELECT balance FROM account WHERE id = %(id)s"
WRITE = "UPDATE account SET balance = %(balance)s WHERE id = %(id)s AND fence = %(fence)s"

account = sys.argv[1]
r = redis.Redis.from_url(os.environ["REDIS_URL"])
db = psycopg.connect(os.environ["DATABASE_URL"], autocommit=True)  # no row stays locked

with Lock(r, f"account:{account}", ttl=3, wait=60) as held:
    mine = {"id": account, "fence": held.fence}
    if db.execute(REGISTER, mine).rowcount != 1:
        sys.exit("refused: no such account, or a later holder was here")
    balance = db.execute(READ, mine).fetchone()[0]
    print(f"read {balance}", flush=True)
    balance += int(sys.stdin.readline())  # stands for a slow step
    if db.execute(WRITE, mine | {"balance": balance}).rowcount != 1:
        sys.exit("refused: a later holder was here")
    print(f"wrote {balance}", flush=True)
