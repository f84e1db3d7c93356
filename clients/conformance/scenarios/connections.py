"""Timeouts and connections of the user's client do not reach a wait."""

from __future__ import annotations

import time

from driver import LibraryError
from scene import (
    LONG,
    Scene,
    block_by_hand,
    give_back_by_hand,
    is_free,
    queued,
    release_all,
    scenario,
)
from servers import eventually


@scenario
def a_long_wait_under_short_timeouts_keeps_its_place(scene: Scene) -> None:
    server = scene.server()
    block_by_hand(server)
    first = scene.acquire(scene.open(server, timeout=200), wait=LONG)
    queued(server)
    second = scene.acquire(scene.open(server, timeout=200), wait=LONG)
    queued(server, 2)
    calls = server.calls("LOCK.ACQUIRE")
    time.sleep(1.5)
    give_back_by_hand(server)
    first.granted()
    assert not second.done, "the first in the queue lost its place"
    assert server.calls("LOCK.ACQUIRE") == calls, "a waiting request was sent again"
    first.release(), second.granted(), second.release()
    is_free(server)


@scenario
def waiting_does_not_block_the_connection_of_others(scene: Scene) -> None:
    server = scene.server()
    client = scene.open(server)
    held = scene.hold(client)
    waiting = scene.queue(server, client, 3)
    assert scene.driver.call("command", client=client, command=["SET", "x", "1"])["reply"] == "OK"
    assert not any(one.done for one in waiting)
    assert held.release() is True
    release_all(waiting)
    is_free(server)


@scenario
def five_waiters_in_a_pool_of_five_do_not_stop_the_holder(scene: Scene) -> None:
    server = scene.server()
    client = scene.open(server, pool=5)
    held = scene.hold(client)
    waiting = scene.queue(server, client, 5)
    assert held.release() is True
    release_all(waiting)
    is_free(server)


@scenario
def a_connection_that_was_closed_while_idle_is_replaced(scene: Scene) -> None:
    server, proxy, client = scene.behind_proxy(answer=1_900)
    held = scene.hold(client, "other")
    for step in (
        lambda: scene.hold(client, wait=0).release(),
        lambda: held.guard("SET", "x", "1"),
        held.release,
    ):
        proxy.cut()
        time.sleep(0.5 * scene.pace)  # for the client to see it
        try:
            assert step()
        except LibraryError as error:
            scene.in_time(error.kind != "unavailable", 500, str(error))
            raise
    assert server.lock("other") is None


@scenario
def a_server_that_cannot_be_reached_is_unavailable(scene: Scene) -> None:
    _server, proxy, client = scene.behind_proxy()
    proxy.refuse()
    assert scene.refused(client, wait=0).kind == "unavailable"
    assert scene.refused(client, wait=500).kind == "unavailable"
    proxy.resume()
    scene.hold(client, wait=LONG).release()


@scenario
def a_server_that_does_not_answer_ends_the_wait(scene: Scene) -> None:
    server, proxy, client = scene.behind_proxy()
    scene.hold(client).release()
    proxy.stall()
    assert scene.refused(client, wait=300).kind == "unavailable"
    proxy.resume()
    is_free(server)


@scenario
def a_frozen_server_costs_one_limit_and_not_one_for_each_idle_connection(scene: Scene) -> None:
    server = scene.server()
    client = scene.open(server)
    block_by_hand(server)
    waiting = scene.queue(server, client, 30)
    give_back_by_hand(server)
    release_all(waiting)
    held = scene.hold(client, "held")
    time.sleep(0.5)  # a library may look at a connection before it uses it after a pause
    server.freeze()
    asked, released = scene.acquire(client, wait=0), held.start_release()
    assert asked.pending.error(within=40).kind == "unavailable"
    released.result(within=40)  # it goes on by itself
    server.thaw()
    is_free(server), is_free(server, "held")


@scenario
def many_waiters_get_through_to_a_server_that_is_slow_to_open(scene: Scene) -> None:
    server, proxy, client = scene.behind_proxy(timeout=500, answer=100)
    block_by_hand(server)
    proxy.open_slowly(0.1)
    waiting = [scene.acquire(client, wait=None) for _ in range(60)]
    # All at once would take 6 s: those that are given up and begun again never come to an end.
    eventually(lambda: server.waiters("door") == 60, 120, "a queue of 60")
    is_calm = proxy.opened <= 3 * len(waiting)
    scene.in_time(is_calm, 2_000, f"{proxy.opened} connections for {len(waiting)} waiters")
    give_back_by_hand(server)
    release_all(waiting)
    is_free(server)


@scenario
def a_holder_releases_while_no_new_connection_opens(scene: Scene) -> None:
    server, proxy, client = scene.behind_proxy()
    held = scene.hold(client)
    proxy.open_nothing()
    waiting = [scene.acquire(client, wait=None) for _ in range(5)]
    time.sleep(0.5)  # for them to take idle connections, if there are any
    assert held.release() is True

    def is_released() -> bool:
        return held.fence not in [one["fence"] for one in server.holders("door")]

    eventually(is_released, 20, "the release")
    proxy.resume()
    release_all(waiting)
    is_free(server)


@scenario
def settings_that_change_replies_do_not_reach_locks(scene: Scene) -> None:
    server = scene.server()
    client = scene.open(server, unusual=True)
    block_by_hand(server)
    asked = scene.acquire(client, ttl=3_000, wait=LONG, renew_every=300)
    queued(server)
    give_back_by_hand(server)
    assert asked.granted()["fence"] == server.holders("door")[0]["fence"]
    assert scene.refused(client).kind == "busy"
    assert asked.guard("SET", "x", "1") == "OK"
    assert asked.guard("INCR", "x") == 2
    assert server.wire("GET", "x") == "2"
    calls = server.calls("LOCK.EXTEND")
    eventually(lambda: server.calls("LOCK.EXTEND") > calls, what="a renewal")
    assert asked.release() is True
    both = scene.hold(client, ["a", "b"])
    assert server.holders("b")[0]["fence"] == both.fence
    assert both.release() is True
