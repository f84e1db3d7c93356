"""How long a hold may be relied on, renewal, and the signal of its loss."""

from __future__ import annotations

import signal
import time

from scene import LONG, Scene, block_by_hand, give_back_by_hand, queued, scenario
from servers import eventually


@scenario
def validity_counts_from_the_sending(scene: Scene) -> None:
    server = scene.server()
    proxy = scene.proxy(server)
    client = scene.open(proxy, answer=1_900)
    scene.hold(client, "warm").release()
    for wait in (0, LONG):
        proxy.when("LOCK.ACQUIRE", "hold_reply")
        asked = scene.acquire(client, ttl=6_000, wait=wait, renew=False)
        seen = proxy.wait_seen()
        time.sleep(0.8)
        proxy.resume()
        asked.granted()
        assert server.calls("LOCK.EXTEND") == 0, "an EXTEND was not needed yet"
        late = asked.valid_until() - (seen + 6)
        assert late <= 0, f"validity ends {late:.3f} s after the lease may have ended"
        asked.release()


@scenario
def validity_of_a_renewal_counts_from_its_sending(scene: Scene) -> None:
    server = scene.server()
    proxy = scene.proxy(server)
    held = scene.hold(scene.open(proxy, answer=1_900), ttl=6_000, renew_every=500)
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
    asked = scene.acquire(scene.open(server), ttl=4_000, wait=LONG, renew=False)
    queued(server)
    time.sleep(4.5)
    give_back_by_hand(server)
    assert asked.granted()["fence"] == server.holders("door")[0]["fence"]
    before = time.monotonic()
    state, seen = asked.state(), server.holders("door")[0]
    assert server.calls("LOCK.EXTEND") == 1, "the grant was not confirmed by EXTEND"
    assert not state["lost"] and state["valid_for"] > 0, state
    spent = (time.monotonic() - before) * 1000
    assert state["valid_for"] <= seen["ttl"] + spent, (state, seen, spent)
    asked.release()


@scenario
def a_hold_is_renewed_for_as_long_as_it_lasts(scene: Scene) -> None:
    server = scene.server()
    held = scene.hold(scene.open(server), ttl=2_500, renew_every=300)
    lost = held.start_await_lost()
    end = time.monotonic() + 4
    while time.monotonic() < end:
        state = held.state()
        assert state["valid_for"] > 0 and not state["lost"], state
        time.sleep(0.05)
    assert not lost.done and server.holders("door")[0]["fence"] == held.fence
    calls = server.calls("LOCK.EXTEND")
    assert 1 <= calls <= 30, calls
    assert held.release() is True
    time.sleep(0.3)  # for one that was on its way
    calls = server.calls("LOCK.EXTEND")
    time.sleep(0.7)
    assert server.calls("LOCK.EXTEND") == calls, "renewal goes on after the release"


@scenario
def without_renewal_the_holder_is_told_before_the_end(scene: Scene) -> None:
    server = scene.server()
    held = scene.hold(scene.open(server), ttl=6_000, renew=False)
    signal_ = held.start_await_lost().result()
    assert signal_["valid_for"] > 0, f"the signal came after the end: {signal_}"
    assert held.release() is False


@scenario
def a_lock_that_is_forced_away_is_reported_lost(scene: Scene) -> None:
    server = scene.server()
    held = scene.hold(scene.open(server), ttl=1_500)
    assert server.wire("LOCK.FORCE", "door") == 1
    held.start_await_lost().result()
    assert held.state() == {"valid_for": 0, "lost": True}
    assert held.release() is False


@scenario
def a_paused_holder_knows_at_once_that_it_lost_the_lock(scene: Scene) -> None:
    server = scene.server()
    held = scene.hold(scene.open(server), ttl=1_000)
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


@scenario
def a_cut_off_holder_is_told_before_validity_ends(scene: Scene) -> None:
    server = scene.server()
    proxy = scene.proxy(server)
    held = scene.hold(scene.open(proxy), ttl=6_000)
    lost = held.start_await_lost()
    proxy.stall()
    signal_ = lost.result()
    assert signal_["valid_for"] > 0, f"the signal came after the end: {signal_}"
    proxy.resume()
    assert held.release() is False


@scenario
def a_holder_that_cannot_connect_again_is_told_before_validity_ends(scene: Scene) -> None:
    server = scene.server()
    proxy = scene.proxy(server)
    held = scene.hold(scene.open(proxy), ttl=6_000)
    lost = held.start_await_lost()
    proxy.stall()
    proxy.cut()  # new connections are accepted, and nothing answers
    signal_ = lost.result()
    assert signal_["valid_for"] > 0, f"the signal came after the end: {signal_}"
    proxy.resume()
    assert held.release() is False


@scenario
def a_forked_child_does_not_release_the_lock_of_its_parent(scene: Scene) -> None:
    server = scene.server()
    held = scene.hold(scene.open(server), ttl=2_500, renew_every=300)
    assert held.fork()
    assert server.holders("door")[0]["fence"] == held.fence
    calls = server.calls("LOCK.EXTEND")
    eventually(lambda: server.calls("LOCK.EXTEND") > calls, what="a renewal by the parent")
    assert held.release() is True


@scenario
def a_holder_survives_a_connection_that_breaks(scene: Scene) -> None:
    server = scene.server()
    proxy = scene.proxy(server)
    held = scene.hold(scene.open(proxy), ttl=6_000, renew_every=300)
    for _ in range(4):
        time.sleep(1)
        proxy.cut()
    time.sleep(1)
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
