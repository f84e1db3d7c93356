//! What a node says about itself, and what that means for a quorum of such nodes.

use std::time::SystemTime;

use redis::Value;

use crate::clock::Moment;
use crate::error::Verdict;
use crate::status::NodeStatus;

/// The oldest module that speaks the whole contract: major, minor.
const OLDEST_MODULE: (u64, u64) = (0, 1);

/// One answer to LOCK.NODE.
#[derive(Clone, Debug)]
pub(crate) struct Census {
    pub(crate) incarnation: String,
    pub(crate) durable: bool,
    pub(crate) quarantined: bool,
    pub(crate) fence: u64,
    /// The node's wall clock less our boot clock, in µs.
    pub(crate) clock_lead: i64,
}

impl Census {
    /// Reads the reply to a question asked at `asked`, and refuses a node that cannot serve.
    pub(crate) fn read(value: Value, asked: Moment) -> Result<Self, Verdict> {
        let took = Moment::now().since(asked);
        let status = NodeStatus::read(value, SystemTime::now(), took)?;
        if older(&status.version, OLDEST_MODULE) {
            let version = status.version;
            return Err(Verdict::ModuleTooOld { version });
        }
        if status.role != "master" {
            return Err(Verdict::Replica);
        }
        Ok(Self {
            incarnation: status.incarnation,
            durable: status.durable,
            quarantined: !status.quarantine.is_zero(),
            fence: status.fence,
            // The reading was taken at some time between question and answer.
            clock_lead: lead(status.time, asked + took / 2),
        })
    }
}

pub(crate) fn micros_since_boot(moment: Moment) -> i64 {
    i64::try_from(moment.since_boot().as_micros()).unwrap_or(i64::MAX)
}

fn lead(micros: u64, read: Moment) -> i64 {
    i64::try_from(micros)
        .unwrap_or(i64::MAX)
        .saturating_sub(micros_since_boot(read))
}

/// Whether `version` (`major.minor.patch`) is older than wanted; what cannot be read is.
fn older(version: &str, wanted: (u64, u64)) -> bool {
    let mut parts = version.split('.').map(|part| part.parse::<u64>().ok());
    match (parts.next().flatten(), parts.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor) < wanted,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(version: &str, role: &str) -> Value {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        Value::Map(vec![
            (text("version"), text(version)),
            (text("role"), text(role)),
            (text("incarnation"), text("a")),
            (text("durable"), Value::Int(1)),
            (text("quarantine"), Value::Int(0)),
            (text("fence"), Value::Int(5)),
            (text("locks"), Value::Int(0)),
            (text("waiters"), Value::Int(0)),
            (text("max-ttl"), Value::Int(1_000)),
            (text("time"), Value::Int(1_700_000_000_000_000)),
        ])
    }

    #[test]
    fn a_node_that_cannot_serve_is_refused_with_the_reason() {
        let read = |value| Census::read(value, Moment::now()).map(|census| census.incarnation);
        assert_eq!(read(answer("0.1.0", "master")), Ok("a".to_owned()));
        assert_eq!(read(answer("0.1.0", "slave")), Err(Verdict::Replica));
        assert_eq!(read(answer("0.1.0", "replica")), Err(Verdict::Replica));
        let old = Verdict::ModuleTooOld {
            version: "0.0.9".to_owned(),
        };
        assert_eq!(read(answer("0.0.9", "master")), Err(old));
        assert!(matches!(read(Value::Okay), Err(Verdict::Garbage(_))));
        assert!(matches!(
            read(Value::Map(Vec::new())),
            Err(Verdict::Garbage(_))
        ));
    }
}
