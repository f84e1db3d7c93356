//! Notifications of changes: keyspace events, and invalidations of client-side caches.

use redislock_testkit::lock::wait_until_gone;
use redislock_testkit::{Connection, Server, Value, granted};

/// A connection that hears the module's keyspace events.
fn listener(server: &Server) -> Connection {
    server.connect().ok("CONFIG SET notify-keyspace-events KEd");
    let mut listener = server.connect();
    listener.ok("PSUBSCRIBE __keyevent@*__:*");
    listener
}

#[track_caller]
fn next_event(listener: &mut Connection) -> (String, String) {
    let message = listener.receive();
    let items = message.items();
    let event = items[2]
        .text()
        .rsplit("__:")
        .next()
        .expect("an event")
        .to_owned();
    (event, items[3].text().to_owned())
}

#[test]
fn every_change_sends_a_keyspace_event() {
    let server = Server::start();
    let mut c = server.connect();
    let mut listener = listener(&server);
    for (line, event) in [
        ("LOCK.ACQUIRE job me 60000", "lock.acquired"),
        ("LOCK.EXTEND job me 60000", "lock.extended"),
        ("LOCK.RELEASE job me", "lock.released"),
        ("LOCK.ACQUIRE job me 60000", "lock.acquired"),
        ("LOCK.FORCE job", "lock.forced"),
        ("LOCK.ACQUIRE job me 20", "lock.acquired"),
    ] {
        granted(&c.call(line));
        assert_eq!(
            next_event(&mut listener),
            (event.to_owned(), "job".to_owned()),
            "{line}"
        );
    }
    assert_eq!(
        next_event(&mut listener),
        ("lock.expired".to_owned(), "job".to_owned())
    );
}

#[test]
fn a_denial_is_no_event() {
    let server = Server::start();
    let mut c = server.connect();
    c.ok("LOCK.ACQUIRE job me 60000");
    let mut listener = listener(&server);
    for line in [
        "LOCK.ACQUIRE job you 1000",
        "LOCK.RELEASE job you",
        "LOCK.EXTEND job you 1000",
        "LOCK.FORCE none",
    ] {
        assert_eq!(c.call(line), Value::Null);
    }
    c.ok("LOCK.ACQUIRE next me 60000");
    assert_eq!(
        next_event(&mut listener),
        ("lock.acquired".to_owned(), "next".to_owned())
    );
}

#[test]
fn every_change_invalidates_client_side_caches() {
    let server = Server::start();
    let mut c = server.connect();
    let mut reader = server.connect().resp3();
    reader.ok("CLIENT TRACKING ON");
    for change in [
        "LOCK.ACQUIRE job me 60000",
        "LOCK.ACQUIRE job me 60000",
        "LOCK.EXTEND job me 90000",
        "LOCK.RELEASE job me",
        "LOCK.FORCE job",
        "LOCK.MACQUIRE 1 job me 60000",
        "LOCK.MEXTEND 1 job me 90000",
        "LOCK.MRELEASE 1 job me",
        "LOCK.ACQUIRE job me 20",
    ] {
        reader.ok("LOCK.INFO job");
        let told = c.call(change);
        assert!(
            !told.is_error() && told != Value::Null,
            "{change}: {told:?}"
        );
        assert_invalidated(&mut reader, change);
    }
    wait_until_gone(&mut c, "job");
    c.ok("LOCK.ACQUIRE job me 1000");
    // The lease may end before it is read: then there is nothing to invalidate.
    if reader.call("LOCK.INFO job") == Value::Null {
        return;
    }
    assert_invalidated(&mut reader, "the end of the lease");
}

#[track_caller]
fn assert_invalidated(reader: &mut Connection, change: &str) {
    let Value::Push(push) = reader.receive() else {
        panic!("no push after {change}")
    };
    assert_eq!(push[0].text(), "invalidate", "{change}");
    assert_eq!(push[1].items()[0].text(), "job", "{change}");
}
