"""Wrong servers, wrong users, wrong arguments: an error that says what to change."""

from __future__ import annotations

from driver import LibraryError
from scene import LONG, Scene, is_free, scenario
from servers import cluster_set, eventually


@scenario
def a_server_without_the_module_is_named(scene: Scene) -> None:
    server = scene.server(module=False)
    client = scene.open(server)
    for wait in (0, LONG):
        error = scene.refused(client, wait=wait)
        assert error.kind == "misconfigured" and "module" in error.message, error


@scenario
def a_replica_is_named(scene: Scene) -> None:
    master = scene.server()
    replica = scene.server(f"replicaof 127.0.0.1 {master.port}")
    eventually(lambda: "master_link_status:up" in replica.wire("INFO", "replication"))
    error = scene.refused(scene.open(replica), wait=LONG)
    assert error.kind == "misconfigured" and "master" in error.message, error
    assert master.lock("door") is None


@scenario
def a_missing_permission_is_named(scene: Scene) -> None:
    server = scene.server()
    server.wire("ACL", "SETUSER", "reader", "on", ">secret", "~*", "+@all", "-lock.acquire")
    error = scene.refused(scene.open(server, username="reader", password="secret"), wait=LONG)
    assert error.kind == "misconfigured" and "lock.acquire" in error.message.lower(), error
    server.wire("ACL", "SETUSER", "narrow", "on", ">secret", "~mine:*", "+@all")
    error = scene.refused(scene.open(server, username="narrow", password="secret"), wait=LONG)
    assert error.kind == "misconfigured" and "key" in error.message, error
    assert server.lock("door") is None


@scenario
def a_plain_client_at_a_cluster_gets_an_error(scene: Scene) -> None:
    nodes = cluster_set(scene.take)
    client = scene.open(nodes[0])
    for wait in (0, LONG):
        errors = []
        for key in ("a", "b"):  # of different nodes
            try:
                scene.hold(client, key, wait=wait).release()
            except LibraryError as error:
                errors.append(error)
        assert [error.kind for error in errors] == ["misconfigured"], errors
        message = errors[0].message
        assert "cluster" in message or "MOVED" in message, errors


@scenario
def a_key_of_another_type_is_named(scene: Scene) -> None:
    server = scene.server()
    server.wire("SET", "door", "1")
    assert scene.refused(scene.open(server), wait=LONG).kind == "misconfigured"


def _invalid(name: str, **options: object) -> None:
    def check(scene: Scene) -> None:
        server = scene.server()
        key = options.get("key", "door")
        error = scene.refused(
            scene.open(server), key, **{k: v for k, v in options.items() if k != "key"}
        )
        assert error.kind == "invalid", error
        assert server.calls("LOCK.ACQUIRE") == 0 and server.lock("door") is None

    check.__name__ = f"invalid_{name}"
    scenario(check)


_invalid("ttl_of_zero", ttl=0)
_invalid("ttl_below_zero", ttl=-5)
_invalid("ttl_above_a_week", ttl=604_800_001)
_invalid("ttl_that_is_no_number", ttl="soon")
_invalid("renewal_slower_than_the_ttl", ttl=1_000, renew_every=1_000)
_invalid("wait_below_zero", wait=-1)
_invalid("wait_of_centuries", wait=10**15)
_invalid("limit_without_shared", limit=2)
_invalid("limit_of_zero", shared=True, limit=0)
_invalid("empty_name", key="")
_invalid("name_that_is_no_string", key=5)
_invalid("no_keys", key=[])
_invalid("key_twice", key=["a", "a"])


@scenario
def a_closed_client_is_an_error_or_connects_again(scene: Scene) -> None:
    server = scene.server()
    client = scene.open(server)
    scene.hold(client).release()
    scene.driver.call("close", client=client)
    asked = scene.acquire(client, wait=500)
    try:
        asked.granted()
        asked.release()
    except LibraryError as error:
        assert error.kind in ("misconfigured", "invalid"), error
        assert "closed" in error.message, error
    is_free(server)
