//! A server that refuses new locks, whatever the module would decide: the words of LOCK.NODE.

use std::borrow::Cow;

use redislock_client::NodeStatus;

use crate::names::printable;

/// Every word that it knows.
pub const WORDS: [&str; 7] = [
    "none", "memory", "disk", "replicas", "paused", "cluster", "other",
];

/// Why the server of this node refuses new locks, unless its quarantine says the same.
pub fn of(node: &NodeStatus) -> Option<Cow<'static, str>> {
    let word = node.refusal.as_deref()?;
    let is_said = word == "replicas" && !node.quarantine.is_zero();
    (!is_said).then(|| problem(word))
}

/// What a word means, the most important first: `top` cuts long texts. A word of a later module is
/// shown as it is.
pub fn problem(word: &str) -> Cow<'static, str> {
    Cow::Borrowed(match word {
        "memory" => "refuses new locks: OOM, out of memory",
        "disk" => "refuses changes: MISCONF, disk errors",
        "replicas" => "refuses changes: NOREPLICAS, too few replicas",
        "paused" => "delays changes: writes are paused",
        "cluster" => "refuses changes: CLUSTERDOWN, masters or slots are missing",
        "other" => "refuses new locks",
        word => return Cow::Owned(format!("refuses new locks: {}", printable(word))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_not_known_is_shown() {
        assert_eq!(problem("other"), "refuses new locks");
        assert_eq!(problem("voltage"), "refuses new locks: voltage");
    }
}
