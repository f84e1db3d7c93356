//! LOCK.FORCE, the administrator's way to end a hold, and LOCK.HELP.

use redislock_testkit::{Server, Value, granted};

#[test]
fn force_ends_every_hold_and_replies_with_the_number_of_holders() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE job me 60000"));
    granted(&c.call("LOCK.ACQUIRE job me 60000"));
    assert_eq!(c.call("LOCK.FORCE job"), Value::Integer(1));
    assert_eq!(c.call("EXISTS job"), Value::Integer(0));
    for reader in 0..5 {
        granted(&c.call(&format!("LOCK.ACQUIRE room reader-{reader} 60000 SHARED")));
    }
    assert_eq!(c.call("LOCK.FORCE room"), Value::Integer(5));
    assert_eq!(c.call("EXISTS room"), Value::Integer(0));
}

#[test]
fn force_on_a_free_lock_is_null() {
    let server = Server::start();
    assert_eq!(server.connect().call("LOCK.FORCE job"), Value::Null);
}

#[test]
fn the_holder_finds_out_at_its_next_command() {
    let server = Server::start();
    let mut c = server.connect();
    let fence = granted(&c.call("LOCK.ACQUIRE job me 60000"));
    c.ok("LOCK.FORCE job");
    assert_eq!(c.call("LOCK.EXTEND job me 60000"), Value::Null);
    assert_eq!(c.call("LOCK.RELEASE job me"), Value::Null);
    assert!(granted(&c.call("LOCK.ACQUIRE job me 60000")) > fence);
}

#[test]
fn help_lists_every_command() {
    let server = Server::start();
    let help = server.connect().call("LOCK.HELP");
    let lines = help.items().iter().map(|line| match line {
        // As the server's own HELP: plain lines, which redis-cli does not quote.
        Value::Status(line) => line.as_str(),
        other => panic!("{other:?}"),
    });
    let text = lines.collect::<Vec<_>>().join("\n");
    assert!(text.starts_with("LOCK.<command> "), "{text}");
    for name in [
        "LOCK.ACQUIRE",
        "LOCK.RELEASE",
        "LOCK.EXTEND",
        "LOCK.MACQUIRE",
        "LOCK.MRELEASE",
        "LOCK.MEXTEND",
        "LOCK.GUARD",
        "LOCK.INFO",
        "LOCK.NODE",
        "LOCK.FORCE",
        "LOCK.HELP",
    ] {
        let listed = text
            .lines()
            .any(|line| line.split(' ').next() == Some(name));
        assert!(listed, "{name} is missing in\n{text}");
    }
    assert!(!text.contains("_APPLY"), "{text}");
}
