//! Checks of a single node.

use std::time::Duration;

use super::facts::{Deployment, Kind, NO_REPLY, State};
use super::finding::Severity::{Error, Note, Warning};
use super::finding::{Finding, Severity};
use crate::duration::shown;
use crate::refusal;
use crate::remedy::remedy;

/// The oldest servers that the module supports.
const OLDEST_REDIS: (u64, u64) = (7, 0);
const OLDEST_VALKEY: (u64, u64) = (7, 2);
/// A fence counter this far ahead of its clock, in µs, means that the clock was set back.
const FENCE_AHEAD: i64 = 10_000_000;
/// What to do about a node of a cluster that is listed like an independent master.
const CLUSTER_URL: &str = "give the nodes of a cluster as one redis+cluster:// URL";
/// Connections beyond those of the waiters: holders that release, operators, replicas.
const SPARE_CONNECTIONS: u64 = 100;

/// The findings of one node.
pub struct Checks<'a> {
    name: &'a str,
    deployment: &'a Deployment,
    pub findings: Vec<Finding>,
}

impl<'a> Checks<'a> {
    pub fn new(name: &'a str, deployment: &'a Deployment) -> Self {
        Self {
            name,
            deployment,
            findings: Vec::new(),
        }
    }

    pub(super) fn add(
        &mut self,
        severity: Severity,
        check: &'static str,
        problem: String,
        fix: &str,
    ) {
        self.findings.push(Finding {
            severity,
            check,
            node: Some(self.name.to_owned()),
            problem,
            fix: fix.to_owned(),
        });
    }

    /// A node that does not reply as a node should.
    pub fn silent(&mut self, problem: &str) {
        self.add(Error, "reachable", problem.to_owned(), remedy(problem));
    }

    pub fn all(&mut self, state: &State) {
        self.server(state);
        self.service(state);
        self.memory_of_grants(state);
        self.failover(state);
        self.replicas(state);
        self.eviction(state);
        self.clock(state);
        self.connections(state);
        self.refusal(state);
        self.cluster_mode(state);
        self.memory(state);
        self.permissions(state);
        self.own_warnings(state);
    }

    fn server(&mut self, state: &State) {
        let (name, version, oldest) = match state.info.get("valkey_version") {
            Some(version) => ("Valkey", version, OLDEST_VALKEY),
            None => match state.info.get("redis_version") {
                Some(version) => ("Redis", version, OLDEST_REDIS),
                None => {
                    return self.add(
                        Note,
                        "permissions",
                        "INFO cannot be read: the version of the server, its replicas and its \
                     connections are not checked"
                            .to_owned(),
                        "run doctor as a user with +info",
                    );
                }
            },
        };
        let mut parts = version.split('.').map(|part| part.parse().ok());
        let (Some(Some(major)), Some(Some(minor))) = (parts.next(), parts.next()) else {
            let problem = format!("the version {version} of the server is unknown");
            return self.add(
                Note,
                "server-version",
                problem,
                "use a release of the server",
            );
        };
        if (major, minor) < oldest {
            let problem = format!("{name} {version} is older than the module supports");
            self.add(
                Error,
                "server-version",
                problem,
                "upgrade to Redis 7.0, Valkey 7.2 or newer",
            );
        }
    }

    /// Whether it grants locks now.
    fn service(&mut self, state: &State) {
        if state.failed {
            self.add(
                Error,
                "failed",
                "an internal error has stopped the module: it refuses every change of a lock"
                    .to_owned(),
                "read the log of the server, restart it, and report the error",
            );
        }
        if state.role != "master" {
            let problem = format!("it is a {}: it grants no locks", state.role);
            self.add(
                Error,
                "role",
                problem,
                "list its master instead, or use a redis+sentinel:// URL",
            );
        } else if !state.quarantine.is_zero() {
            let reason = state.info.get("lock_quarantine_reason");
            let (why, fix) = quarantine_advice(reason.map_or("", String::as_str));
            let left = shown(state.quarantine);
            self.add(
                Warning,
                "quarantine-running",
                format!("it is quarantined for another {left}: {why}"),
                fix,
            );
        }
        if state
            .info
            .get("aof_last_write_status")
            .is_some_and(|status| status != "ok")
        {
            self.add(
                Error,
                "aof",
                "the last write to the AOF failed: grants are not saved".to_owned(),
                "free disk space, or repair the disk",
            );
        }
    }

    /// Whether the server itself refuses what the module would grant.
    fn refusal(&mut self, state: &State) {
        let own = state.refusal.as_deref().map(refusal::problem);
        let error = state.unserved.as_deref().filter(|error| *error != NO_REPLY);
        let problem = match (error, own, &state.unserved) {
            (Some(error), _, _) => format!("it does not serve LOCK.ACQUIRE: {error}"),
            (None, Some(own), _) => format!("it {own}"),
            (None, None, Some(silent)) => format!("it does not serve LOCK.ACQUIRE: {silent}"),
            (None, None, None) => return,
        };
        let found = |check: &str| self.findings.iter().any(|found| found.check == check);
        let is_said = match &problem {
            _ if state.failed || state.role != "master" => true,
            problem if problem.contains("MISCONF") => found("aof"),
            problem if problem.contains("NOREPLICAS") => found("quarantine-running"),
            _ => false,
        };
        if !is_said {
            let fix = refusal_advice(&problem);
            self.add(Error, "refused", problem, fix);
        }
    }

    /// Whether it is a node of a cluster that is used as a master of its own.
    fn cluster_mode(&mut self, state: &State) {
        let mode = state.info.get("redis_mode");
        let is_said = self.findings.iter().any(|found| found.check == "refused");
        let is_cluster = mode.is_some_and(|mode| mode == "cluster");
        if self.deployment.kind == Kind::Masters && is_cluster && !is_said {
            let problem = "it runs in cluster mode: it serves only the keys of its own slots";
            self.add(Warning, "cluster-mode", problem.to_owned(), CLUSTER_URL);
        }
    }

    /// Whether it will soon refuse new locks. A server that evicts is always near its limit.
    fn memory(&mut self, state: &State) {
        let (used, limit) = (state.number("used_memory"), state.number("maxmemory"));
        let (Some(used), Some(limit @ 1..)) = (used, limit) else {
            return;
        };
        let policy = state.info.get("maxmemory_policy").map(String::as_str);
        let is_said = self.findings.iter().any(|found| found.check == "refused");
        if policy == Some("noeviction") && !is_said && used > limit / 10 * 9 {
            self.add(
                Warning,
                "memory",
                format!(
                    "{used} of {limit} bytes of maxmemory are in use: at the limit, the server \
                     refuses new locks"
                ),
                "free memory (MEMORY STATS), or raise maxmemory",
            );
        }
    }

    /// Whether it can lose grants at a restart without pausing.
    fn memory_of_grants(&mut self, state: &State) {
        if state.settings.is_empty() {
            let migration = match self.deployment.kind {
                Kind::Cluster => "the migration of replicas, ",
                _ => "",
            };
            let problem = format!(
                "CONFIG GET cannot be run: quarantine, eviction, min-replicas, {migration}and \
                 limits are not checked"
            );
            let fix = "run doctor as a user with +config|get";
            return self.add(Note, "permissions", problem, fix);
        }
        let quarantined = state.number("lock.quarantine").unwrap_or(0) > 0;
        if !quarantined && !state.durable {
            self.add(
                Error,
                "persistence",
                "it is neither durable nor quarantined: after a restart it may grant a lock that \
                 is still held"
                    .to_owned(),
                "set lock.quarantine (30000 is usual), or appendonly yes with appendfsync always, \
                 and restart the server",
            );
        }
    }

    /// Whether a promoted replica, or a master that was replaced, can break a lock.
    fn failover(&mut self, state: &State) {
        // Unknown without INFO.
        let connected = state.number("connected_slaves");
        let replicas = connected.unwrap_or(0);
        let fails_over = self.deployment.kind != Kind::Masters;
        if state.role != "master" {
            return;
        }
        if self.deployment.kind == Kind::Masters && self.deployment.nodes.len() > 1 && replicas > 0
        {
            self.add(
                Warning,
                "replicas",
                format!(
                    "it has replicas ({replicas}): promoting one breaks the independence of the \
                         masters"
                ),
                "run masters of a quorum without replicas, and do not promote any",
            );
        }
        if replicas == 0 && !fails_over {
            return;
        }
        let severity = if fails_over { Error } else { Warning };
        if state.number("lock.quarantine") == Some(0) && state.durable {
            self.add(
                severity,
                "persistence",
                "lock.quarantine is 0: a promoted replica may grant a lock that is still held"
                    .to_owned(),
                "set lock.quarantine (30000 is usual) in the configuration of the master and of \
                 its replicas, and restart them",
            );
        }
        self.min_replicas(state, severity);
        if fails_over && connected == Some(0) {
            self.add(
                Warning,
                "replicas",
                "it has no connected replica: nothing can take over".to_owned(),
                "connect at least one replica, better two",
            );
        }
    }

    /// Whether a master that was replaced stops.
    fn min_replicas(&mut self, state: &State, severity: Severity) {
        if state.number("min-replicas-to-write") == Some(0) {
            self.add(
                severity,
                "min-replicas",
                "min-replicas-to-write is 0: a master that was replaced continues to grant and \
                 extend locks"
                    .to_owned(),
                "set min-replicas-to-write 1 and min-replicas-max-lag 10 on the master and on its \
                 replicas",
            );
        }
        let counts_none = state.number("min-replicas-max-lag") == Some(0);
        if counts_none && state.number("min-replicas-to-write").unwrap_or(0) > 0 {
            self.add(
                severity,
                "min-replicas",
                "min-replicas-max-lag is 0, which turns min-replicas-to-write off: a master that \
                 was replaced continues to grant and extend locks"
                    .to_owned(),
                "set min-replicas-max-lag 10 on the master and on its replicas, and restart them",
            );
        }
    }

    fn eviction(&mut self, state: &State) {
        let policy = state.settings.get("maxmemory-policy");
        if let Some(policy) = policy.filter(|policy| policy.starts_with("allkeys")) {
            self.add(
                Error,
                "maxmemory-policy",
                format!("maxmemory-policy {policy} may evict a lock while it is held"),
                "set maxmemory-policy noeviction; use another server as a cache",
            );
        }
        let evicted = state.number("lock_evicted").unwrap_or(0);
        if evicted > 0 {
            self.add(
                Error,
                "evicted",
                format!("locks evicted since the server started: {evicted}"),
                "set maxmemory-policy noeviction",
            );
        }
    }

    fn clock(&mut self, state: &State) {
        if state.fence_lead > FENCE_AHEAD {
            let ahead = Duration::from_micros(state.fence_lead.unsigned_abs());
            self.add(
                Warning,
                "fence-lead",
                format!(
                    "its fence counter is {} ahead of its clock: the clock was set back",
                    shown(ahead)
                ),
                "set the clock right and keep it synchronized (NTP)",
            );
        }
        let limit = self.deployment.node_timeout / 2;
        if state.round_trip > limit {
            self.add(
                Warning,
                "round-trip",
                format!(
                    "its fastest reply took {}, more than half of the node timeout of {}",
                    shown(state.round_trip),
                    shown(self.deployment.node_timeout)
                ),
                "raise --node-timeout and the ttl, or move the node closer",
            );
        }
    }

    fn connections(&mut self, state: &State) {
        let clients = state.number("maxclients");
        let (Some(limit), Some(used)) = (clients, state.number("connected_clients")) else {
            return;
        };
        if used.saturating_mul(10) > limit.saturating_mul(9) {
            self.add(
                Warning,
                "maxclients",
                format!("{used} of {limit} connections are in use"),
                "raise maxclients and the limit of open files (LimitNOFILE, ulimit -n)",
            );
        }
        let Some(waiters) = state.number("lock.max-waiters") else {
            return;
        };
        if limit < waiters.saturating_add(SPARE_CONNECTIONS) {
            self.add(
                Note,
                "maxclients",
                format!(
                    "maxclients {limit} leaves no connections beside lock.max-waiters {waiters}: \
                     if all wait, no holder can connect to release"
                ),
                "lower lock.max-waiters, or raise maxclients and the limit of open files",
            );
        }
    }

    fn permissions(&mut self, state: &State) {
        for (command, error) in &state.refused {
            self.add(
                Error,
                "permissions",
                format!("the user may not run {command} ({error})"),
                "allow the command and the key pattern of the locks (ACL SETUSER); \
                 docs/OPERATIONS.md has examples",
            );
        }
    }

    /// What the module itself warns about, unless a finding about the same setting says it already.
    fn own_warnings(&mut self, state: &State) {
        const TOPICS: [(&str, &str); 3] = [
            ("lock.quarantine", "persistence"),
            ("maxmemory-policy", "maxmemory-policy"),
            ("min-replicas", "min-replicas"),
        ];
        for warning in &state.warnings {
            let said = TOPICS.iter().any(|(setting, check)| {
                warning.contains(setting) && self.findings.iter().any(|found| found.check == *check)
            });
            if !said {
                let fix = "see the settings that it names in docs/OPERATIONS.md";
                self.add(Warning, "node", warning.clone(), fix);
            }
        }
    }
}

/// What to do about a server that refuses LOCK.ACQUIRE, by its error.
fn refusal_advice(error: &str) -> &'static str {
    const PAUSED: &str = "wait if a failover runs; if writes are paused (CLIENT PAUSE), end that \
                          with CLIENT UNPAUSE";
    const ADVICE: [(&str, &str); 8] = [
        (
            "OOM",
            "free memory (MEMORY STATS), or raise maxmemory; leave maxmemory-policy at noeviction",
        ),
        (
            "MISCONF",
            "free disk space, or repair the disk, then BGSAVE; INFO persistence and the log of the \
             server name the error",
        ),
        (
            "NOREPLICAS",
            "start or reconnect its replicas (INFO replication)",
        ),
        (
            "CLUSTERDOWN",
            "bring back the masters that are missing (CLUSTER INFO, CLUSTER NODES)",
        ),
        ("MOVED", CLUSTER_URL),
        ("ASK", CLUSTER_URL),
        ("writes are paused", PAUSED),
        (NO_REPLY, PAUSED),
    ];
    let known = ADVICE.iter().find(|(word, _)| error.contains(word));
    known.map_or(
        "the error or the log of the server says what it needs",
        |(_, advice)| advice,
    )
}

/// Why a node is quarantined, and what to do, by the reason that `INFO lock` names.
fn quarantine_advice(reason: &str) -> (&'static str, &'static str) {
    const WAIT: &str = "wait; other nodes of a quorum still grant locks";
    match reason {
        "start" => ("it was started and may have lost locks", WAIT),
        "promotion" => (
            "it was promoted and may not have all locks of its master",
            WAIT,
        ),
        "flush" => (
            "it was flushed, and clients may still rely on the removed locks",
            WAIT,
        ),
        "standstill" => (
            "it stood still for so long that another node may have replaced it",
            "wait; find out why the server stopped (CPU, swap, disk, a paused virtual machine)",
        ),
        "replicas" => (
            "too few replicas confirm that it is the only master",
            "start or reconnect its replicas (INFO replication); each counts after the quarantine",
        ),
        "settings" => (
            "it cannot read min-replicas-to-write",
            "set lock.min-replicas and lock.max-lag in its configuration, and restart it",
        ),
        _ => (
            "it may have lost locks, or too few replicas confirm that it is the only master",
            "wait; if it does not end, INFO lock_state names the reason",
        ),
    }
}
