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

/// The users that docs/OPERATIONS.md recommends, by their names.
fn recommended(name: &str) -> String {
    let page = include_str!("../docs/OPERATIONS.md");
    let (_, section) = page.split_once("\n## Access\n").expect("the section");
    let section = section.split("\n## ").next().expect("its text");
    let start = format!("user {name} ");
    let mut users = section.lines().filter_map(|line| line.strip_prefix(&start));
    let rules = users.next().expect("the user");
    assert_eq!(users.next(), None);
    rules.replace("choose-a-password", "secret")
}

#[test]
fn redis_conf_has_the_recommended_user_of_an_application() {
    let example = include_str!("../redis.conf");
    let user = example
        .lines()
        .find_map(|line| line.strip_prefix("# user app "));
    let password = |user: &str| user.replace("choose-a-password", "secret");
    assert_eq!(user.map(password), Some(recommended("app")));
}

fn login_as(server: &Server, name: &str, more: &str) -> Connection {
    let rules = recommended(name);
    let mut admin = server.connect();
    admin.ok(&format!("ACL SETUSER {name} {rules} {more}"));
    let mut c = server.connect();
    c.ok(&format!("AUTH {name} secret"));
    c
}

#[track_caller]
fn refuses_all(c: &mut Connection, lines: &[&str]) {
    for line in lines {
        let reply = c.call(line);
        assert_eq!(reply.error_class(), "NOPERM", "{line}: {reply:?}");
    }
}

/// What ends locks, creates them, or shows tokens.
const DANGEROUS: [&str; 17] = [
    "DEL lock:a",
    "SET lock:a x",
    "EXPIRE lock:a 1",
    "RENAME lock:a lock:b",
    "DUMP lock:a",
    "RESTORE lock:b 0 x",
    "FLUSHDB",
    "CONFIG SET lock.max-ttl 1",
    "MODULE LIST",
    "MONITOR",
    "SLOWLOG GET",
    "CLIENT KILL ID 1",
    "CLIENT UNBLOCK 1",
    "CLIENT PAUSE 1",
    "PSYNC ? -1",
    "REPLCONF ACK 1",
    "DEBUG SLEEP 0",
];

#[test]
fn the_recommended_user_of_an_application_can_lock_and_nothing_else() {
    let server = Server::start();
    let mut c = login_as(&server, "app", "");
    granted(&c.call("LOCK.ACQUIRE lock:a me 60000"));
    granted(&c.call("LOCK.EXTEND lock:a me 60000"));
    c.ok("LOCK.MACQUIRE 2 lock:{x}b lock:{x}c me 60000");
    c.ok("LOCK.MEXTEND 2 lock:{x}b lock:{x}c me 60000");
    c.ok("LOCK.MRELEASE 2 lock:{x}b lock:{x}c me");
    c.ok("LOCK.INFO lock:a");
    c.ok("LOCK.NODE");
    c.ok("LOCK.HELP");
    c.ok("WAIT 0 1");
    c.ok("LOCK.GUARD lock:a me PING");
    refuses_all(&mut c, &DANGEROUS);
    refuses_all(
        &mut c,
        &[
            "LOCK.ACQUIRE other me 1000",
            "LOCK.MACQUIRE 2 lock:b other me 1000",
            "LOCK.INFO other",
            "LOCK.FORCE lock:a",
            "FLUSHALL",
            "SCAN 0",
            "INFO",
            "EVAL x 0",
        ],
    );
    assert_eq!(c.call("LOCK.RELEASE lock:a me"), Value::Integer(1));
}

#[test]
fn the_recommended_operator_can_look_force_and_nothing_else() {
    let server = Server::start();
    let of_7_0 = !server.kind().gives_modules_acl_categories();
    let more = if of_7_0 { "+flushall" } else { "" };
    let mut c = login_as(&server, "operator", more);
    granted(&server.connect().call("LOCK.ACQUIRE lock:a SECRET 60000"));
    let seen = format!("{:?}", c.ok("LOCK.INFO lock:a"));
    assert!(!seen.contains("SECRET"), "{seen}");
    c.ok("SCAN 0 TYPE redislock");
    c.ok("LOCK.NODE");
    c.ok("INFO everything");
    c.ok("CONFIG GET lock.quarantine");
    assert_eq!(c.call("LOCK.FORCE lock:a"), Value::Integer(1));
    refuses_all(&mut c, &DANGEROUS);
    refuses_all(&mut c, &["LOCK.FORCE other"]);
    if !of_7_0 {
        refuses_all(&mut c, &["FLUSHALL"]);
    }
}

/// docs/OPERATIONS.md and SECURITY.md warn of it.
#[test]
fn a_user_who_may_read_settings_sees_passwords() {
    let server = Server::start();
    let mut c = login_as(&server, "operator", "");
    server.connect().ok("CONFIG SET masterauth SECRET");
    let seen = c.ok("CONFIG GET masterauth");
    assert_eq!(seen.field("masterauth").text(), "SECRET");
    let mut c = login_as(&server, "operator", "-config|get");
    refuses_all(&mut c, &["CONFIG GET masterauth"]);
}

#[test]
fn the_recommended_user_of_monitoring_sees_numbers_only() {
    let server = Server::start();
    let mut c = login_as(&server, "monitoring", "");
    c.ok("LOCK.NODE");
    c.ok("INFO lock");
    refuses_all(&mut c, &DANGEROUS);
    refuses_all(
        &mut c,
        &[
            "LOCK.INFO lock:a",
            "LOCK.ACQUIRE lock:a me 1000",
            "LOCK.FORCE lock:a",
            "CONFIG GET *",
            "SCAN 0",
            "FLUSHALL",
        ],
    );
}
