//! Connecting to the nodes, to acquire locks: retried while they may come back.

use std::env::VarError;
use std::time::Duration;

use redislock_client::{Builder, Error, Moment, Redlock, Verdict};

use crate::args::Where;
use crate::exit::Failure;
use crate::node_urls::{NodeUrls, parse};

/// A node may take this part of the ttl to reply, …
const NODE_TIMEOUT_IN_TTL: u32 = 10;
/// … but not longer than this.
const LONGEST_NODE_TIMEOUT: Duration = Duration::from_millis(500);
/// The pause after a failed attempt to connect doubles from this …
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// … to this.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The first attempt to connect gets at least this long, even with `--wait 0`.
const FIRST_ATTEMPT: Duration = Duration::from_secs(3);

impl Where {
    /// The nodes of `--node`, else of REDLOCK_NODES.
    pub fn urls(&self) -> Result<NodeUrls, Failure> {
        let given = if self.nodes.is_empty() {
            match std::env::var("REDLOCK_NODES") {
                Err(VarError::NotUnicode(_)) => {
                    return Err(Failure::usage("REDLOCK_NODES is not valid UTF-8"));
                }
                given => given.unwrap_or_default(),
            }
        } else {
            self.nodes.join(",")
        };
        let urls = parse(&given).map_err(Failure::usage)?;
        let each = urls.each();
        // An invalid URL may contain a password: the message gives its position instead.
        for (place, url) in each.iter().enumerate() {
            if let Err(error) = Redlock::builder().node(url).observe() {
                let (place, all, why) = (place + 1, each.len(), Failure::connecting(error).text);
                return Err(Failure::usage(format!("node {place} of {all}: {why}")));
            }
        }
        Ok(urls)
    }

    /// How long a node may take to reply, for locks with this ttl.
    pub fn node_timeout_for(&self, ttl: Duration) -> Duration {
        let usual = (ttl / NODE_TIMEOUT_IN_TTL).min(LONGEST_NODE_TIMEOUT);
        self.node_timeout.unwrap_or(usual)
    }

    /// A builder for these masters.
    pub fn builder(&self, ttl: Duration) -> Result<Builder, Failure> {
        let builder = Redlock::builder().node_timeout(self.node_timeout_for(ttl));
        let Some(file) = &self.ca_cert else {
            return Ok(builder);
        };
        let pem = std::fs::read(file);
        let failed = |error| {
            let file = file.display();
            Failure::usage(format!("the certificate {file} cannot be read: {error}"))
        };
        pem.map(|pem| builder.root_certificate(pem)).map_err(failed)
    }

    /// Connects to hold locks with this ttl. One attempt.
    pub async fn connect(&self, ttl: Duration) -> Result<Redlock, Failure> {
        let attempt = self.settings(ttl)?.connect();
        attempt.await.map_err(Failure::connecting)
    }

    /// Connects to hold locks with this ttl; retries until `deadline` while the nodes may come
    /// back.
    pub async fn connect_until(
        &self,
        ttl: Duration,
        deadline: Option<Moment>,
    ) -> Result<Redlock, Failure> {
        let settings = self.settings(ttl)?;
        let mut last_error = None;
        let mut pause = FIRST_PAUSE;
        loop {
            let left = deadline.map_or(Duration::MAX, Moment::remaining);
            let limit = match &last_error {
                None => left.max(FIRST_ATTEMPT),
                Some(_) => left,
            };
            let attempt = settings.clone().connect();
            match (tokio::time::timeout(limit, attempt).await, last_error) {
                (Ok(Ok(client)), _) => return Ok(client),
                (Ok(Err(error)), _) if !may_pass(&error) => return Err(Failure::connecting(error)),
                (Ok(Err(error)), _) | (Err(_), Some(error)) => last_error = Some(error),
                (Err(_), None) => last_error = None,
            }
            let left = deadline.map_or(Duration::MAX, Moment::remaining);
            match last_error {
                Some(error) if left.is_zero() => return Err(Failure::connecting(error)),
                None if left.is_zero() => {
                    let text = format!("no reply within {} s", FIRST_ATTEMPT.as_secs());
                    return Err(Failure::no_reply(&text));
                }
                _ => tokio::time::sleep(pause.min(left)).await,
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn settings(&self, ttl: Duration) -> Result<Builder, Failure> {
        let builder = self.builder(ttl)?;
        Ok(match self.urls()? {
            NodeUrls::Masters(urls) => builder.nodes(urls),
            NodeUrls::Sentinel {
                name, sentinels, ..
            } => builder.sentinel(name, sentinels),
            NodeUrls::Cluster { seeds, .. } => builder.cluster(seeds),
        })
    }
}

/// Whether the nodes may serve later without a change of the deployment. A replica may be a master
/// soon: a failover takes a while to reach everyone.
fn may_pass(error: &Error) -> bool {
    let lasting = |verdict: &Verdict| {
        matches!(
            verdict,
            Verdict::ModuleMissing
                | Verdict::ModuleTooOld { .. }
                | Verdict::SameAs { .. }
                | Verdict::Garbage(_)
                | Verdict::Refused(_)
        )
    };
    match error {
        Error::NoQuorum { .. } => true,
        Error::Misconfigured { nodes, .. } => !nodes.iter().any(|node| lasting(&node.verdict)),
        _ => false,
    }
}
