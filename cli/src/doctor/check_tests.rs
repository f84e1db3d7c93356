//! Tests of the checks, without nodes.

use std::time::Duration;

use super::checks::check;
use super::facts::{Deployment, Kind, MIGRATION, Node, State};
use super::finding::Severity::{self, Error, Note, Warning};

/// A node without any problem.
fn fit(name: &str) -> Node {
    let map = |pairs: &[(&str, &str)]| {
        let pairs = pairs.iter();
        pairs
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    };
    Node {
        name: name.to_owned(),
        state: Ok(State {
            version: "0.1.0".to_owned(),
            role: "master".to_owned(),
            incarnation: name.to_owned(),
            max_ttl: Duration::from_secs(30),
            round_trip: Duration::from_millis(1),
            info: map(&[
                ("redis_version", "7.0.15"),
                ("connected_clients", "1"),
                ("connected_slaves", "0"),
            ]),
            settings: map(&[
                ("lock.quarantine", "30000"),
                ("maxmemory-policy", "noeviction"),
                ("maxclients", "20000"),
                ("lock.max-waiters", "10000"),
                ("min-replicas-to-write", "0"),
            ]),
            ..State::default()
        }),
    }
}

fn three() -> Deployment {
    Deployment {
        kind: Kind::Masters,
        nodes: ["a", "b", "c"].map(fit).to_vec(),
        node_timeout: Duration::from_millis(500),
        plaintext_password: false,
        slots: Vec::new(),
    }
}

/// The findings after a change of one node.
fn after(change: impl FnOnce(&mut State)) -> Vec<(&'static str, Severity)> {
    let mut deployment = three();
    if let Ok(state) = &mut deployment.nodes[0].state {
        change(state);
    }
    found(&deployment)
}

fn found(deployment: &Deployment) -> Vec<(&'static str, Severity)> {
    let findings = check(deployment);
    findings
        .iter()
        .map(|finding| (finding.check, finding.severity))
        .collect()
}

fn set(state: &mut State, name: &str, value: &str) {
    state.settings.insert(name.to_owned(), value.to_owned());
}

#[test]
fn a_sound_deployment_has_no_findings() {
    assert_eq!(check(&three()), []);
}

#[test]
fn what_stops_or_breaks_locks_is_an_error() {
    assert_eq!(
        after(|state| state.role = "replica".to_owned()),
        [("role", Error)]
    );
    assert_eq!(after(|state| state.failed = true), [("failed", Error)]);
    assert_eq!(
        after(|state| set(state, "maxmemory-policy", "allkeys-lru")),
        [("maxmemory-policy", Error)]
    );
    assert_eq!(
        after(|state| state.incarnation = "b".to_owned()),
        [("same-server", Error)]
    );
    assert_eq!(
        after(|state| state
            .refused
            .push(("LOCK.ACQUIRE".to_owned(), "NOPERM".to_owned()))),
        [("permissions", Error)]
    );
    assert_eq!(
        after(|state| state.clock_lead = 11_000_000),
        [("clock", Error)]
    );
    assert_eq!(
        after(|state| drop(
            state
                .info
                .insert("redis_version".to_owned(), "6.2.1".to_owned())
        )),
        [("server-version", Error), ("server-version", Warning)]
    );
}

#[test]
fn what_works_badly_is_a_warning() {
    assert_eq!(
        after(|state| state.quarantine = Duration::from_secs(1)),
        [("quarantine-running", Warning)]
    );
    assert_eq!(
        after(|state| state.clock_lead = 2_000_000),
        [("clock", Warning)]
    );
    assert_eq!(
        after(|state| state.fence_lead = 20_000_000),
        [("fence-lead", Warning)]
    );
    assert_eq!(
        after(|state| state.round_trip = Duration::from_millis(300)),
        [("round-trip", Warning)]
    );
    assert_eq!(
        after(|state| state.version = "0.2.0".to_owned()),
        [("module-version", Warning)]
    );
    assert_eq!(
        after(|state| state.max_ttl = Duration::from_secs(9)),
        [("max-ttl", Warning)]
    );
    assert_eq!(
        after(|state| drop(
            state
                .info
                .insert("connected_clients".to_owned(), "19000".to_owned())
        )),
        [("maxclients", Warning)]
    );
    assert_eq!(
        after(|state| set(state, "maxclients", "10000")),
        [("maxclients", Note)]
    );
}

#[test]
fn a_node_must_keep_its_grants_or_pause() {
    let forgetful = after(|state| set(state, "lock.quarantine", "0"));
    assert_eq!(forgetful, [("persistence", Error), ("quarantine", Warning)]);
    let durable = after(|state| {
        set(state, "lock.quarantine", "0");
        state.durable = true;
    });
    assert_eq!(durable, [("quarantine", Warning)]);
}

#[test]
fn behind_sentinel_a_replaced_master_must_stop() {
    let mut deployment = three();
    deployment.kind = Kind::Sentinel;
    deployment.nodes.truncate(1);
    assert_eq!(
        found(&deployment),
        [("min-replicas", Error), ("replicas", Warning)]
    );
    if let Ok(state) = &mut deployment.nodes[0].state {
        set(state, "min-replicas-to-write", "1");
        state
            .info
            .insert("connected_slaves".to_owned(), "1".to_owned());
    }
    assert_eq!(found(&deployment), []);
    if let Ok(state) = &mut deployment.nodes[0].state {
        set(state, "min-replicas-max-lag", "0");
    }
    assert_eq!(found(&deployment), [("min-replicas", Error)]);
}

/// The findings of a master behind Sentinel, after a change of its replica.
fn after_replica(change: impl FnOnce(&mut Node)) -> Vec<(&'static str, Severity)> {
    let mut replica = fit("replica");
    let settings = |node: &mut Node| {
        if let Ok(state) = &mut node.state {
            set(state, "min-replicas-to-write", "1");
            set(state, "min-replicas-max-lag", "10");
        }
    };
    settings(&mut replica);
    change(&mut replica);
    let mut master = fit("master");
    settings(&mut master);
    if let Ok(state) = &mut master.state {
        let connected = ("connected_slaves".to_owned(), "1".to_owned());
        state.info.extend([connected]);
        state.replicas.push(replica);
    }
    found(&Deployment {
        kind: Kind::Sentinel,
        nodes: vec![master],
        ..three()
    })
}

#[test]
fn a_replica_must_be_fit_to_take_over() {
    assert_eq!(after_replica(|_| ()), []);
    let setting = |name: &'static str, value: &'static str| {
        after_replica(move |node| {
            if let Ok(state) = &mut node.state {
                set(state, name, value);
            }
        })
    };
    let off = [("replica-settings", Error)];
    assert_eq!(setting("lock.quarantine", "0"), off);
    assert_eq!(setting("min-replicas-to-write", "0"), off);
    let other = [("replica-settings", Warning)];
    assert_eq!(setting("lock.quarantine", "10000"), other);
    assert_eq!(setting("min-replicas-max-lag", "5"), other);
    assert_eq!(setting("min-replicas-max-lag", "0"), off);
    assert_eq!(setting("maxmemory-policy", "allkeys-lru"), off);
    assert_eq!(setting("maxmemory-policy", "volatile-lru"), []);
    let unreadable = after_replica(|node| {
        if let Ok(state) = &mut node.state {
            state.settings.clear();
        }
    });
    assert_eq!(unreadable, [("permissions", Note)]);
    let older = after_replica(|node| {
        if let Ok(state) = &mut node.state {
            state.version = "0.0.9".to_owned();
        }
    });
    assert_eq!(older, [("module-version", Warning)]);
    let silent = |problem: &str| {
        let problem = problem.to_owned();
        after_replica(|node| node.state = Err(problem))
    };
    assert_eq!(silent("unreachable"), [("replicas", Note)]);
    assert_eq!(silent("its address cannot be used"), [("replicas", Note)]);
    assert_eq!(silent("the module is not loaded"), [("replicas", Error)]);
}

#[test]
fn without_the_settings_it_is_still_reported_that_nothing_can_take_over() {
    let mut deployment = three();
    deployment.kind = Kind::Sentinel;
    deployment.nodes.truncate(1);
    if let Ok(state) = &mut deployment.nodes[0].state {
        state.settings.clear();
    }
    let notes = [("replicas", Warning), ("permissions", Note)];
    assert_eq!(found(&deployment), notes);
    // Unknown without INFO.
    if let Ok(state) = &mut deployment.nodes[0].state {
        state.info.clear();
    }
    let notes = [("permissions", Note), ("permissions", Note)];
    assert_eq!(found(&deployment), notes);
}

/// A cluster of a master and a replica with the replication lease, after a change of the settings
/// of the master and of the replica.
fn in_a_cluster(change: impl Fn(&mut State, &mut State)) -> Deployment {
    let [mut master, mut replica] = ["master", "replica"].map(fit);
    for node in [&mut master, &mut replica] {
        if let Ok(state) = &mut node.state {
            set(state, "min-replicas-to-write", "1");
            set(state, "min-replicas-max-lag", "10");
            set(state, MIGRATION, "no");
        }
    }
    if let (Ok(of_master), Ok(of_replica)) = (&mut master.state, &mut replica.state) {
        let connected = ("connected_slaves".to_owned(), "1".to_owned());
        of_master.info.extend([connected]);
        change(of_master, of_replica);
        of_master.replicas.push(replica);
    }
    Deployment {
        kind: Kind::Cluster,
        nodes: vec![master],
        ..three()
    }
}

#[test]
fn in_a_cluster_replicas_must_stay_where_they_are() {
    let migration = [("replica-migration", Warning)];
    assert_eq!(found(&in_a_cluster(|_, _| ())), []);
    let all = in_a_cluster(|master, replica| {
        set(master, MIGRATION, "yes");
        set(replica, MIGRATION, "yes");
    });
    assert_eq!(found(&all), migration);
    assert!(check(&all)[0].problem.contains("(master, replica)"));
    let one = in_a_cluster(|_, replica| set(replica, MIGRATION, "yes"));
    assert_eq!(found(&one), migration);
    assert!(check(&one)[0].problem.contains("(replica)"));
    // Behind Sentinel there is no such move.
    let sentinel = Deployment {
        kind: Kind::Sentinel,
        ..all
    };
    assert_eq!(found(&sentinel), []);
    // Without the replication lease, the missing setting is reported instead.
    let unleased = in_a_cluster(|master, replica| {
        set(master, MIGRATION, "yes");
        for state in [master, replica] {
            set(state, "min-replicas-to-write", "0");
        }
    });
    assert_eq!(found(&unleased), [("min-replicas", Error)]);
}

#[test]
fn a_migration_that_cannot_be_checked_is_reported() {
    let unreadable = in_a_cluster(|master, replica| {
        master.settings.clear();
        replica.settings.clear();
    });
    let notes = [("permissions", Note), ("permissions", Note)];
    assert_eq!(found(&unreadable), notes);
    let problem = &check(&unreadable)[0].problem;
    assert!(problem.contains("the migration of replicas"), "{problem}");
}

#[test]
fn a_warning_of_the_module_is_not_repeated() {
    let warning = "neither durable nor quarantined (lock.quarantine)";
    let findings = after(|state| {
        set(state, "lock.quarantine", "0");
        state.warnings.push(warning.to_owned());
    });
    assert_eq!(findings, [("persistence", Error), ("quarantine", Warning)]);
    let other = after(|state| state.warnings.push("something else".to_owned()));
    assert_eq!(other, [("node", Warning)]);
}

#[test]
fn nodes_that_do_not_reply_cost_the_quorum() {
    let mut deployment = three();
    deployment.nodes[0].state = Err("unreachable".to_owned());
    assert_eq!(found(&deployment), [("reachable", Error)]);
    deployment.nodes[1].state = Err("unreachable".to_owned());
    assert_eq!(
        found(&deployment),
        [
            ("reachable", Error),
            ("reachable", Error),
            ("quorum", Error)
        ]
    );
}

#[test]
fn the_number_of_nodes_matters() {
    let mut deployment = three();
    deployment.nodes.truncate(2);
    assert_eq!(found(&deployment), [("node-count", Warning)]);
    deployment.nodes.truncate(1);
    assert_eq!(found(&deployment), [("node-count", Note)]);
}

#[test]
fn keys_that_are_locked_together_share_a_slot() {
    let mut deployment = three();
    deployment.slots = vec![("a".to_owned(), 1), ("b".to_owned(), 2)];
    assert_eq!(found(&deployment), [("hash-tags", Warning)]);
    deployment.slots[1].1 = 1;
    assert_eq!(found(&deployment), []);
}

#[test]
fn a_node_of_a_cluster_is_no_master_of_its_own() {
    let mode = |state: &mut State| {
        let mode = ("redis_mode".to_owned(), "cluster".to_owned());
        state.info.extend([mode]);
    };
    assert_eq!(after(mode), [("cluster-mode", Warning)]);
    let moved = after(|state| {
        mode(state);
        state.unserved = Some("MOVED: 1 b:2".to_owned());
    });
    assert_eq!(moved, [("refused", Error)]);
    let mut cluster = in_a_cluster(|_, _| ());
    if let Ok(state) = &mut cluster.nodes[0].state {
        mode(state);
    }
    assert_eq!(found(&cluster), []);
}

#[test]
fn what_the_server_refuses_is_reported_once() {
    let refused =
        |error: &'static str| move |state: &mut State| state.unserved = Some(error.into());
    assert_eq!(after(refused("OOM used memory")), [("refused", Error)]);
    assert_eq!(after(refused("no reply")), [("refused", Error)]);
    let own = |word: &str| {
        let word = word.to_owned();
        after(|state| state.refusal = Some(word))
    };
    for word in ["memory", "disk", "replicas", "paused", "cluster", "newer"] {
        assert_eq!(own(word), [("refused", Error)], "{word}");
    }
    let both = after(|state| {
        refused("OOM used memory")(state);
        state.refusal = Some("memory".to_owned());
    });
    assert_eq!(both, [("refused", Error)]);
    let disk = after(|state| {
        refused("MISCONF errors")(state);
        let status = ("aof_last_write_status".to_owned(), "err".to_owned());
        state.info.extend([status]);
    });
    assert_eq!(disk, [("aof", Error)]);
    let quarantined = after(|state| {
        refused("NOREPLICAS not enough")(state);
        state.quarantine = Duration::from_secs(1);
    });
    assert_eq!(quarantined, [("quarantine-running", Warning)]);
}
