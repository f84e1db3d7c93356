"""How long a hold may be relied on, renewal, and the signal of its loss."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from driver import LibraryError, Pending
from proxy import Proxy
from scene import LONG, Asked, Scene, block_by_hand, give_back_by_hand, is_quiet, queued, scenario
from servers import eventually


@scenario
def validity_counts_from_the_sending(scene: Scene) -> None:
    server, proxy, client = scene.behind_proxy(answer=1_900)
    scene.hold(client, "warm").release()
    ttl = 6 * scene.pace
    for wait in (0, LONG):
        proxy.when("LOCK.ACQUIRE", "hold_reply")
        asked = scene.acquire(client, ttl=ttl * 1000, wait=wait, renew=False)
        seen = proxy.wait_seen()
        time.sleep(0.8)
        proxy.resume()
        _granted_in_time(scene, asked, 1_000)
        late = asked.valid_until() - (seen + ttl)
        assert late <= 0, f"validity ends {late:.3f} s after the lease may have ended"
        took = asked.pending.answered_at - asked.asked_at
        is_early = server.calls("LOCK.EXTEND") == 0
        scene.in_time(is_early, ttl * 200, f"an EXTEND was not needed yet, after {took:.1f} s")
        asked.release()


def _granted_in_time(scene: Scene, asked: Asked, spare: float) -> None:
    """A grant that has to arrive within a limit: that of an answer, or the lease."""
    try:
        asked.granted()
    except LibraryError as error:
        scene.in_time(error.kind != "unavailable", spare, f"the reply took too long: {error}")
        raise


@scenario
def validity_of_a_renewal_counts_from_its_sending(scene: Scene) -> None:
    _server, proxy, client = scene.behind_proxy(answer=1_900)
    held = scene.hold(client, ttl=6_000, renew_every=500)
    proxy.when("LOCK.EXTEND", "hold_reply")
    seen = proxy.wait_seen()
    time.sleep(0.8)
    proxy.resume("LOCK.EXTEND", "hold_request")
    proxy.wait_seen()  # the next renewal: the late reply was read, and nothing was confirmed since
    late = held.valid_until() - (seen + 6)
    assert late <= 0, f"validity ends {late:.3f} s after the lease may have ended"
    proxy.resume()
    held.release()


@scenario
def a_wait_longer_than_the_ttl_is_confirmed_first(scene: Scene) -> None:
    server = scene.server()
    block_by_hand(server)
    ttl = 4_000 * scene.pace
    asked = scene.acquire(scene.open(server), ttl=ttl, wait=LONG, renew=False)
    queued(server)
    time.sleep(ttl / 1000 + 0.5)
    give_back_by_hand(server)
    fence = asked.granted()["fence"]
    before = time.monotonic()
    state, holders = asked.state(), server.holders("door")
    spent = (time.monotonic() - before) * 1000
    assert server.calls("LOCK.EXTEND") >= 1, "the grant was not confirmed by EXTEND"
    is_held = holders and not state["lost"] and state["valid_for"] > 0
    scene.in_time(is_held, ttl / 2, f"the hold has ended: {state} {holders}")
    assert holders[0]["fence"] == fence
    assert state["valid_for"] <= holders[0]["ttl"] + spent, (state, holders, spent)
    asked.release()


@scenario
def a_confirmation_with_another_fence_is_no_grant(scene: Scene) -> None:
    server, proxy, client = scene.behind_proxy()
    block_by_hand(server)
    ttl = 4_000 * scene.pace
    proxy.when("LOCK.EXTEND", "answer :9000000000000000\r\n")
    asked = scene.acquire(client, ttl=ttl, wait=LONG, renew=False)
    queued(server)
    time.sleep(ttl / 1000 + 0.5)
    give_back_by_hand(server)
    proxy.wait_seen()
    fence = asked.granted()["fence"]
    assert server.calls("LOCK.ACQUIRE") >= 3, "a grant counted that was not confirmed"
    is_held = [one["fence"] for one in server.holders("door")] == [fence]
    scene.in_time(is_held, ttl, "the server has another holder, or none")
    asked.release()


@scenario
def validity_leaves_room_for_clocks_that_drift(scene: Scene) -> None:
    """The ttl is so long that a hundredth of it exceeds any delay of a slow machine."""
    client = scene.open(scene.server())
    ttl = 24 * 3_600_000
    held = scene.hold(client, ttl=ttl, renew=False, owner="o1")

    def has_room(after: str) -> None:
        left = held.state()["valid_for"]
        assert left <= ttl - ttl // 100 - 2, f"{left} ms of {ttl} are left after {after}"

    has_room("the grant")
    again = scene.hold(client, ttl=ttl, renew=False, owner="o1")  # it is confirmed by an EXTEND
    has_room("an extension")
    again.release()
    held.release()


@scenario
def a_hold_ends_while_the_host_is_suspended(scene: Scene) -> None:
    """The lease goes on at the server; no timer of a slow machine is late by that much."""
    host = scene.on_a_host_that_is_suspended()
    # Each reading of the clock takes longer here.
    client = scene.open(scene.server(), answer=10_000)
    held = scene.hold(client, ttl=600_000, renew=False)
    watched = scene.hold(client, "gate", ttl=600_000, renew=False)
    signal_of_loss = watched.start_await_lost()
    host.suspended_for(300)
    state = held.state()
    assert 0 < state["valid_for"] <= 300_000 and not state["lost"], state
    host.suspended_for(700)
    state = held.state()
    assert state["valid_for"] == 0 and state["lost"], state
    signal_of_loss.result(60)
    assert held.release() is False and watched.release() is False


@scenario
def a_hold_is_renewed_for_as_long_as_it_lasts(scene: Scene) -> None:
    server = scene.server()
    ttl = 2_500 * scene.pace
    held = scene.hold(scene.open(server), ttl=ttl, renew_every=300 * scene.pace)
    lost = held.start_await_lost()
    began = time.monotonic()
    while time.monotonic() < began + 4 * scene.pace:
        state = held.state()
        is_held = state["valid_for"] > 0 and not state["lost"]
        scene.in_time(is_held, ttl / 2, f"it was lost: {state}")
        time.sleep(0.05)
    fences = [one["fence"] for one in server.holders("door")]
    scene.in_time(not lost.done and fences == [held.fence], ttl / 2, "it was lost")
    calls, most = server.calls("LOCK.EXTEND"), 2 + 8 * (time.monotonic() - began)
    assert 1 <= calls <= most, (calls, most)
    scene.in_time(held.release(), ttl / 2, "it was lost")
    is_quiet(server, "LOCK.EXTEND", "renewal goes on after the release", 1.5 * scene.pace)


def _gets_the_signal_before_the_end(scene: Scene, lost: Pending, ttl: int) -> None:
    """The libraries signal it a tenth of the ttl before, the Rust client at most 1 s before."""
    left = lost.result()["valid_for"]
    scene.in_time(left > 0, min(ttl / 10, 1_000), "the signal came at the end of validity or later")


@scenario
def without_renewal_the_holder_gets_the_signal_before_the_end(scene: Scene) -> None:
    server = scene.server()
    ttl = 6_000 * scene.pace
    held = scene.hold(scene.open(server), ttl=ttl, renew=False)
    _gets_the_signal_before_the_end(scene, held.start_await_lost(), ttl)
    assert held.release() is False


@scenario
def a_lock_that_is_forced_away_is_reported_lost(scene: Scene) -> None:
    server = scene.server()
    held = scene.hold(scene.open(server), ttl=6_000)
    assert server.wire("LOCK.FORCE", "door") == 1
    held.start_await_lost().result()
    assert held.state() == {"valid_for": 0, "lost": True}
    assert held.release() is False


@scenario
def a_paused_holder_knows_at_once_that_it_lost_the_lock(scene: Scene) -> None:
    server = scene.server()
    held = scene.hold(scene.open(server), ttl=3_000)
    scene.driver.process.send_signal(signal.SIGSTOP)
    try:
        eventually(lambda: server.lock("door") is None, what="the end of the lease")
        block_by_hand(server)
    finally:
        scene.driver.process.send_signal(signal.SIGCONT)
    state = held.state()
    assert state["valid_for"] == 0 and state["lost"], state
    assert held.release() is False
    assert server.holders("door"), "the next holder's lock was released"


def _loses_the_server(scene: Scene, fault: Callable[[Proxy], None]) -> None:
    """The holder gets the signal in time, and its release reports the loss."""
    _server, proxy, client = scene.behind_proxy()
    ttl = 6_000 * scene.pace
    held = scene.hold(client, ttl=ttl)
    lost = held.start_await_lost()
    fault(proxy)
    _gets_the_signal_before_the_end(scene, lost, ttl)
    proxy.resume()
    assert held.release() is False


@scenario
def a_cut_off_holder_gets_the_signal_before_validity_ends(scene: Scene) -> None:
    _loses_the_server(scene, Proxy.stall)


@scenario
def a_holder_that_cannot_connect_again_gets_the_signal_before_validity_ends(scene: Scene) -> None:
    def fault(proxy: Proxy) -> None:
        proxy.stall()
        proxy.cut()  # new connections are accepted, and nothing answers

    _loses_the_server(scene, fault)


@scenario
def a_forked_child_does_not_release_the_lock_of_its_parent(scene: Scene) -> None:
    server = scene.server()
    held = scene.hold(scene.open(server), ttl=30_000, renew_every=300)
    assert held.fork()
    assert server.holders("door")[0]["fence"] == held.fence
    calls = server.calls("LOCK.EXTEND")
    eventually(lambda: server.calls("LOCK.EXTEND") > calls, what="a renewal by the parent")
    assert held.release() is True


@scenario
def a_holder_survives_a_connection_that_breaks(scene: Scene) -> None:
    server, proxy, client = scene.behind_proxy()
    held = scene.hold(client, ttl=12_000, renew_every=300)
    for _ in range(4):
        proxy.cut()
        calls = server.calls("LOCK.EXTEND")
        eventually(lambda: server.calls("LOCK.EXTEND") > calls, what="a renewal")  # noqa: B023
    assert not held.state()["lost"] and server.holders("door")[0]["fence"] == held.fence
    assert held.release() is True


@scenario
def an_error_of_the_work_does_not_hide_the_loss(scene: Scene) -> None:
    server = scene.server()
    running = scene.run(scene.open(server), "fail", ttl=3_000, renew_every=300)
    eventually(lambda: running.done or server.holders("door"), what="the grant")
    server.wire("LOCK.FORCE", "door")
    assert sorted(running.result()["errors"]) == ["lost", "work"]


@scenario
def a_guarded_command_that_finds_the_loss_ends_the_work_with_it(scene: Scene) -> None:
    server = scene.server()
    running = scene.run(scene.open(server), "guard", ttl=LONG)
    eventually(lambda: running.done or server.wire("GET", "n"), what="a guarded command")
    server.wire("LOCK.FORCE", "door")
    assert running.result()["errors"] == ["lost"]
