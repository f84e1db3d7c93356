"""Restarts, failovers, slots that move, quarantine."""

from __future__ import annotations

import time

from driver import LibraryError
from scene import LONG, Scene, block_by_hand, give_back_by_hand, queued, scenario
from servers import cluster_set, eventually, move_slot, sentinel_set


@scenario
def a_waiter_survives_a_restart_of_the_server(scene: Scene) -> None:
    server = scene.server()
    client = scene.open(server)
    block_by_hand(server)
    asked = scene.acquire(client, wait=LONG)
    queued(server)
    server.kill()
    time.sleep(0.3)
    server.start()
    assert asked.granted()["fence"] == server.holders("door")[0]["fence"]
    assert asked.release() is True


@scenario
def a_lock_that_a_restarted_server_forgot_is_reported_lost(scene: Scene) -> None:
    server = scene.server()
    held = scene.hold(scene.open(server), ttl=3_000)
    lost = held.start_await_lost()
    server.kill()
    server.start()
    lost.result()
    assert held.release() is False
    assert server.lock("door") is None


@scenario
def a_restart_that_remembers_does_not_end_the_hold(scene: Scene) -> None:
    server = scene.server("appendonly yes", "appendfsync always")
    held = scene.hold(scene.open(server), ttl=20_000, renew_every=300)
    server.kill()
    server.start()
    calls = server.calls("LOCK.EXTEND")
    eventually(lambda: server.calls("LOCK.EXTEND") > calls, what="a renewal")
    assert not held.state()["lost"] and server.holders("door")[0]["fence"] == held.fence
    assert held.release() is True


@scenario
def a_failover_by_sentinel_is_followed(scene: Scene) -> None:
    master, replica, watch = sentinel_set(scene.take)
    client = scene.open(watch, mode="sentinel", master="main")
    # Sentinel may take the master for down at first, on a machine that is busy.
    held = scene.hold(client, "held", ttl=90_000, wait=LONG, renew_every=500)
    eventually(lambda: replica.wire("LOCK.INFO", "held"), what="replication")
    block_by_hand(master)
    asked = scene.acquire(client, wait=LONG)
    queued(master)
    eventually(lambda: replica.wire("LOCK.INFO", "door"), what="replication")
    master.kill()
    eventually(lambda: "role:master" in replica.wire("INFO", "replication"), what="the failover")
    eventually(lambda: replica.waiters("door") == 1, what="the waiter at the new master")
    calls = replica.calls("LOCK.EXTEND")
    eventually(lambda: replica.calls("LOCK.EXTEND") > calls, what="a renewal at the new master")
    give_back_by_hand(replica)
    asked.granted()
    assert replica.holders("door")[0]["fence"] == asked.fence
    assert asked.release() is True
    assert not held.state()["lost"]
    assert held.release() is True
    assert replica.lock("held") is None


@scenario
def a_slot_that_has_moved_is_followed(scene: Scene) -> None:
    nodes = cluster_set(scene.take)
    client = scene.open(nodes[0], mode="cluster")
    scene.hold(client, "{a}1").release()
    owner = next(n for n in nodes if n.calls("LOCK.ACQUIRE"))
    other = next(n for n in nodes if n is not owner)
    move_slot(nodes, "{a}1", other)
    held = scene.hold(client, ["{a}1", "{a}2"], wait=0)
    assert other.holders("{a}2")[0]["fence"] == held.fence
    guarding = scene.hold(client, "{a}3")
    assert guarding.guard("SET", "{a}data", "1") == "OK"
    move_slot(nodes, "{a}1", owner)
    assert guarding.guard("GET", "{a}data") == "1"
    move_slot(nodes, "{a}1", other)
    assert guarding.release() is True
    assert held.release() is True
    assert scene.refused(client, ["a", "b"], wait=0).kind == "misconfigured"


@scenario
def a_slot_that_moves_takes_holder_and_waiter_along(scene: Scene) -> None:
    nodes = cluster_set(scene.take)
    client = scene.open(nodes[0], mode="cluster")
    held = scene.hold(client, "{a}1", ttl=60_000, renew_every=300)
    owner = next(n for n in nodes if n.calls("LOCK.ACQUIRE"))
    other = next(n for n in nodes if n is not owner)
    asked = scene.acquire(client, "{a}1", wait=LONG)
    queued(owner, 1, "{a}1")
    move_slot(nodes, "{a}1", other)
    queued(other, 1, "{a}1")
    calls = other.calls("LOCK.EXTEND")
    eventually(lambda: other.calls("LOCK.EXTEND") > calls, what="a renewal at the new node")
    assert held.release() is True
    asked.granted()
    assert asked.release() is True


@scenario
def a_cluster_that_was_away_is_used_again(scene: Scene) -> None:
    nodes = cluster_set(scene.take, "appendonly yes", "appendfsync always")
    client = scene.open(nodes[0], mode="cluster")
    held = scene.hold(client, "{a}1", ttl=60_000, renew_every=300)
    owner = next(n for n in nodes if n.calls("LOCK.ACQUIRE"))
    for node in nodes:
        node.kill()
    asked = scene.acquire(client, "{a}2", wait=LONG)
    time.sleep(1.5)
    assert not asked.done, "the wait is not over"
    for node in nodes:
        node.start()
    calls = owner.calls("LOCK.EXTEND")
    eventually(lambda: owner.calls("LOCK.EXTEND") > calls, what="a renewal")
    asked.granted()
    assert asked.release() is True
    assert held.release() is True


@scenario
def a_quarantined_server_is_named_and_waited_for(scene: Scene) -> None:
    length = 6_000 * scene.pace
    server = scene.server(f"lock.quarantine {length}")
    client = scene.open(server)
    asked = scene.acquire(client, ttl=2_000, wait=0)
    try:
        asked.granted()
    except LibraryError as error:
        assert error.kind == "quarantined", error
        assert 0 < error.retry_after <= length + 1_000, error.retry_after
    else:
        scene.in_time(False, length, "the quarantine is over")
    scene.hold(client, ttl=length // 2, wait=LONG).release()
