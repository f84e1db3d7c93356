//! The replication lease: which replica counts, from when on and until when.

use redislock_core::replication_lease::{Listed, Look, Off, ReplicationLease, Rule, Settings};
use redislock_core::time::{Micros, MonoTime};

const Q: u64 = 10_000_000;
const L: u64 = 1_000_000;

fn settings() -> Settings {
    Settings {
        needed: 1,
        lag: Micros(L),
        lag_at_start: Micros(L),
        longest_lease: Some(Micros(Q)),
    }
}

fn rule() -> Rule {
    Rule::of(settings()).expect("a rule")
}

fn look<'a>(at: u64, position: u64, replicas: &'a [Listed<'a>]) -> Look<'a> {
    Look {
        before: MonoTime(at),
        after: MonoTime(at),
        position,
        replicas,
    }
}

fn replica(address: &[u8], acknowledged: u64) -> Listed<'_> {
    Listed {
        address,
        acknowledged,
    }
}

/// One replica that has acknowledged every heartbeat until `end`; positions are moments.
fn followed_until(end: u64) -> ReplicationLease {
    let mut lease = ReplicationLease::new(rule(), MonoTime(1));
    for at in (1..=end).step_by(L as usize / 4) {
        lease.observe(look(at, at, &[replica(b"a", at)]));
    }
    lease
}

#[test]
fn the_wait_covers_the_lease_the_lag_and_clocks_that_differ() {
    assert_eq!(rule().wait, Micros(11_000_000 * 101 / 99 + 1 + 100_000));
}

#[test]
fn the_lag_can_be_lowered_and_the_wait_stays() {
    let lowered = Rule::of(Settings {
        lag: Micros(L / 2),
        ..settings()
    })
    .expect("a rule");
    assert_eq!((lowered.lag, lowered.wait), (Micros(L / 2), rule().wait));
    let raised = Rule::of(Settings {
        lag: Micros(9 * L),
        ..settings()
    });
    assert_eq!(raised, Ok(rule()));
}

#[test]
fn the_rule_needs_replicas_a_lag_and_a_quarantine() {
    let off = |settings| Rule::of(settings).err();
    assert_eq!(
        off(Settings {
            needed: 0,
            ..settings()
        }),
        Some(Off::NoReplicasNeeded)
    );
    assert_eq!(
        off(Settings {
            lag: Micros(0),
            ..settings()
        }),
        Some(Off::NoLag)
    );
    assert_eq!(
        off(Settings {
            lag_at_start: Micros(0),
            ..settings()
        }),
        Some(Off::NoLag)
    );
    assert_eq!(
        off(Settings {
            longest_lease: None,
            ..settings()
        }),
        Some(Off::NoQuarantine)
    );
}

#[test]
fn a_replica_counts_when_it_has_followed_for_the_wait() {
    let wait = rule().wait.0;
    let before = followed_until(wait);
    assert!(!before.permits(MonoTime(wait)));
    let at = followed_until(wait + L);
    assert!(at.permits(MonoTime(wait + L)));
    assert_eq!(at.standing(MonoTime(wait + L)).counted, 1);
}

#[test]
fn evidence_is_as_old_as_the_position_that_was_acknowledged() {
    let end = rule().wait.0 + 2 * L;
    let mut lease = followed_until(end);
    let last = lease.connections()[0].evidence.expect("some evidence");
    // An old acknowledgement that arrives late changes nothing.
    lease.observe(look(
        end + L / 2,
        end + L / 2,
        &[replica(b"a", last.0 + L / 4)],
    ));
    assert_eq!(lease.until(), Some(last.plus(Micros(L))));
    assert!(!lease.permits(last.plus(Micros(L + 1))));
    assert_eq!(lease.standing(last.plus(Micros(L + 1))).since, None);
    assert_eq!(lease.left(last.plus(Micros(L + 1))), Some(Micros(L / 4)));
}

#[test]
fn a_new_connection_of_the_same_replica_starts_again() {
    let end = rule().wait.0 + 2 * L;
    let mut lease = followed_until(end);
    lease.observe(look(end + 1, end + 1, &[]));
    assert!(!lease.permits(MonoTime(end + 1)));
    lease.observe(look(end + 2, end + 2, &[replica(b"a", end)]));
    assert_eq!(lease.left(MonoTime(end + 2)), Some(rule().wait));
}

#[test]
fn of_two_connections_with_one_address_neither_counts() {
    let end = rule().wait.0 + 2 * L;
    let mut lease = followed_until(end);
    let both = [replica(b"a", end), replica(b"a", end)];
    lease.observe(look(end + 1, end + 1, &both));
    assert!(!lease.permits(MonoTime(end + 1)));
    lease.observe(look(end + 2, end + 2, &both[..1]));
    assert_eq!(lease.connections()[0].online_since, MonoTime(end + 2));
}

#[test]
fn another_stream_makes_all_of_them_start_again() {
    let end = rule().wait.0 + 2 * L;
    let mut lease = followed_until(end);
    lease.observe(look(end + 1, 7, &[replica(b"a", end)]));
    assert!(!lease.permits(MonoTime(end + 1)));
    // What it acknowledges of the new stream may be more than it had of the old one.
    let mut lease = ReplicationLease::new(rule(), MonoTime(1));
    for at in (1..=end).step_by(L as usize / 4) {
        lease.observe(look(at, at, &[replica(b"a", at.min(40))]));
    }
    lease.observe(look(end + 1, 50, &[replica(b"a", 45)]));
    assert_eq!(lease.left(MonoTime(end + 1)), Some(rule().wait));
}

#[test]
fn more_than_twice_the_needed_replicas_are_no_majority() {
    let mut lease = ReplicationLease::new(rule(), MonoTime(0));
    lease.observe(look(1, 1, &[replica(b"a", 0), replica(b"b", 0)]));
    assert!(!lease.has_no_majority());
    lease.observe(look(2, 2, &[replica(b"c", 0)]));
    assert!(lease.has_no_majority());
}

#[test]
fn the_wait_never_shrinks() {
    let mut lease = ReplicationLease::new(rule(), MonoTime(0));
    lease.set_rule(
        Rule {
            needed: 2,
            lag: Micros(1),
            wait: Micros(1),
        },
        MonoTime(0),
    );
    assert_eq!(
        lease.rule(),
        Rule {
            needed: 2,
            lag: Micros(1),
            wait: rule().wait
        }
    );
}

#[test]
fn an_acknowledgement_of_what_was_never_written_is_no_evidence() {
    let end = 40 * L + 1;
    let mut lease = followed_until(end);
    assert!(lease.permits(MonoTime(end)));
    for at in (end..end + 3 * Q).step_by(L as usize / 4) {
        lease.observe(look(at, at, &[replica(b"a", u64::MAX / 2)]));
    }
    assert!(!lease.permits(MonoTime(end + 3 * Q)));
}
