//! From what the user said about the nodes to a client of them.

use std::env::VarError;
use std::time::Duration;

use redislock_client::{Builder, Observer, Redlock};

use crate::args::Where;
use crate::exit::Failure;

/// A node may take this part of the ttl to answer, …
const PART_OF_TTL: u32 = 10;
/// … but no longer than this.
const LONGEST_NODE_TIMEOUT: Duration = Duration::from_millis(500);

impl Where {
    /// The URLs of `--node`, else of REDLOCK_NODES.
    fn urls(&self) -> Result<Vec<String>, Failure> {
        let given = match self.nodes.is_empty() {
            true => match std::env::var("REDLOCK_NODES") {
                Err(VarError::NotUnicode(_)) => {
                    return Err(Failure::usage("REDLOCK_NODES is not UTF-8: write it anew"));
                }
                given => given.unwrap_or_default(),
            },
            false => self.nodes.join(","),
        };
        let urls: Vec<String> = given
            .split(|c: char| c == ',' || c.is_whitespace())
            .filter(|url| !url.is_empty())
            .map(with_scheme)
            .collect();
        if urls.is_empty() {
            return Err(Failure::usage(
                "no nodes are given: add --node redis://host:port, or set REDLOCK_NODES",
            ));
        }
        // A wrong one may hold a password: it is named by its place.
        for (place, url) in urls.iter().enumerate() {
            if let Err(error) = Redlock::builder().nodes([url.clone()]).observe() {
                let (place, all, why) = (place + 1, urls.len(), Failure::connecting(error).text);
                let text = format!("node {place} of {all}, counted by commas and spaces: {why}");
                return Err(Failure::usage(text));
            }
        }
        Ok(urls)
    }

    fn builder(&self, ttl: Duration) -> Result<Builder, Failure> {
        let usual = (ttl / PART_OF_TTL).min(LONGEST_NODE_TIMEOUT);
        let builder = Redlock::builder()
            .nodes(self.urls()?)
            .node_timeout(self.node_timeout.unwrap_or(usual));
        match &self.ca_cert {
            None => Ok(builder),
            Some(file) => match std::fs::read(file) {
                Ok(pem) => Ok(builder.root_certificate(pem)),
                Err(error) => Err(Failure::usage(format!(
                    "the certificate {} cannot be read: {error}",
                    file.display()
                ))),
            },
        }
    }

    /// Connects to hold locks with this ttl.
    pub async fn connect(&self, ttl: Duration) -> Result<Redlock, Failure> {
        let connecting = self.builder(ttl)?.connect();
        connecting.await.map_err(Failure::connecting)
    }

    /// Looks at the nodes, whatever state they are in.
    pub fn observe(&self) -> Result<Observer, Failure> {
        let builder = self.builder(Duration::MAX)?;
        builder.observe().map_err(Failure::connecting)
    }
}

/// `host:port` alone is understood, too.
fn with_scheme(url: &str) -> String {
    match url.contains("://") {
        true => url.to_owned(),
        false => format!("redis://{url}"),
    }
}
