//! lock.* options: CONFIG, redis.conf, and arguments of loadmodule.

use redislock_testkit::{Connection, Server, Value, granted, info_number, module_path, refused};

/// Name, default, least, greatest.
const OPTIONS: [(&str, i64, i64, i64); 8] = [
    ("max-ttl", 86_400_000, 1, 604_800_000),
    ("max-hold", 0, 0, 604_800_000),
    ("max-waiters", 10_000, 0, 1_000_000),
    ("max-holders", 10_000, 1, 1_000_000),
    ("ephemeral-grace", 0, 0, 60_000),
    ("quarantine", 0, 0, 3_600_000),
    ("min-replicas", -1, -1, 2_147_483_647),
    ("max-lag", -1, -1, 2_147_483_647),
];

/// Read at the start only.
const FIXED: [&str; 3] = ["quarantine", "min-replicas", "max-lag"];

#[track_caller]
fn value(c: &mut Connection, name: &str) -> i64 {
    let reply = c.call(&format!("CONFIG GET lock.{name}"));
    reply
        .field(&format!("lock.{name}"))
        .text()
        .parse()
        .expect("a number")
}

#[test]
fn every_option_has_its_default() {
    let server = Server::start();
    let mut c = server.connect();
    for (name, default, _, _) in OPTIONS {
        assert_eq!(value(&mut c, name), default, "{name}");
    }
    let mut known = c.call("CONFIG GET lock.*").fields();
    known.sort();
    let numbers = OPTIONS.iter().map(|(name, ..)| *name);
    let names = numbers.chain(["legacy-strings"]);
    let mut expected: Vec<_> = names.map(|name| format!("lock.{name}")).collect();
    expected.sort();
    assert_eq!(known, expected);
}

#[test]
fn ranges_are_enforced_by_config_set() {
    let server = Server::start();
    let mut c = server.connect();
    for (name, _, least, greatest) in OPTIONS {
        if FIXED.contains(&name) {
            continue;
        }
        for good in [least, greatest] {
            c.ok(&format!("CONFIG SET lock.{name} {good}"));
            assert_eq!(value(&mut c, name), good, "{name}");
        }
        for bad in [
            (least - 1).to_string(),
            (greatest + 1).to_string(),
            "many".into(),
            "1.5".into(),
            i64::MAX.to_string(),
        ] {
            refused(&c.call(&format!("CONFIG SET lock.{name} {bad}")), "ERR");
            assert_eq!(value(&mut c, name), greatest, "{name} {bad}");
        }
    }
}

#[test]
fn quarantine_is_set_at_start_only() {
    let server = Server::start();
    let mut c = server.connect();
    for name in FIXED {
        let before = value(&mut c, name);
        refused(&c.call(&format!("CONFIG SET lock.{name} 1000")), "ERR");
        assert_eq!(value(&mut c, name), before);
    }
}

#[test]
fn redis_conf_sets_options() {
    let mut options = Server::options();
    for (name, _, _, greatest) in OPTIONS {
        options = options.config(&format!("lock.{name} {greatest}"));
    }
    let server = options.start();
    let mut c = server.connect();
    for (name, _, _, greatest) in OPTIONS {
        assert_eq!(value(&mut c, name), greatest, "{name}");
    }
}

#[test]
fn module_arguments_set_options_with_or_without_prefix() {
    let server = Server::options()
        .module_arguments(
            "max-ttl 5000 lock.max-hold 6000 max-waiters 7 lock.max-holders 8 \
             ephemeral-grace 9 quarantine 10",
        )
        .start();
    let mut c = server.connect();
    for (name, expected) in [
        ("max-ttl", 5000),
        ("max-hold", 6000),
        ("max-waiters", 7),
        ("max-holders", 8),
        ("ephemeral-grace", 9),
        ("quarantine", 10),
    ] {
        assert_eq!(value(&mut c, name), expected, "{name}");
    }
}

#[test]
fn redis_conf_wins_over_module_arguments() {
    let server = Server::options()
        .module_arguments("max-ttl 5000 max-holders 5")
        .config("lock.max-ttl 7000")
        .start();
    let mut c = server.connect();
    assert_eq!(value(&mut c, "max-ttl"), 7000);
    assert_eq!(value(&mut c, "max-holders"), 5);
    refused(&c.call("LOCK.ACQUIRE job me 7001"), "LOCKLIMIT");
    granted(&c.call("LOCK.ACQUIRE job me 7000"));
}

#[test]
fn bad_module_arguments_fail_the_load_with_a_line_that_says_why() {
    for (arguments, named) in [
        ("max-tll 5000", "argument 1"),
        ("max-hold 5 lock.nonsense 1", "argument 3"),
        ("max-ttl 0", "max-ttl"),
        ("max-ttl 604800001", "max-ttl"),
        ("max-ttl -1", "max-ttl"),
        ("max-ttl many", "max-ttl"),
        ("max-ttl", "max-ttl"),
        ("max-holders 0", "max-holders"),
        ("quarantine 3600001", "quarantine"),
        ("max-hold 5 max-ttl 99999999999999999999", "max-ttl"),
    ] {
        let Err(log) = Server::options().module_arguments(arguments).try_start() else {
            panic!("{arguments} was accepted");
        };
        // The server logs the line of redis.conf too, so the module's own line is looked for.
        let said = log
            .lines()
            .any(|line| line.contains('<') && line.contains(named));
        assert!(said, "{arguments}:\n{log}");
        assert!(
            !log.contains("REDIS BUG REPORT") && !log.contains("VALKEY BUG REPORT"),
            "{log}"
        );
    }
}

#[test]
fn a_bad_value_in_redis_conf_stops_the_start() {
    for line in [
        "lock.max-ttl 0",
        "lock.max-holders 1000001",
        "lock.max-ttl nonsense",
    ] {
        let started = Server::options().config(line).try_start();
        assert!(started.is_err(), "{line}");
    }
}

/// As after CONFIG REWRITE of a file that includes the line.
#[test]
fn a_second_loadmodule_line_stops_the_start_with_a_line_that_says_why() {
    let again = format!("loadmodule {}", module_path().display());
    let Err(log) = Server::options().config(&again).try_start() else {
        panic!("it was loaded twice");
    };
    let told: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("already loaded"))
        .collect();
    let [line] = told[..] else { panic!("{log}") };
    assert!(line.contains("keep one loadmodule line"), "{line}");
}

#[test]
fn config_rewrite_keeps_what_was_set() {
    let server = Server::start();
    let mut c = server.connect();
    c.ok("CONFIG SET lock.max-ttl 5000");
    c.ok("CONFIG REWRITE");
    let written =
        std::fs::read_to_string(server.folder().join("redis.conf")).expect("the settings");
    assert!(
        written.lines().any(|line| line == "lock.max-ttl 5000"),
        "{written}"
    );
}

#[test]
fn the_module_can_be_loaded_into_a_running_server() {
    let server = Server::options().without_module().start();
    let mut c = server.connect();
    c.ok("SET string value");
    let path = module_path();
    let refused = c.call(&format!("MODULE LOAD {} max-ttl 0", path.display()));
    assert!(refused.is_error(), "{refused:?}");
    assert_eq!(c.call("PING"), Value::Status("PONG".into()));
    c.ok(&format!("MODULE LOAD {} max-ttl 5000", path.display()));
    assert_eq!(value(&mut c, "max-ttl"), 5000);
    granted(&c.call("LOCK.ACQUIRE job me 5000"));
}

/// The server finds the wrong name when the module is loaded. Redis 7.0 keeps the module, 8.0
/// unloads it, Valkey crashes in its own code at every module that has a type.
#[test]
fn a_wrong_name_of_an_option_does_not_crash_redis() {
    let server = Server::options().without_module().start();
    if server.kind().valkey {
        return;
    }
    let mut c = server.connect();
    let path = module_path();
    let refused = c.call(&format!(
        "MODULE LOADEX {} CONFIG lock.quarantine 60000 CONFIG lock.wrong 1",
        path.display()
    ));
    assert!(refused.is_error(), "{refused:?}");
    assert_eq!(c.call("PING"), Value::Status("PONG".into()));
}

/// The server unloads a module that it cannot load. It keeps the name of a type, and nothing else.
#[test]
fn a_load_that_is_refused_leaves_no_memory_behind() {
    const TIMES: i64 = 20;
    let server = Server::options().without_module().start();
    let mut c = server.connect();
    let load = format!("MODULE LOAD {} max-ttl 0", module_path().display());
    let mut used = || {
        for _ in 0..TIMES {
            let refused = c.call(&load);
            assert!(refused.is_error(), "{refused:?}");
        }
        info_number(&mut c, "memory", "used_memory")
    };
    let before = used();
    let grown = used() - before;
    assert!(grown < TIMES * 2_048, "{grown} bytes in {TIMES} loads");
}

#[test]
fn max_ttl_counts_for_acquire_and_extend_at_once() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE job me 60000"));
    c.ok("CONFIG SET lock.max-ttl 5000");
    for line in [
        "LOCK.ACQUIRE other me 5001",
        "LOCK.ACQUIRE job me 5001",
        "LOCK.EXTEND job me 5001",
    ] {
        let reply = c.call(line);
        refused(&reply, "LOCKLIMIT");
        assert!(reply.error().contains("5000"), "{reply:?}");
    }
    granted(&c.call("LOCK.EXTEND job me 5000"));
    c.ok("CONFIG SET lock.max-ttl 604800000");
    granted(&c.call("LOCK.EXTEND job me 604800000"));
}

#[test]
fn max_holders_limits_the_holders_of_one_lock() {
    let server = Server::options().config("lock.max-holders 2").start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE room one 60000 SHARED"));
    granted(&c.call("LOCK.ACQUIRE room two 60000 SHARED"));
    refused(&c.call("LOCK.ACQUIRE room three 60000 SHARED"), "LOCKLIMIT");
    granted(&c.call("LOCK.ACQUIRE room two 60000 SHARED"));
    granted(&c.call("LOCK.ACQUIRE hall one 60000 SHARED"));
    assert_eq!(c.call("LOCK.INFO room").field("holders").items().len(), 2);
}
