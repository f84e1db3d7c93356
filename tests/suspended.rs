//! A host that was suspended: leases, waits and quarantines continue during that time, like
//! the clocks of holders on other hosts.

use redislock_testkit::lock::{sole_holder, wait_for_waiters};
use redislock_testkit::{Server, SteppedServer, Value, free_port, granted, wait_until};

#[test]
fn a_lease_that_passed_during_the_suspension_has_ended() {
    let stepped = SteppedServer::start(Server::options());
    let server = &stepped.server;
    let (mut c, mut next) = (server.connect(), server.connect());
    granted(&c.call("LOCK.ACQUIRE short me 600000"));
    granted(&c.call("LOCK.ACQUIRE long me 3600000"));
    next.send("LOCK.ACQUIRE short you 600000 BLOCK 0");
    wait_for_waiters(&mut c, "short", 1);
    stepped.suspended_for(601);
    // No request asks for it: the server finds it by itself.
    granted(&next.receive());
    assert_eq!(c.call("LOCK.EXTEND short me 600000"), Value::Null);
    let left = sole_holder(&mut c, "long").number("ttl");
    assert!((1_000_000..=2_999_000).contains(&left), "{left}");
}

#[test]
fn a_request_right_after_the_suspension_finds_the_lease_ended() {
    let stepped = SteppedServer::start(Server::options());
    let mut c = stepped.server.connect();
    let mut suspended = 0;
    for n in 0..10 {
        granted(&c.call("LOCK.ACQUIRE job me 600000"));
        suspended += 601;
        stepped.suspended_for(suspended);
        granted(&c.call(&format!("LOCK.ACQUIRE job next-{n} 600000")));
        c.ok("LOCK.FORCE job");
    }
}

#[test]
fn a_wait_that_passed_during_the_suspension_is_over() {
    let stepped = SteppedServer::start(Server::options());
    let server = &stepped.server;
    let (mut c, mut next) = (server.connect(), server.connect());
    granted(&c.call("LOCK.ACQUIRE job me 3600000"));
    next.send("LOCK.ACQUIRE job you 600000 BLOCK 300000");
    wait_for_waiters(&mut c, "job", 1);
    stepped.suspended_for(301);
    assert_eq!(next.receive(), Value::Null);
}

#[test]
fn a_quarantine_passes_during_the_suspension() {
    let stepped = SteppedServer::start(Server::options().config("lock.quarantine 600000"));
    let mut c = stepped.server.connect();
    assert!(c.call("LOCK.ACQUIRE job me 1000").is_error());
    stepped.suspended_for(610);
    granted(&c.call("LOCK.ACQUIRE job me 1000"));
}

/// It may have been replaced in the meantime.
#[test]
fn a_suspension_is_a_standstill() {
    let stepped = SteppedServer::start(
        Server::options()
            .config("cluster-enabled yes")
            .config(&format!("cluster-port {}", free_port()))
            .config("lock.quarantine 100"),
    );
    let mut c = stepped.server.connect();
    c.ok("CLUSTER ADDSLOTSRANGE 0 16383");
    wait_until("locks are granted", || {
        !c.call("LOCK.ACQUIRE job me 100").is_error()
    });
    stepped.suspended_for(10);
    wait_until("the standstill is noticed", || {
        stepped.server.log().contains("after a standstill")
    });
}
