//! ACL: key patterns hold, commands are allowed one by one, FORCE is for administrators.

use redislock_testkit::lock::all_locks;
use redislock_testkit::{Connection, Server, Value, granted, refused};

const APPLICATION: &str =
    "+lock.acquire +lock.release +lock.extend +lock.info +lock.node +lock.help";

fn login(server: &Server, rules: &str) -> Connection {
    let mut admin = server.connect();
    admin.ok(&format!("ACL SETUSER app reset on >secret {rules}"));
    let mut c = server.connect();
    c.ok("AUTH app secret");
    c
}

#[test]
fn an_application_may_be_given_the_lock_commands_and_nothing_else() {
    let server = Server::start();
    let mut c = login(&server, &format!("~job:* {APPLICATION}"));
    granted(&c.call("LOCK.ACQUIRE job:1 me 60000"));
    granted(&c.call("LOCK.EXTEND job:1 me 60000"));
    c.ok("LOCK.INFO job:1");
    c.ok("LOCK.NODE");
    c.ok("LOCK.HELP");
    assert_eq!(c.call("LOCK.RELEASE job:1 me"), Value::Integer(1));
    refused(&c.call("LOCK.FORCE job:1"), "NOPERM");
    refused(&c.call("SET job:1 value"), "NOPERM");
    refused(&c.call("DEL job:1"), "NOPERM");
}

#[test]
fn key_patterns_hold_for_every_command() {
    let server = Server::start();
    let mut admin = server.connect();
    granted(&admin.call("LOCK.ACQUIRE other:1 me 60000"));
    let before = all_locks(&mut admin);
    let mut c = login(&server, "~job:* +@all");
    for line in [
        "LOCK.ACQUIRE other:1 me 60000",
        "LOCK.ACQUIRE other:2 me 60000",
        "LOCK.RELEASE other:1 me",
        "LOCK.EXTEND other:1 me 60000",
        "LOCK.INFO other:1",
        "LOCK.FORCE other:1",
    ] {
        refused(&c.call(line), "NOPERM");
    }
    assert_eq!(all_locks(&mut admin), before);
}

#[test]
fn reading_a_lock_needs_only_the_right_to_read() {
    let server = Server::start();
    let mut admin = server.connect();
    granted(&admin.call("LOCK.ACQUIRE job me 60000"));
    let mut c = login(&server, &format!("%R~* {APPLICATION}"));
    assert_eq!(c.call("LOCK.INFO job").field("mode").text(), "exclusive");
    for line in [
        "LOCK.ACQUIRE job me 60000",
        "LOCK.RELEASE job me",
        "LOCK.EXTEND job me 60000",
    ] {
        refused(&c.call(line), "NOPERM");
    }
    let mut c = login(&server, &format!("%W~* {APPLICATION}"));
    refused(&c.call("LOCK.INFO job"), "NOPERM");
}

#[test]
fn force_is_for_administrators() {
    let server = Server::start();
    let mut admin = server.connect();
    granted(&admin.call("LOCK.ACQUIRE job me 60000"));
    for rules in ["~* +@all -@dangerous", "~* +@all -@admin -@dangerous"] {
        let mut c = login(&server, rules);
        let reply = c.call("LOCK.FORCE job");
        refused(&reply, "NOPERM");
        assert_ne!(admin.call("LOCK.INFO job me"), Value::Null, "{rules}");
    }
    let mut c = login(&server, "~* +@all");
    assert_eq!(c.call("LOCK.FORCE job"), Value::Integer(1));
}

#[test]
fn force_has_its_categories_where_the_server_lets_modules_set_them() {
    let server = Server::start();
    if !server.kind().gives_modules_acl_categories() {
        // There the caller must be allowed to run FLUSHALL instead.
        let mut c = login(&server, "~* +lock.force");
        refused(&c.call("LOCK.FORCE job"), "NOPERM");
        let mut c = login(&server, "~* +lock.force +flushall");
        assert_eq!(c.call("LOCK.FORCE job"), Value::Null);
        return;
    }
    // Not by ACL CAT: the servers of 7.2 know the categories of modules' commands and do not list
    // them there.
    let mut c = server.connect();
    let mut is_in = |name: &str, category: &str| {
        let info = c.call(&format!("COMMAND INFO {name}"));
        let categories = info.items()[0].items()[6].clone();
        categories
            .items()
            .iter()
            .any(|known| known.text() == category)
    };
    for category in ["@admin", "@dangerous"] {
        assert!(is_in("lock.force", category), "{category}");
        for name in ["lock.acquire", "lock.release", "lock.extend"] {
            assert!(!is_in(name, category), "{name} {category}");
        }
    }
}

#[test]
fn the_internal_command_is_refused_to_every_user() {
    let server = Server::start();
    let mut admin = server.connect();
    granted(&admin.call("LOCK.ACQUIRE job me 60000"));
    let before = all_locks(&mut admin);
    for rules in ["~* &* +@all", "~* +@all +lock._apply allcommands"] {
        let mut c = login(&server, rules);
        let reply = c.call("LOCK._APPLY effect job");
        assert!(reply.is_error(), "{reply:?}");
    }
    assert!(admin.call("LOCK._APPLY effect job").is_error());
    assert_eq!(all_locks(&mut admin), before);
}
