"""Granting, waiting, sharing, several keys, entering again."""

from __future__ import annotations

import threading
import time

from scene import LONG, Scene, block_by_hand, give_back_by_hand, is_free, queued, scenario
from servers import eventually


@scenario
def a_free_lock_is_granted_and_released(scene: Scene) -> None:
    server = scene.server()
    held = scene.hold(scene.open(server), ttl=10_000)
    assert [one["holds"] for one in server.holders("door")] == [1]
    state = held.state()
    assert 0 < state["valid_for"] <= 9_898 and not state["lost"], state
    assert held.release() is True
    assert server.lock("door") is None
    assert held.release() is False, "a second release released something"


@scenario
def fences_are_exact_and_grow(scene: Scene) -> None:
    server = scene.server()
    client = scene.open(server)
    server.wire("LOCK.ACQUIRE", "door", "t", 1000, "FENCE", int(time.time() * 1e6) | 1)
    server.wire("LOCK.RELEASE", "door", "t")
    before = 0
    for _ in range(5):
        held = scene.hold(client)
        assert held.fence == server.holders("door")[0]["fence"]
        assert held.fence > before
        before = held.fence
        held.release()


@scenario
def under_contention_one_at_a_time_is_inside(scene: Scene) -> None:
    server = scene.server()
    clients = [scene.open(server), scene.open(server)]
    inside, worst, fences, failures = [0], [0], [], []
    mutex = threading.Lock()

    def worker(number: int) -> None:
        try:
            for _ in range(6):
                held = scene.hold(clients[number % 2], ttl=10_000, wait=LONG)
                with mutex:
                    inside[0] += 1
                    worst[0] = max(worst[0], inside[0])
                    fences.append(held.fence)
                time.sleep(0.002)
                with mutex:
                    inside[0] -= 1
                assert held.release() is True
        except BaseException as error:  # noqa: BLE001 it is reported below
            failures.append(error)

    threads = [threading.Thread(target=worker, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    assert worst[0] == 1 and len(fences) == 48
    assert fences == sorted(set(fences)), "fences in the order of grants do not grow"


@scenario
def waiters_are_served_in_the_order_of_arrival(scene: Scene) -> None:
    server = scene.server()
    client = scene.open(server)
    first = scene.hold(client)
    waiting = []
    for count in range(1, 6):
        waiting.append(scene.acquire(client, wait=LONG))
        queued(server, count)
    first.release()
    for asked in waiting:
        asked.granted()
        assert all(not later.done for later in waiting[waiting.index(asked) + 1 :])
        asked.release()
    is_free(server)


@scenario
def one_try_is_busy_at_once_and_leaves_nothing(scene: Scene) -> None:
    server = scene.server()
    block_by_hand(server)
    assert scene.refused(scene.open(server), wait=0).kind == "busy"
    assert server.waiters("door") == 0 and len(server.holders("door")) == 1


@scenario
def a_wait_ends_with_busy_and_not_early(scene: Scene) -> None:
    server = scene.server()
    client = scene.open(server)
    scene.hold(client, "warm").release()
    block_by_hand(server)
    asked = scene.acquire(client, wait=700)
    assert asked.error().kind == "busy"
    assert asked.pending.answered_at - asked.asked_at >= 0.69
    assert server.waiters("door") == 0


@scenario
def without_a_limit_the_wait_goes_on(scene: Scene) -> None:
    server = scene.server()
    block_by_hand(server)
    asked = scene.acquire(scene.open(server), wait=None)
    queued(server)
    time.sleep(1)
    assert not asked.done
    give_back_by_hand(server)
    asked.granted()
    asked.release()


@scenario
def shared_holders_share_and_keep_the_exclusive_one_out(scene: Scene) -> None:
    server = scene.server()
    client = scene.open(server)
    readers = [scene.hold(client, shared=True), scene.hold(client, shared=True)]
    assert len(server.holders("door")) == 2
    assert scene.refused(client).kind == "busy"
    for reader in readers:
        assert reader.release()
    scene.hold(client).release()


@scenario
def a_semaphore_has_its_limit(scene: Scene) -> None:
    server = scene.server()
    client = scene.open(server)
    slots = [scene.hold(client, shared=True, limit=2) for _ in range(2)]
    assert scene.refused(client, shared=True, limit=2).kind == "busy"
    assert scene.refused(client, shared=True, limit=3).kind == "misconfigured"
    next_one = scene.acquire(client, shared=True, limit=2, wait=LONG)
    queued(server)
    slots[0].release()
    next_one.granted()
    slots[1].release(), next_one.release()
    is_free(server)


@scenario
def several_keys_are_taken_all_or_none(scene: Scene) -> None:
    server = scene.server()
    client = scene.open(server)
    block_by_hand(server, "b")
    assert scene.refused(client, ["a", "b"]).kind == "busy"
    assert server.lock("a") is None
    give_back_by_hand(server, "b")
    both = scene.hold(client, ["a", "b"], ttl=20_000, renew_every=300)
    assert server.holders("a")[0]["fence"] == server.holders("b")[0]["fence"] == both.fence
    eventually(lambda: server.calls("LOCK.MEXTEND") >= 2, what="renewals")
    assert not both.state()["lost"] and server.holders("a") and server.holders("b")
    assert both.release() is True
    assert server.lock("a") is None and server.lock("b") is None


@scenario
def an_owner_enters_again_and_the_last_one_out_releases(scene: Scene) -> None:
    server = scene.server()
    client = scene.open(server)
    outer = scene.hold(client, owner="o1")
    inner = scene.hold(client, owner="o1", wait=LONG)
    assert inner.fence == outer.fence
    assert scene.refused(client, owner="o2").kind == "busy"
    assert scene.refused(client).kind == "busy"
    assert inner.release() is True
    assert server.holders("door")
    assert outer.release() is True
    assert server.lock("door") is None
    again = scene.hold(client, owner="o1")
    assert again.fence > outer.fence
    again.release()


@scenario
def each_entry_of_an_owner_is_released_once(scene: Scene) -> None:
    server = scene.server()
    client = scene.open(server)
    outer = scene.hold(client, owner="o1")
    inner = scene.hold(client, owner="o1")
    assert inner.release() is True
    assert inner.release() is False
    assert not outer.state()["lost"]
    assert server.holders("door")[0]["fence"] == outer.fence
    assert outer.release() is True
    assert server.lock("door") is None


@scenario
def an_inner_block_that_releases_leaves_the_hold_of_the_outer_one(scene: Scene) -> None:
    server = scene.server()
    client = scene.open(server)
    outer = scene.hold(client, owner="o1")
    assert scene.run(client, "release", ttl=LONG, owner="o1").result()["errors"] == []
    assert not outer.state()["lost"]
    assert server.holders("door")[0]["fence"] == outer.fence
    assert outer.release() is True
    assert server.lock("door") is None


@scenario
def an_owner_at_two_servers_has_two_locks(scene: Scene) -> None:
    first, second = scene.server(), scene.server()
    here = scene.hold(scene.open(first), owner="o1")
    there = scene.hold(scene.open(second), owner="o1")
    assert second.holders("door")[0]["fence"] == there.fence
    assert there.release() is True
    assert first.holders("door")[0]["fence"] == here.fence
    assert here.release() is True


@scenario
def work_may_release_before_its_end(scene: Scene) -> None:
    server = scene.server()
    assert scene.run(scene.open(server), "release", ttl=LONG).result()["errors"] == []
    assert server.lock("door") is None
