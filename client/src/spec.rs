//! What is asked for: the names of the locks and the options, checked before anything is sent.

use std::time::Duration;

use crate::error::Error;

/// How long a lease lasts unless asked otherwise.
pub const DEFAULT_TTL: Duration = Duration::from_secs(10);
/// How long one node may take to answer unless asked otherwise: small against the default ttl.
pub const DEFAULT_NODE_TIMEOUT: Duration = Duration::from_millis(100);
/// How long a connection may take to open unless asked otherwise.
pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// No node lets a lease be longer, whatever its settings.
pub(crate) const LONGEST_TTL: Duration = Duration::from_secs(7 * 86_400);
/// A ttl must be longer than this many node timeouts: one round, one write-back, and time to use
/// the lock.
pub(crate) const TTL_IN_NODE_TIMEOUTS: u32 = 3;
/// Longest owner label, as the server has it.
pub(crate) const MAX_LABEL: usize = 256;

/// Everything about a request but its token and its fence.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub(crate) keys: Vec<Vec<u8>>,
    pub(crate) ttl: Duration,
    pub(crate) shared: bool,
    pub(crate) limit: Option<u32>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) ephemeral: bool,
    pub(crate) label: Option<String>,
    pub(crate) replicas: Option<u32>,
    pub(crate) renew: bool,
}

impl Spec {
    pub(crate) fn new(keys: Vec<Vec<u8>>) -> Self {
        Self {
            keys,
            ttl: DEFAULT_TTL,
            shared: false,
            limit: None,
            max_hold: None,
            ephemeral: false,
            label: None,
            replicas: None,
            renew: true,
        }
    }

    /// The lock's name for messages: any bytes, made readable.
    pub(crate) fn name(&self) -> String {
        let names: Vec<String> = self
            .keys
            .iter()
            .map(|key| key.escape_ascii().to_string())
            .collect();
        format!("lock {}", names.join(", "))
    }

    /// What is wrong with this request, for a client of `nodes` nodes that gives each
    /// `node_timeout`.
    pub(crate) fn check(&self, nodes: usize, node_timeout: Duration) -> Result<(), Error> {
        let invalid = |problem: String| Err(Error::Invalid(problem));
        if self.keys.is_empty() {
            return invalid("no lock is named: give at least one".to_owned());
        }
        for (place, key) in self.keys.iter().enumerate() {
            if self.keys[..place].contains(key) {
                return invalid(format!("lock {} is named twice", key.escape_ascii()));
            }
        }
        self.check_ttl(node_timeout)?;
        self.check_options(nodes)
    }

    /// What is wrong with how long it is to be held.
    fn check_ttl(&self, node_timeout: Duration) -> Result<(), Error> {
        let invalid = |problem: String| Err(Error::Invalid(problem));
        let shortest = node_timeout.saturating_mul(TTL_IN_NODE_TIMEOUTS);
        if self.ttl <= shortest {
            return invalid(format!(
                "a ttl of {:?} is too short for a node timeout of {node_timeout:?}: it must be \
                 longer than {shortest:?}",
                self.ttl,
            ));
        }
        if self.ttl < Duration::from_millis(1) {
            return invalid(
                "a ttl below a millisecond is too short: leases are whole milliseconds".to_owned(),
            );
        }
        if self.ttl > LONGEST_TTL {
            return invalid(format!(
                "a ttl of {:?} is longer than any node allows: ask for {LONGEST_TTL:?} at most, \
                 and let it be renewed",
                self.ttl,
            ));
        }
        if self.max_hold.is_some_and(|cap| cap < self.ttl) {
            return invalid(
                "max_hold is shorter than the ttl: raise it or ask for a shorter lease".to_owned(),
            );
        }
        Ok(())
    }

    /// What of it makes no sense, or does not go together.
    fn check_options(&self, nodes: usize) -> Result<(), Error> {
        let invalid = |problem: String| Err(Error::Invalid(problem));
        if self.limit.is_some() && !self.shared {
            return invalid("limit needs shared: a semaphore is a shared lock".to_owned());
        }
        if self.limit == Some(0) {
            return invalid("limit must be 1 or more".to_owned());
        }
        if nodes > 1 && self.limit.is_some() {
            return invalid(format!(
                "limit needs a single node, this client has {nodes}: permits have no quorum"
            ));
        }
        if nodes > 1 && self.ephemeral {
            return invalid(format!(
                "ephemeral needs a single node, this client has {nodes}"
            ));
        }
        if self
            .label
            .as_ref()
            .is_some_and(|label| label.len() > MAX_LABEL)
        {
            return invalid(format!(
                "the owner's label is longer than {MAX_LABEL} bytes"
            ));
        }
        if self.replicas == Some(0) {
            return invalid(
                "replicas must be 1 or more: omit it to wait for no replica".to_owned(),
            );
        }
        if self.replicas.is_some() && self.ephemeral {
            return invalid(
                "replicas and ephemeral exclude each other: an ephemeral hold ends \
                            with its connection"
                    .to_owned(),
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
