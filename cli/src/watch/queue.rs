//! The queue of a lock that is shown in its own view.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use redislock_client::{Moment, Verdict};

use super::budget::WAITERS;
use crate::raw_reply::{fields, integer, text};
use crate::view::View;

/// One request that waits.
#[derive(Clone, PartialEq, Debug)]
pub struct Waiter {
    /// The label that it gave, if any.
    pub owner: Option<String>,
    /// `exclusive` or `shared`.
    pub mode: String,
    pub wait: Duration,
}

/// The first requests that wait, in order of arrival.
#[derive(Clone, Debug)]
pub struct Queue {
    pub seen: Moment,
    /// None if the version of the module does not report the waiters.
    pub waiters: Option<Vec<Waiter>>,
}

/// The replies of one node about the queues of some locks, in their order. It ends early if the
/// node does not reply.
pub async fn ask(view: Arc<View>, names: Vec<Arc<[u8]>>) -> Vec<Option<Vec<Waiter>>> {
    let mut queues = Vec::new();
    for name in names {
        let mut command = redis::cmd("LOCK.INFO");
        command.arg(&*name).arg("COUNT").arg(1);
        command.arg("WAITERS").arg(WAITERS);
        let answer = view.observer.command(&command).await.pop();
        match answer.map(|answer| answer.result) {
            Some(Ok(reply)) => queues.push(read(reply)),
            // An older version of the module, or a node of a cluster that lost the lock.
            Some(Err(Verdict::Refused(_))) => queues.push(None),
            _ => break,
        }
    }
    queues
}

fn read(reply: Value) -> Option<Vec<Waiter>> {
    if reply == Value::Nil {
        return Some(Vec::new());
    }
    let Value::Array(queue) = fields(reply).remove("queue")? else {
        return None;
    };
    let waiter = |one: Value| {
        let mut one = fields(one);
        let mut field = |name: &str| one.remove(name).unwrap_or(Value::Nil);
        Waiter {
            owner: Some(text(&field("owner"))).filter(|owner| !owner.is_empty()),
            mode: text(&field("mode")),
            wait: Duration::from_millis(integer(&field("wait")).try_into().unwrap_or(0)),
        }
    };
    Some(queue.into_iter().map(waiter).collect())
}

/// The combined queue of all nodes: a request may wait on only some of them, so the longest queue
/// counts.
pub fn longest(queues: impl Iterator<Item = Option<Vec<Waiter>>>) -> Option<Vec<Waiter>> {
    queues.flatten().max_by_key(Vec::len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn a_queue_is_read_and_an_older_module_has_none() {
        let one = vec![
            bulk("owner"),
            bulk("ben"),
            bulk("mode"),
            bulk("shared"),
            bulk("wait"),
            Value::Int(1_500),
        ];
        let queue = Value::Array(vec![Value::Array(one)]);
        let reply = Value::Array(vec![bulk("waiters"), Value::Int(1), bulk("queue"), queue]);
        let ben = Waiter {
            owner: Some("ben".to_owned()),
            mode: "shared".to_owned(),
            wait: Duration::from_millis(1_500),
        };
        assert_eq!(read(reply), Some(vec![ben.clone()]));
        assert_eq!(read(Value::Nil), Some(Vec::new()));
        let older = Value::Array(vec![bulk("waiters"), Value::Int(1)]);
        assert_eq!(read(older), None);
        let queues = [None, Some(Vec::new()), Some(vec![ben.clone()])];
        assert_eq!(longest(queues.into_iter()), Some(vec![ben]));
        assert_eq!(longest([None].into_iter()), None);
    }
}
