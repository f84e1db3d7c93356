//! All checks of a deployment: pure, from facts to findings.

use std::collections::BTreeSet;
use std::time::Duration;

use super::facts::{Deployment, Kind, MIGRATION, Node, State};
use super::finding::Severity::{Error, Note, Warning};
use super::finding::{Finding, Severity};
use super::node_checks::Checks;
use crate::duration::shown;

/// Clocks further apart than this, in µs, need a second round trip for fences, …
const CLOCKS_APART: i64 = 1_000_000;
/// … and nodes refuse fences that are this far ahead of their clocks, in µs.
const FENCES_REFUSED: i64 = 10_000_000;

/// Everything that is wrong, the worst first.
pub fn check(deployment: &Deployment) -> Vec<Finding> {
    let mut findings = Vec::new();
    for node in &deployment.nodes {
        let mut checks = Checks::new(&node.name, deployment);
        match &node.state {
            Ok(state) => checks.all(state),
            Err(problem) => checks.silent(problem),
        }
        findings.extend(checks.findings);
    }
    let states = states(deployment);
    findings.extend(quorum(deployment, states.len()));
    findings.extend(same_server(&states));
    findings.extend(differences(&states));
    findings.extend(clocks(&states));
    findings.extend(replica_migration(deployment));
    findings.extend(deployment.plaintext_password.then(|| Finding {
        severity: Warning,
        check: "tls",
        node: None,
        problem: "a password is sent to another host without encryption".to_owned(),
        fix: "use rediss:// URLs, and tls-port on the servers".to_owned(),
    }));
    findings.extend(hash_tags(deployment));
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings
}

fn states(deployment: &Deployment) -> Vec<(&str, &State)> {
    let nodes = deployment.nodes.iter();
    nodes
        .filter_map(|node| Some((node.name.as_str(), node.state.as_ref().ok()?)))
        .collect()
}

fn about_all(severity: Severity, check: &'static str, problem: String, fix: &str) -> Finding {
    Finding {
        severity,
        check,
        node: None,
        problem,
        fix: fix.to_owned(),
    }
}

fn quorum(deployment: &Deployment, replied: usize) -> Option<Finding> {
    let nodes = deployment.nodes.len();
    if deployment.kind != Kind::Masters {
        return None;
    }
    if replied < nodes / 2 + 1 {
        let problem = format!("{replied} of {nodes} nodes reply: no lock can be acquired");
        let fix = "bring a majority of the nodes back";
        return Some(about_all(Error, "quorum", problem, fix));
    }
    if nodes == 1 {
        let problem = "there is only one node: no locks can be acquired while it is down";
        let problem = problem.to_owned();
        let fix = "use three or five independent masters, or Sentinel, if that matters";
        return Some(about_all(Note, "node-count", problem, fix));
    }
    nodes.is_multiple_of(2).then(|| {
        let survives = (nodes - 1) / 2;
        let problem = format!(
            "an even number of nodes ({nodes}) tolerates no more failures than one node fewer: \
             {survives}"
        );
        let fix = "use an odd number of nodes: three or five";
        about_all(Warning, "node-count", problem, fix)
    })
}

fn same_server(states: &[(&str, &State)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (place, (name, state)) in states.iter().enumerate() {
        let same = |(_, other): &&(&str, &State)| other.incarnation == state.incarnation;
        if let Some((other, _)) = states[..place].iter().find(same) {
            findings.push(Finding {
                severity: Error,
                check: "same-server",
                node: Some((*name).to_owned()),
                problem: format!(
                    "it is the same server as {other}: one server counts twice in the majority"
                ),
                fix: "list each server once".to_owned(),
            });
        }
    }
    findings
}

/// What should be equal on all nodes.
fn differences(states: &[(&str, &State)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut compare = |check, what: &str, fix: &str, value: &dyn Fn(&State) -> Option<String>| {
        let found: Vec<(&str, String)> = states
            .iter()
            .filter_map(|(name, state)| Some((*name, value(state)?)))
            .collect();
        let values: BTreeSet<&String> = found.iter().map(|(_, value)| value).collect();
        if values.len() > 1 {
            let each: Vec<String> = found
                .iter()
                .map(|(name, value)| format!("{name}: {value}"))
                .collect();
            let problem = format!("{what} differs between the nodes ({})", each.join("; "));
            findings.push(about_all(Warning, check, problem, fix));
        }
    };
    compare(
        "module-version",
        "the version of the module",
        "upgrade all nodes to the newest of these versions",
        &|state| Some(state.version.clone()),
    );
    compare(
        "server-version",
        "the server",
        "run the same version everywhere, after an upgrade of all nodes",
        &|state| {
            let valkey = state
                .info
                .get("valkey_version")
                .map(|version| format!("Valkey {version}"));
            valkey.or_else(|| Some(format!("Redis {}", state.info.get("redis_version")?)))
        },
    );
    compare(
        "max-ttl",
        "the longest lease (lock.max-ttl, lock.quarantine)",
        "set the same values on all nodes: the shortest one limits every lock",
        &|state| Some(shown(state.max_ttl)),
    );
    compare(
        "quarantine",
        "lock.quarantine",
        "set the same value on all nodes",
        &|state| state.settings.get("lock.quarantine").cloned(),
    );
    findings
}

fn clocks(states: &[(&str, &State)]) -> Option<Finding> {
    let first = states.iter().min_by_key(|(_, state)| state.clock_lead)?;
    let last = states.iter().max_by_key(|(_, state)| state.clock_lead)?;
    // The round trips make the clocks uncertain by this much.
    let uncertain = (first.1.round_trip + last.1.round_trip) / 2;
    let uncertain = i64::try_from(uncertain.as_micros()).unwrap_or(i64::MAX);
    let apart = last
        .1
        .clock_lead
        .saturating_sub(first.1.clock_lead)
        .saturating_sub(uncertain);
    if apart <= CLOCKS_APART {
        return None;
    }
    let severity = if apart > FENCES_REFUSED {
        Error
    } else {
        Warning
    };
    let apart = shown(Duration::from_micros(apart.unsigned_abs()));
    let problem = format!(
        "the clock of {} is {apart} ahead of that of {}: fences follow the clocks",
        last.0, first.0
    );
    Some(about_all(
        severity,
        "clock",
        problem,
        "synchronize the clocks (NTP)",
    ))
}

/// Whether a cluster may give a master more replicas than its min-replicas-to-write is made for.
/// The replica itself decides, so the setting counts on replicas, and on masters, which may become
/// replicas.
fn replica_migration(deployment: &Deployment) -> Option<Finding> {
    let masters = states(deployment);
    let is_leased = masters
        .iter()
        .any(|(_, state)| state.has_replication_lease());
    if deployment.kind != Kind::Cluster || !is_leased {
        return None;
    }
    let replicas = masters
        .iter()
        .flat_map(|(_, master)| &master.replicas)
        .filter_map(|Node { name, state }| Some((name.as_str(), state.as_ref().ok()?)));
    let all = masters.iter().copied().chain(replicas);
    let migrate = |(_, state): &(&str, &State)| {
        let value = state.settings.get(MIGRATION);
        value.is_some_and(|value| value != "no")
    };
    let names: BTreeSet<&str> = all.filter(migrate).map(|(name, _)| name).collect();
    if names.is_empty() {
        return None;
    }
    let names: Vec<&str> = names.into_iter().collect();
    let problem = format!(
        "{MIGRATION} is yes ({}): the cluster may move a replica to another master, and then \
         min-replicas-to-write is no majority of its nodes: after a failover two masters may grant \
         one lock",
        names.join(", ")
    );
    let fix = "set cluster-allow-replica-migration no on all masters and replicas (CONFIG SET, and \
               in their configuration)";
    Some(about_all(Warning, "replica-migration", problem, fix))
}

fn hash_tags(deployment: &Deployment) -> Option<Finding> {
    let slots: BTreeSet<u64> = deployment.slots.iter().map(|(_, slot)| *slot).collect();
    if slots.len() < 2 {
        return None;
    }
    let each: Vec<String> = deployment
        .slots
        .iter()
        .map(|(key, slot)| format!("{key}: {slot}"))
        .collect();
    let problem = format!(
        "the keys are in different slots ({}): they cannot be locked together",
        each.join("; ")
    );
    let fix = "give them a common hash tag, as in {order:17}:a and {order:17}:b";
    Some(about_all(Warning, "hash-tags", problem, fix))
}
