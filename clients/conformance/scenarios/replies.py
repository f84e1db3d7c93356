"""Replies that do not come or make no sense, and releases that cannot be delivered."""

from __future__ import annotations

import time

from driver import LibraryError
from scene import LONG, Scene, is_free, scenario
from servers import eventually


@scenario
def a_lost_reply_leaves_no_orphan_and_no_second_hold(scene: Scene) -> None:
    server, proxy, client = scene.behind_proxy()
    scene.hold(client, "warm").release()
    for wait in (0, LONG):
        proxy.when("LOCK.ACQUIRE", "drop_reply")
        asked = scene.acquire(client, wait=wait)
        proxy.wait_seen()
        try:
            asked.granted()
        except LibraryError as error:
            assert error.kind == "unavailable" and wait == 0, error
        else:
            assert [one["holds"] for one in server.holders("door")] == [1]
            asked.release()
        is_free(server)


@scenario
def a_guarded_command_is_never_sent_twice(scene: Scene) -> None:
    server, proxy, client = scene.behind_proxy()
    held = scene.hold(client)
    assert held.guard("INCR", "n") == 1
    proxy.when("LOCK.GUARD", "drop_reply")
    assert held.start_guard("INCR", "n").error().kind == "unavailable"
    assert server.wire("GET", "n") == "2"
    held.release()


@scenario
def a_release_without_a_reply_is_delivered_later(scene: Scene) -> None:
    server, proxy, client = scene.behind_proxy()
    held = scene.hold(client)
    proxy.refuse()
    release = held.start_release()
    time.sleep(0.5)
    proxy.resume()
    release.result()
    is_free(server)


@scenario
def a_release_that_is_refused_for_want_of_replicas_is_repeated(scene: Scene) -> None:
    server = scene.server()
    held = scene.hold(scene.open(server))
    server.wire("CONFIG", "SET", "min-replicas-to-write", 1)
    release = held.start_release()
    eventually(
        lambda: "NOREPLICAS" in server.wire("INFO", "errorstats"), what="a release that is refused"
    )
    assert server.holders("door")
    server.wire("CONFIG", "SET", "min-replicas-to-write", 0)
    release.result()
    is_free(server)


@scenario
def guarded_commands_run_only_while_the_lock_is_held(scene: Scene) -> None:
    server = scene.server()
    held = scene.hold(scene.open(server))
    assert held.guard("SET", "x", "1") == "OK"
    assert held.start_guard("INCR", "x", "too", "many").error().kind == "misconfigured"
    server.wire("LOCK.FORCE", "door")
    assert held.start_guard("SET", "x", "2").error().kind == "lost"
    assert server.wire("GET", "x") == "1"
    assert held.state()["lost"]
    held.release()


@scenario
def a_reply_that_is_no_fence_is_no_grant(scene: Scene) -> None:
    server = scene.server()
    proxy = scene.proxy(server)
    for command, key, replies in (
        ("LOCK.ACQUIRE", "door", ("+OK\r\n", "*0\r\n", "$1\r\n5\r\n", "*1\r\n:5\r\n")),
        (
            "LOCK.MACQUIRE",
            ["door", "gate"],
            ("+OK\r\n", "*0\r\n", ":5\r\n", "*1\r\n:5\r\n", "*2\r\n:5\r\n+OK\r\n"),
        ),
    ):
        for reply in replies:
            # On a connection of its own: replies to what the last one sent cannot come in between.
            client = scene.open(proxy)
            proxy.when(command, f"answer {reply}")
            error = scene.refused(client, key)
            assert error.kind in ("unavailable", "misconfigured"), (reply, error)
            proxy.resume()
    is_free(server)


@scenario
def a_reply_that_is_no_fence_is_no_renewal(scene: Scene) -> None:
    server, proxy, client = scene.behind_proxy()
    for reply in ("*0\r\n", "+OK\r\n"):
        held = scene.hold(client, ttl=4_000, renew_every=200)
        proxy.when("LOCK.EXTEND", f"answer {reply}")
        held.start_await_lost().result()
        proxy.resume()
        assert held.release() is False
        is_free(server)


@scenario
def a_renewal_with_another_fence_is_a_loss(scene: Scene) -> None:
    server, proxy, client = scene.behind_proxy()
    held = scene.hold(client, ttl=4_000, renew_every=200)
    proxy.when("LOCK.EXTEND", f"answer :{held.fence + 1}\r\n")
    # Nothing extends the lease any more. When it has ended, the holder must know.
    eventually(lambda: server.lock("door") is None, what="the end of the lease")
    state = held.state()
    assert state["valid_for"] == 0 and state["lost"], state
    held.start_await_lost().result()
    proxy.resume()
    assert held.release() is False
