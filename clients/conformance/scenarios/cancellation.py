"""Cancelled at any step, an acquire leaves nothing behind."""

from __future__ import annotations

import time

from driver import LibraryError
from proxy import Proxy
from scene import (
    LONG,
    Asked,
    Scene,
    block_by_hand,
    give_back_by_hand,
    is_free,
    is_quiet,
    queued,
    scenario,
)
from servers import Server, eventually


@scenario
def cancelled_while_it_connects(scene: Scene) -> None:
    server, proxy, client = scene.behind_proxy()
    proxy.cut()
    proxy.stall()
    asked = scene.acquire(client, wait=LONG)
    time.sleep(0.3)
    assert asked.cancel().kind == "cancelled"
    proxy.resume()
    is_free(server)
    assert scene.hold(client, wait=LONG).release() is True


@scenario
def cancelled_before_the_server_has_the_request(scene: Scene) -> None:
    server, proxy, client = scene.behind_proxy()
    proxy.when("LOCK.ACQUIRE", "hold_request")
    asked = scene.acquire(client, wait=LONG)
    proxy.wait_seen()
    assert asked.cancel().kind == "cancelled"
    proxy.resume()
    is_free(server)
    assert scene.hold(client, wait=LONG).release() is True


@scenario
def cancelled_in_the_queue(scene: Scene) -> None:
    server = scene.server()
    client = scene.open(server)
    block_by_hand(server)
    asked = scene.acquire(client, wait=LONG)
    queued(server)
    assert asked.cancel().kind == "cancelled"
    eventually(lambda: server.waiters("door") == 0, what="leaving the queue")
    give_back_by_hand(server)
    is_free(server)
    assert scene.hold(client).release() is True


def _granted_without_a_reply(scene: Scene) -> tuple[Server, Proxy, Asked]:
    server, proxy, client = scene.behind_proxy()
    proxy.when("LOCK.ACQUIRE", "hold_reply")
    asked = scene.acquire(client, wait=LONG)
    eventually(lambda: server.holders("door"))
    return server, proxy, asked


@scenario
def cancelled_after_the_grant_before_the_reply(scene: Scene) -> None:
    server, _proxy, asked = _granted_without_a_reply(scene)
    assert asked.cancel().kind == "cancelled"
    is_free(server)


@scenario
def a_grant_that_arrives_after_the_cancellation_is_no_hold(scene: Scene) -> None:
    server, proxy, asked = _granted_without_a_reply(scene)
    scene.driver.call("cancel", acquire=asked.pending.number)
    is_free(server)
    proxy.resume()  # the reply: a fence, of a lock that is released
    assert asked.error().kind == "cancelled"


@scenario
def cancelled_in_the_extend_after_the_grant(scene: Scene) -> None:
    server, proxy, client = scene.behind_proxy()
    block_by_hand(server)
    asked = scene.acquire(client, ttl=3_000, wait=LONG)
    queued(server)
    time.sleep(1.8)
    proxy.when("LOCK.EXTEND", "hold_request")
    give_back_by_hand(server)
    proxy.wait_seen()
    assert asked.cancel().kind == "cancelled"
    proxy.resume()
    is_free(server)


@scenario
def cancelled_at_any_moment(scene: Scene) -> None:
    server = scene.server()
    client = scene.open(server)
    for step in range(25):
        asked = scene.acquire(client, wait=LONG)
        time.sleep(step * 0.0004)
        scene.driver.call("cancel", acquire=asked.pending.number)
        try:
            fence = asked.granted()["fence"]
            assert server.holders("door")[0]["fence"] == fence
            assert asked.release() is True
        except LibraryError as error:
            assert error.kind == "cancelled", error
    is_free(server)


@scenario
def a_release_by_a_cancelled_caller_is_delivered(scene: Scene) -> None:
    server = scene.server()
    held = scene.hold(scene.open(server))
    held.start_release(cancelled=True).result()
    is_free(server)


@scenario
def cancelled_waits_leave_nothing_that_runs_on(scene: Scene) -> None:
    server = scene.server()
    client = scene.open(server)
    block_by_hand(server)
    waiting = scene.queue(server, client, 20)
    for asked in waiting:
        assert asked.cancel().kind == "cancelled"
    eventually(lambda: server.waiters("door") == 0, what="leaving the queue")
    is_quiet(server, "LOCK.RELEASE", "the releases go on")
    calls = server.calls("LOCK.RELEASE")  # one more each time that the end of a wait takes long
    scene.in_time(calls <= 3 * len(waiting), 400, f"{calls} releases of {len(waiting)} waits")
