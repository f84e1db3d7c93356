"""Both flavours of the library behind the driver protocol (clients/README.md)."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel

import redislock
import redislock.asyncio

KINDS = [
    (redislock.Cancelled, "cancelled"),
    (asyncio.CancelledError, "cancelled"),
    (redislock.Busy, "busy"),
    (redislock.Lost, "lost"),
    (redislock.Quarantined, "quarantined"),
    (redislock.Unavailable, "unavailable"),
    (redislock.Misconfigured, "misconfigured"),
    (redislock.InvalidRequest, "invalid"),
]
output = threading.Lock()


class Work(Exception):
    """An error of the work under the lock."""


def answer(number: int, **fields: Any) -> None:
    with output:
        print(json.dumps({"id": number, **fields}), flush=True)


def failure(error: BaseException) -> dict[str, Any]:
    kind = next((kind for cls, kind in KINDS if isinstance(error, cls)), type(error).__name__)
    fields = {"kind": kind, "message": str(error)}
    if isinstance(error, redislock.Quarantined):
        fields["retry_after"] = error.retry_after * 1000
    return fields


def shown(error: BaseException) -> dict[str, Any]:
    """What an error of the block shows, to a program or to a reader of the traceback."""
    notes = " ".join(getattr(error, "__notes__", []))
    names = [("work", isinstance(error, Work))]
    names += [("lost", isinstance(error, redislock.Lost) or "lock was lost" in notes)]
    names += [("cancelled", isinstance(error, asyncio.CancelledError))]
    return {"errors": [name for name, is_shown in names if is_shown]}


def plain(reply: Any) -> Any:
    return reply.decode() if isinstance(reply, bytes) else reply


def seconds(milliseconds: Any) -> Any:
    return milliseconds / 1000 if isinstance(milliseconds, (int, float)) else milliseconds


class Clients:
    """What the runner opened, and the locks it asked for; `aio`: the asyncio flavour."""

    def __init__(self, aio: bool) -> None:
        self.flavour: Any = redis.asyncio if aio else redis
        self.locks: Any = redislock.asyncio if aio else redislock
        self.clients: dict[str, Any] = {}
        self.held: dict[str, Any] = {}
        self.owners: dict[str, redislock.Owner] = {}

    def open(self, ask: dict[str, Any]) -> None:
        (host, port), *_ = ask["addresses"]
        settings = {name: ask[name] for name in ("username", "password") if name in ask}
        if "timeout" in ask:
            settings["socket_timeout"] = ask["timeout"] / 1000
        if "unusual" in ask:
            settings |= {"decode_responses": True, "protocol": 2}
        if "pool" in ask:
            settings["max_connections"] = ask["pool"]
        if ask["mode"] == "cluster":
            client = self.flavour.RedisCluster(host=host, port=port, **settings)
        elif ask["mode"] == "sentinel":
            client = self.flavour.sentinel.Sentinel(ask["addresses"], socket_timeout=1).master_for(
                ask["master"], **settings
            )
        else:
            client = self.flavour.Redis(host=host, port=port, **settings)
        self.clients[ask["client"]] = client

    def lock(self, ask: dict[str, Any]) -> Any:
        options = {name: ask[name] for name in ("shared", "limit", "renew") if name in ask}
        if "owner" in ask:
            options["owner"] = self.owners.setdefault(ask["owner"], redislock.Owner())
        if "renew_every" in ask:
            options["renew_every"] = seconds(ask["renew_every"])
        client = self.clients[ask["client"]]
        return self.locks.Lock(
            client, ask["name"], ttl=seconds(ask["ttl"]), wait=seconds(ask["wait"]), **options
        )

    def fork(self, ask: dict[str, Any]) -> dict[str, Any]:
        """A child process with a copy of the hold: does it know that it is not its own?"""
        held = self.held[ask["held"]]
        child = os.fork()
        if child == 0:
            try:  # the asyncio flavour has no loop here
                released = held.release() if isinstance(held, redislock.Held) else False
                os._exit(0 if held.lost and released is False else 1)
            finally:
                os._exit(2)
        return {"child_is_right": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0}

    def state(self, ask: dict[str, Any]) -> dict[str, Any]:
        held = self.held[ask["held"]]
        return {"valid_for": held.valid_for() * 1000, "lost": held.lost}


def run_threads() -> None:
    clients, waiting, pool = Clients(False), {}, ThreadPoolExecutor(64)

    def work(ask: dict[str, Any]) -> Any:
        match ask["op"]:
            case "open":
                return clients.open(ask) or {}
            case "acquire":
                clients.held[ask["held"]] = held = waiting[ask["id"]].acquire()
                return {"fence": held.fence}
            case "run":
                return run(ask)
            case "state":
                return clients.state(ask)
            case "fork":
                return clients.fork(ask)
            case "await_lost":
                held = clients.held[ask["held"]]
                held.wait_lost()
                return {"valid_for": max(0.0, held._valid_until - redislock._core.now()) * 1000}
            case "release":
                return {"held": clients.held[ask["held"]].release()}
            case "guard":
                return {"reply": plain(clients.held[ask["held"]].guard(*ask["command"]))}
            case "command":
                reply = clients.clients[ask["client"]].execute_command(*ask["command"])
                return {"reply": "OK" if reply is True else plain(reply)}
            case "close":
                return clients.clients[ask["client"]].close() or {}

    def run(ask: dict[str, Any]) -> dict[str, Any]:
        try:
            with clients.lock(ask) as held:
                if ask["work"] == "release":
                    held.release()
                    return {"errors": []}
                while ask["work"] == "guard":
                    held.guard("INCR", "n")
                held.wait_lost()
                raise Work
        except (Work, redislock.LockError) as error:
            return shown(error)

    def serve(ask: dict[str, Any]) -> None:
        try:
            answer(ask["id"], ok=work(ask))
        except BaseException as error:  # noqa: BLE001 it is reported
            answer(ask["id"], error=failure(error))

    for line in sys.stdin:
        ask = json.loads(line)
        if ask["op"] == "cancel":
            waiting[ask["acquire"]].cancel()
            answer(ask["id"], ok={})
            continue
        if ask["op"] == "acquire":
            try:
                waiting[ask["id"]] = clients.lock(ask)
            except Exception as error:  # noqa: BLE001
                answer(ask["id"], error=failure(error))
                continue
        pool.submit(serve, ask)


async def run_tasks() -> None:
    clients, tasks = Clients(True), {}

    async def work(ask: dict[str, Any]) -> Any:
        match ask["op"]:
            case "open":
                return clients.open(ask) or {}
            case "acquire":
                clients.held[ask["held"]] = held = await clients.lock(ask).acquire()
                return {"fence": held.fence}
            case "cancel":
                tasks[ask["acquire"]].cancel()
                return {}
            case "run":
                return await asyncio.create_task(run(ask))
            case "state":
                return clients.state(ask)
            case "fork":
                return clients.fork(ask)
            case "await_lost":
                held = clients.held[ask["held"]]
                await held.wait_lost()
                return {"valid_for": max(0.0, held._valid_until - redislock._core.now()) * 1000}
            case "release":
                return {"held": await clients.held[ask["held"]].release()}
            case "guard":
                return {"reply": plain(await clients.held[ask["held"]].guard(*ask["command"]))}
            case "command":
                reply = await clients.clients[ask["client"]].execute_command(*ask["command"])
                return {"reply": "OK" if reply is True else plain(reply)}
            case "close":
                return await clients.clients[ask["client"]].aclose() or {}

    async def run(ask: dict[str, Any]) -> dict[str, Any]:
        try:
            async with clients.lock(ask) as held:
                if ask["work"] == "release":
                    await held.release()
                    return {"errors": []}
                while ask["work"] == "guard":
                    await held.guard("INCR", "n")
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    raise Work from None
        except (Work, redislock.LockError, asyncio.CancelledError) as error:
            return shown(error)

    async def serve(ask: dict[str, Any]) -> None:
        try:
            answer(ask["id"], ok=await work(ask))
        except BaseException as error:  # noqa: BLE001 it is reported
            answer(ask["id"], error=failure(error))

    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        ask = json.loads(line)
        tasks[ask["id"]] = loop.create_task(serve(ask))


if __name__ == "__main__":
    if "--asyncio" in sys.argv:
        asyncio.run(run_tasks())
    else:
        run_threads()
