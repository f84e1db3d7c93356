//! The replication lease: which replica counts, from when on and until when.

use super::*;

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
    // Nor does a look that finds nothing new.
    let late = last.0 + L + 1;
    lease.observe(look(late, late, &[replica(b"a", last.0 + L / 4)]));
    assert_eq!(lease.until(), None);
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

#[test]
fn a_rule_that_needs_more_replicas_counts_at_once() {
    let end = rule().wait.0 + 2 * L;
    let mut lease = followed_until(end);
    assert!(lease.permits(MonoTime(end)));
    let two = Rule {
        needed: 2,
        ..rule()
    };
    lease.set_rule(two, MonoTime(end));
    assert!(!lease.permits(MonoTime(end)));
}

#[test]
fn a_replica_that_acknowledges_less_than_before_is_on_another_connection() {
    let end = rule().wait.0 + 2 * L;
    let mut lease = followed_until(end);
    lease.observe(look(end + 1, end + 1, &[replica(b"a", 5)]));
    assert_eq!(lease.connections()[0].online_since, MonoTime(end + 1));
    assert!(!lease.permits(MonoTime(end + 1)));
}

#[test]
fn while_nothing_is_written_a_connection_stays_and_its_evidence_is_as_young_as_the_last_look() {
    let mut lease = ReplicationLease::new(rule(), MonoTime(0));
    lease.observe(look(1, 7, &[replica(b"a", 0)]));
    lease.observe(look(2, 7, &[replica(b"a", 0)]));
    lease.observe(look(3, 8, &[replica(b"a", 8)]));
    let known = &lease.connections()[0];
    assert_eq!(
        (known.online_since, known.evidence),
        (MonoTime(1), Some(MonoTime(2)))
    );
    // What was written between two looks may be as old as the first of them.
    lease.observe(look(4, 9, &[replica(b"a", 8)]));
    assert_eq!(lease.connections()[0].evidence, Some(MonoTime(2)));
}

#[test]
fn a_position_is_noted_if_a_sixteenth_of_the_lag_has_passed_since_the_last_one() {
    for (gap, evidence) in [(L / 16 - 1, 1), (L / 16, 1 + L / 16)] {
        let mut lease = ReplicationLease::new(rule(), MonoTime(0));
        lease.observe(look(1, 1, &[]));
        lease.observe(look(1 + gap, 2, &[]));
        lease.observe(look(L / 8, 3, &[replica(b"a", 3)]));
        let known = &lease.connections()[0];
        assert_eq!(known.evidence, Some(MonoTime(evidence)));
    }
}

#[test]
fn evidence_that_is_as_old_as_the_lag_counts() {
    let mut lease = ReplicationLease::new(rule(), MonoTime(0));
    lease.observe(look(1, 1, &[]));
    lease.observe(look(1 + L, 2, &[]));
    lease.observe(look(1 + L, 2, &[replica(b"a", 2)]));
    assert_eq!(lease.connections()[0].evidence, Some(MonoTime(1)));
    let end = rule().wait.0 + 2 * L;
    let lease = followed_until(end);
    let last = lease.connections()[0].evidence.expect("some evidence");
    let moments = [L, L + 1].map(|age| last.plus(Micros(age)));
    assert_eq!(moments.map(|at| lease.permits(at)), [true, false]);
    assert_eq!(moments.map(|at| lease.standing(at).counted), [1, 0]);
}

#[test]
fn only_the_positions_of_the_last_lag_and_as_many_replicas_as_decide_are_remembered() {
    let beat = L / 4 + 1;
    let from = |first: u64| {
        let mut lease = ReplicationLease::new(rule(), MonoTime(0));
        for at in (first..=400).map(|n| n * beat) {
            lease.observe(look(at, at, &[]));
        }
        lease
    };
    assert_eq!(from(0), from(397));
    let after = |replicas: u8| {
        let mut lease = ReplicationLease::new(rule(), MonoTime(0));
        for n in 0..replicas {
            lease.observe(look(1, 1, &[replica(&[n], 0)]));
        }
        lease.observe(look(2, 2, &[]));
        lease
    };
    assert_eq!(after(3), after(100));
}

#[test]
fn operators_are_told_who_counts_since_when_and_how_old_the_evidence_is() {
    let end = rule().wait.0 + 2 * L;
    let mut lease = followed_until(end);
    let last = lease.connections()[0].evidence.expect("some evidence");
    let first = 1 + rule().wait.0.div_ceil(L / 4) * (L / 4);
    let told = Standing {
        needed: 1,
        counted: 1,
        since: Some(MonoTime(first)),
        evidence_age: Some(MonoTime(end).since(last)),
    };
    assert_eq!(lease.standing(MonoTime(end)), told);
    let broken = end + 2 * L;
    let acknowledged = last.0 + L / 4;
    lease.observe(look(broken, broken, &[replica(b"a", acknowledged)]));
    let told = Standing {
        counted: 0,
        since: None,
        evidence_age: Some(MonoTime(broken).since(last)),
        ..told
    };
    assert_eq!(lease.standing(MonoTime(broken)), told);
    lease.observe(look(broken + 9, broken + 9, &[replica(b"a", broken + 5)]));
    let told = Standing {
        counted: 1,
        since: Some(MonoTime(broken + 9)),
        evidence_age: Some(Micros(9)),
        ..told
    };
    assert_eq!(lease.standing(MonoTime(broken + 9)), told);
    let two = Rule {
        needed: 2,
        ..rule()
    };
    lease.set_rule(two, MonoTime(broken + 9));
    assert_eq!(lease.standing(MonoTime(broken + 9)).evidence_age, None);
}

#[test]
fn there_are_four_heartbeats_within_the_lag() {
    assert_eq!(rule().heartbeat(), Micros(L / 4));
    let short = Rule {
        lag: Micros(3),
        ..rule()
    };
    assert_eq!(short.heartbeat(), Micros(1), "some time passes between two");
}

#[test]
fn the_time_left_is_that_of_the_last_replica_that_is_needed() {
    let two = Rule {
        needed: 2,
        ..rule()
    };
    let left = |micros| Some(Micros(micros));
    let mut lease = ReplicationLease::new(two, MonoTime(0));
    assert_eq!(
        lease.left(MonoTime(100)),
        left(two.wait.0),
        "nobody follows"
    );
    let all = [b"a", b"b", b"c"].map(|address| replica(address, 0));
    for (at, count) in [(10, 1), (20, 2), (30, 3)] {
        lease.observe(look(at, at, &all[..count]));
    }
    assert_eq!(lease.left(MonoTime(100)), left(two.wait.0 - 80));
    // All that is missing is an acknowledgement: soon, but not at once.
    for (lag, wait) in [(L / 2, L / 8), (4 * L, L / 4)] {
        let lag = Micros(lag);
        let mut lease = ReplicationLease::new(Rule { lag, ..rule() }, MonoTime(0));
        lease.observe(look(1, 1, &[replica(b"a", 0)]));
        assert_eq!(lease.left(MonoTime(100 * L)), left(wait));
    }
    let end = rule().wait.0 + 2 * L;
    assert_eq!(
        followed_until(end).left(MonoTime(end)),
        None,
        "it may grant"
    );
}

#[test]
fn the_next_look_is_at_a_heartbeat_or_earlier_if_a_grant_may_be_possible_then() {
    let wait = rule().wait.0;
    let mut lease = ReplicationLease::new(rule(), MonoTime(0));
    lease.observe(look(5, 5, &[replica(b"a", 0)]));
    for (now, next) in [
        (10, 10 + L / 4),
        // The node has been a master for long enough, then its replica has followed long enough.
        (wait - 1, wait),
        (wait, wait + 5),
        // Only an acknowledgement is missing.
        (wait + 5, wait + 5 + 50_000),
    ] {
        assert_eq!(lease.next_look(MonoTime(now)), MonoTime(next), "at {now}");
    }
    let end = wait + 2 * L;
    let next = followed_until(end).next_look(MonoTime(end));
    assert_eq!(next, MonoTime(end + L / 4), "while it may grant");
}
