//! The facts that the checks use, as the nodes report them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use redis::{Cmd, Value};
use redislock_client::{Answer, NodeStatus, Verdict};

use crate::args::Where;
use crate::exit::Failure;
use crate::names::shown_key;
use crate::node_urls::{Login, NodeUrls};
use crate::raw_reply::{fields, info_fields, integer, text};
use crate::view::View;

/// How often each node is asked for its state: the fastest reply has the most exact clock.
const SAMPLES: usize = 5;
/// The key for checks of permissions if none is given.
const PROBE_KEY: &str = "redlock-doctor";
/// Holds nothing anywhere: with it, the probes below change nothing.
const PROBE_TOKEN: &str = "redlock-doctor-holds-nothing";
/// How many of the commands that are tried are write commands.
const WRITES: usize = 3;
/// The result of a probe that a node does not reply to, although it replies to other commands.
pub const NO_REPLY: &str = "no reply";
/// Whether the cluster may give a replica another master.
pub const MIGRATION: &str = "cluster-allow-replica-migration";
/// The settings that are read.
const SETTINGS: [&str; 9] = [
    "maxmemory-policy",
    "maxclients",
    "min-replicas-to-write",
    "min-replicas-max-lag",
    MIGRATION,
    "lock.quarantine",
    "lock.max-ttl",
    "lock.max-waiters",
    "lock.max-hold",
];

/// How the nodes belong together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Masters,
    Sentinel,
    Cluster,
}

/// A whole deployment.
#[derive(Clone, Debug)]
pub struct Deployment {
    pub kind: Kind,
    pub nodes: Vec<Node>,
    /// How long a node may take to reply.
    pub node_timeout: Duration,
    /// Whether a password is sent in plaintext to another host: one of the URLs, or one that a
    /// cluster or a master names.
    pub plaintext_password: bool,
    /// The slots of the given keys, in a cluster.
    pub slots: Vec<(String, u64)>,
}

/// One node: what it says, or why it says nothing.
#[derive(Clone, Debug)]
pub struct Node {
    pub name: String,
    pub state: Result<State, String>,
}

/// What a node says about itself. A map or text that the user may not read is empty.
#[derive(Clone, Default, Debug)]
pub struct State {
    pub version: String,
    pub role: String,
    pub incarnation: String,
    pub quarantine: Duration,
    pub durable: bool,
    pub max_ttl: Duration,
    /// Its clock less the clock of this host, in µs.
    pub clock_lead: i64,
    /// Its fence counter less its clock, in µs.
    pub fence_lead: i64,
    pub round_trip: Duration,
    pub failed: bool,
    pub warnings: Vec<String>,
    pub info: BTreeMap<String, String>,
    pub settings: BTreeMap<String, String>,
    /// Commands that the user may not run, with the error.
    pub refused: Vec<(String, String)>,
    /// Why it does not serve LOCK.ACQUIRE, if that is not about permissions.
    pub unserved: Option<String>,
    /// Why it refuses new locks, as it says itself: without a request of the user, which may be
    /// refused for other reasons.
    pub refusal: Option<String>,
    /// Its replicas, where one may take over.
    pub replicas: Vec<Node>,
}

impl State {
    /// Whether the replication lease applies: a master grants only while replicas confirm it.
    pub fn has_replication_lease(&self) -> bool {
        let needed = ["lock.quarantine", "min-replicas-to-write"];
        let is_set = |name: &&str| self.number(name).unwrap_or(0) > 0;
        needed.iter().all(is_set) && self.number("min-replicas-max-lag") != Some(0)
    }

    /// A setting, or a field of INFO, as a number.
    pub fn number(&self, name: &str) -> Option<u64> {
        let value = self.settings.get(name).or_else(|| self.info.get(name));
        value?.parse().ok()
    }
}

/// Asks all nodes.
pub async fn collect(
    place: &Where,
    keys: &[String],
    node_timeout: Duration,
) -> Result<Deployment, Failure> {
    let urls = place.urls()?;
    let view = place.view().await?;
    let plaintext_password = [urls.each(), view.urls()]
        .concat()
        .iter()
        .any(|url| sends_password_in_plaintext(url));
    let mut states = view.nodes().await;
    let view = view.without_silent(&states)?;
    sample(&view, &mut states).await;
    let mut deployment = Deployment {
        kind: match &urls {
            NodeUrls::Masters(_) => Kind::Masters,
            NodeUrls::Sentinel { .. } => Kind::Sentinel,
            NodeUrls::Cluster { .. } => Kind::Cluster,
        },
        nodes: states.into_iter().map(node).collect(),
        node_timeout,
        plaintext_password,
        slots: Vec::new(),
    };
    let mut replied: Vec<&mut State> = deployment
        .nodes
        .iter_mut()
        .filter_map(|node| node.state.as_mut().ok())
        .collect();
    add_details(&view, &mut replied).await;
    if let Some(login) = urls.login() {
        deployment.plaintext_password |= add_replicas(&view, login, &mut replied).await;
    }
    add_permissions(&view, keys, &mut replied).await;
    if deployment.kind == Kind::Cluster {
        deployment.slots = slots(&view, keys).await;
    }
    Ok(deployment)
}

/// Queries the nodes that replied once more, and keeps the fastest reply of each.
async fn sample(view: &View, states: &mut [Answer<NodeStatus>]) {
    let mut replied: Vec<&mut NodeStatus> = states
        .iter_mut()
        .filter_map(|answer| answer.result.as_mut().ok())
        .collect();
    for _ in 1..SAMPLES {
        for (best, next) in replied.iter_mut().zip(view.nodes().await) {
            if let Ok(next) = next.result
                && next.round_trip < best.round_trip
            {
                **best = next;
            }
        }
    }
}

fn node(answer: Answer<NodeStatus>) -> Node {
    let state = answer.result.map(state);
    Node {
        name: answer.node,
        state: state.map_err(|verdict| verdict.to_string()),
    }
}

fn state(node: NodeStatus) -> State {
    State {
        version: node.version,
        role: node.role,
        incarnation: node.incarnation,
        quarantine: node.quarantine,
        durable: node.durable,
        max_ttl: node.max_ttl,
        clock_lead: node.clock_lead,
        round_trip: node.round_trip,
        failed: node.failed,
        refusal: node.refusal,
        ..State::default()
    }
}

/// INFO, CONFIG GET, and the fields of LOCK.NODE that the client does not read.
async fn add_details(view: &View, nodes: &mut [&mut State]) {
    let mut info = redis::cmd("INFO");
    info.arg("server").arg("clients").arg("replication");
    info.arg("persistence").arg("memory");
    info.arg("lock_stats").arg("lock_state");
    let mut config = redis::cmd("CONFIG");
    config.arg("GET").arg(&SETTINGS);
    for (state, value) in nodes.iter_mut().zip(ask(view, &info).await) {
        if let Some(value) = value {
            state.info = info_fields(&text(&value));
        }
    }
    for (state, value) in nodes.iter_mut().zip(ask(view, &config).await) {
        if let Some(value) = value {
            let pairs = fields(value).into_iter();
            state.settings = pairs.map(|(name, value)| (name, text(&value))).collect();
        }
    }
    let replies = ask(view, &redis::cmd("LOCK.NODE")).await;
    for (state, value) in nodes.iter_mut().zip(replies) {
        if let Some(value) = value {
            let fields = fields(value);
            let number = |name: &str| fields.get(name).map_or(0, integer);
            state.fence_lead = number("fence").saturating_sub(number("time"));
            if let Some(Value::Array(warnings)) = fields.get("warnings") {
                state.warnings = warnings.iter().map(text).collect();
            }
        }
    }
}

/// Asks the replicas that each master names. Their addresses are those that the master sees.
/// Returns whether that sends a password in plaintext to another host.
async fn add_replicas(view: &View, login: &Login, masters: &mut [&mut State]) -> bool {
    let mut plaintext_password = false;
    for master in masters.iter_mut() {
        let urls: Vec<String> = replica_addresses(&master.info)
            .map(|(host, port)| login.url(host, port))
            .collect();
        if urls.is_empty() {
            continue;
        }
        plaintext_password |= urls.iter().any(|url| sends_password_in_plaintext(url));
        let Ok(replicas) = view.beside(urls) else {
            // A master that names hosts of which no URL can be made.
            let silent = |(host, port)| Node {
                name: format!("{host}:{port}"),
                state: Err("its address cannot be used".to_owned()),
            };
            master.replicas = replica_addresses(&master.info).map(silent).collect();
            continue;
        };
        let answers = replicas.nodes().await;
        let replicas = replicas.without_silent(&answers);
        master.replicas = answers.into_iter().map(node).collect();
        let nodes = master.replicas.iter_mut();
        let mut replied: Vec<&mut State> =
            nodes.filter_map(|node| node.state.as_mut().ok()).collect();
        if let Ok(replicas) = replicas {
            add_details(&replicas, &mut replied).await;
        }
    }
    plaintext_password
}

/// Host and port of each replica: `slave0:ip=10.0.0.2,port=6379,state=online,…` of INFO.
fn replica_addresses(info: &BTreeMap<String, String>) -> impl Iterator<Item = (&str, u64)> {
    let replicas = info.iter().filter(|(name, _)| {
        let number = name.strip_prefix("slave");
        number.is_some_and(|number| number.parse::<u32>().is_ok())
    });
    replicas.filter_map(|(_, text)| {
        let field = |name: &str| {
            let mut fields = text.split(',').filter_map(|field| field.split_once('='));
            fields.find_map(|(found, value)| (found == name).then_some(value))
        };
        Some((field("ip")?, field("port")?.parse().ok()?))
    })
}

/// Tries what an application does, in a way that changes nothing: no ttl, and a token that holds
/// nothing. The server checks permissions first.
async fn add_permissions(view: &View, keys: &[String], nodes: &mut [&mut State]) {
    if keys.is_empty() {
        return try_key(view, PROBE_KEY, false, nodes).await;
    }
    for key in keys {
        try_key(view, key, true, nodes).await;
    }
}

/// Without a given key, only the commands themselves are in question.
async fn try_key(view: &View, key: &str, is_given: bool, nodes: &mut [&mut State]) {
    // How many of the commands that write each node has not replied to.
    let mut unanswered = vec![0; nodes.len()];
    for (name, arguments) in [
        ("LOCK.ACQUIRE", &[key, PROBE_TOKEN, "0"][..]),
        ("LOCK.EXTEND", &[key, PROBE_TOKEN, "1"]),
        ("LOCK.RELEASE", &[key, PROBE_TOKEN]),
        ("LOCK.INFO", &[key]),
    ] {
        let mut probe = redis::cmd(name);
        probe.arg(arguments);
        let answers = view.observer.command(&probe).await;
        let nodes = nodes.iter_mut().zip(&mut unanswered);
        for ((state, unanswered), answer) in nodes.zip(answers) {
            if is_silent(&answer.result) {
                *unanswered += 1;
            } else if name == "LOCK.INFO" && *unanswered == WRITES {
                state.unserved = Some(NO_REPLY.to_owned());
            }
            let Err(verdict) = answer.result else {
                continue;
            };
            if name == "LOCK.ACQUIRE" && state.unserved.is_none() {
                state.unserved = unserved(&verdict, view.is_cluster);
            }
            note_refusal(state, name, key, is_given, &verdict);
        }
    }
}

/// A node that replies to a question, but to none of the commands before it, holds them back. A
/// single reply that is late says nothing.
fn is_silent(result: &Result<Value, Verdict>) -> bool {
    matches!(result, Err(Verdict::TimedOut(_) | Verdict::Unreachable(_)))
}

fn note_refusal(state: &mut State, name: &str, key: &str, is_given: bool, verdict: &Verdict) {
    let error = verdict.to_string();
    let refused = if error.contains("command") {
        name.to_owned()
    } else {
        format!("{name} on the key {}", shown_key(key.as_bytes()))
    };
    // A command that is refused is refused for every key.
    let is_known = state.refused.iter().any(|(known, _)| *known == refused);
    let matters = is_given || error.contains("command");
    if error.contains("NOPERM") && matters && !is_known {
        state.refused.push((refused, error));
    }
}

/// Why a node does not serve the probe. These errors do not count: the probe itself is invalid
/// (ERR), the user may not send it, or another node of a cluster has the key.
fn unserved(verdict: &Verdict, is_cluster: bool) -> Option<String> {
    let Verdict::Refused(error) = verdict else {
        return None;
    };
    let is_expected = match error.code()? {
        "ERR" | "NOPERM" | "READONLY" => true,
        "MOVED" | "ASK" => is_cluster,
        _ => false,
    };
    (!is_expected).then(|| error.to_string())
}

async fn slots(view: &View, keys: &[String]) -> Vec<(String, u64)> {
    let mut slots = Vec::new();
    for key in keys {
        let mut slot = redis::cmd("CLUSTER");
        slot.arg("KEYSLOT").arg(key);
        let reply = ask(view, &slot).await.into_iter().flatten().next();
        if let Some(Value::Int(slot)) = reply {
            slots.push((key.clone(), u64::try_from(slot).unwrap_or(0)));
        }
    }
    slots
}

async fn ask(view: &View, cmd: &Cmd) -> Vec<Option<Value>> {
    let answers = view.observer.command(cmd).await;
    answers
        .into_iter()
        .map(|answer| answer.result.ok())
        .collect()
}

/// Whether a password goes to another host without encryption.
fn sends_password_in_plaintext(url: &str) -> bool {
    let Some((login, host)) = url
        .strip_prefix("redis://")
        .and_then(|rest| rest.rsplit_once('@'))
    else {
        return false;
    };
    let host = host.split(['/', '?']).next().unwrap_or_default();
    let host = match host.strip_prefix('[') {
        Some(address) => address.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let address = host.parse::<IpAddr>();
    let is_local = host == "localhost" || address.is_ok_and(|address| address.is_loopback());
    login.contains(':') && !is_local
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_master_names_its_replicas() {
        let info = info_fields(
            "role:master\r\nconnected_slaves:2\r\n\
             slave0:ip=10.0.0.2,port=6379,state=online,offset=1,lag=0\r\n\
             slave1:ip=fd00::2,port=7,state=wait_bgsave\r\n\
             slave2:ip=,port=x\r\nslave_priority:100\r\n",
        );
        let found: Vec<_> = replica_addresses(&info).collect();
        assert_eq!(found, [("10.0.0.2", 6379), ("fd00::2", 7)]);
    }

    #[test]
    fn only_passwords_that_leave_this_host_unencrypted_count() {
        for (url, found) in [
            ("redis://u:p@10.0.0.1", true),
            ("redis://:p@db", true),
            ("redis://u:p@localhost:1", false),
            ("redis://u:p@127.0.0.1", false),
            ("redis://u:p@[::1]:1/0", false),
            ("redis://u:p@127.0.0.1.example.com", true),
            ("redis://u:p@localhost.example.com/0", true),
            ("redis://u:p@[fd00::1]:6379", true),
            ("rediss://u:p@10.0.0.1", false),
            ("redis://10.0.0.1", false),
            ("unix:///x", false),
        ] {
            assert_eq!(sends_password_in_plaintext(url), found, "{url}");
        }
    }
}
