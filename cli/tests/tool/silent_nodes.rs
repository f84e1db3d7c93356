//! What `redlock serve` and `redlock top` say while too few nodes reply.

use redislock_testkit::process::outcome;
use redislock_testkit::wait_until;
use serde_json::Value;

use crate::masters;
use crate::serve::{Serving, json};
use crate::tool::{NODE_TIMEOUT, redlock};

fn locks(serving: &Serving) -> Value {
    json(&serving.get("/api/locks", "").1)
}

#[test]
fn a_hold_does_not_end_because_nodes_do_not_reply() {
    let mut servers = masters::<3>();
    for server in &servers {
        let _: u64 = server.run(&["LOCK.ACQUIRE", "job", "t", "600000", "OWNER", "ada"]);
    }
    let serving = Serving::start(&servers, &["--interval", "100ms"]);
    let state = |wanted: &str| {
        wait_until(wanted, || locks(&serving)["locks"][0]["state"] == wanted);
        locks(&serving)
    };
    let held = state("held");
    assert_eq!(held["overview"]["complete"], true, "{held}");
    servers[0].pause();
    servers[1].pause();
    let unknown = state("unknown");
    assert_eq!(
        unknown["locks"][0]["holds"][0]["end"],
        Value::Null,
        "{unknown}"
    );
    assert_eq!(unknown["overview"]["complete"], false, "{unknown}");
    let gaps = unknown["overview"]["gaps"].as_str().unwrap_or_default();
    assert!(gaps.contains("too few nodes list their locks"), "{unknown}");
    servers[0].resume();
    servers[1].resume();
    let held = state("held");
    assert_eq!(held["locks"][0]["holds_seen"], 1, "{held}");
    servers.iter_mut().for_each(|server| server.kill());
    let fresh = Serving::start(&servers, &["--interval", "100ms"]);
    wait_until("all nodes were asked", || {
        locks(&fresh)["overview"]["round"].as_u64() > Some(1)
    });
    assert_eq!(locks(&fresh)["overview"]["complete"], false);
}

#[test]
fn locks_that_may_not_be_listed_are_not_taken_for_none() {
    let servers = masters::<1>();
    let _: u64 = servers[0].run(&["LOCK.ACQUIRE", "job", "t", "600000"]);
    let user = ["ACL", "SETUSER", "app", "on", ">pw", "~*", "+lock.node"];
    let _: () = servers[0].run(&user);
    let mut command = redlock(&[]);
    let url = format!("redis://app:pw@127.0.0.1:{}", servers[0].port());
    command.envs([NODE_TIMEOUT]).env("REDLOCK_NODES", url);
    let ended = outcome({
        command.args(["top", "--once"]);
        command
    });
    assert!(!ended.out.contains("nobody holds a lock"), "{ended:?}");
    assert!(
        ended.out.contains("too few nodes list their locks"),
        "{ended:?}"
    );
}
