//! Who holds the lock, combined from what every master says.

use std::time::Duration;

use redislock_client::{Answer, LockStatus};

/// What follows from the replies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum State {
    Free,
    Held(Hold),
    /// A minority of the masters has a holder: it is acquiring or releasing.
    Partial,
    /// Too few masters reply to tell.
    Unknown,
}

/// A hold that a majority of the masters knows of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hold {
    pub owner: String,
    pub fence: u64,
    /// On how many masters.
    pub masters: usize,
    /// How long a majority still keeps the lease.
    pub left: Duration,
}

pub fn state(answers: &[Answer<Option<LockStatus>>]) -> State {
    let replies: Vec<&Option<LockStatus>> = answers
        .iter()
        .filter_map(|answer| answer.result.as_ref().ok())
        .collect();
    let leases = replies.iter().copied().flatten().flat_map(|status| {
        let holders = status.holders.iter();
        holders.map(|holder| Lease {
            owner: holder.owner.clone().unwrap_or_default(),
            fence: holder.fence,
            left: holder.ttl,
        })
    });
    judge(answers.len() / 2 + 1, replies.len(), leases.collect())
}

/// A hold on one master.
struct Lease {
    owner: String,
    fence: u64,
    left: Duration,
}

/// Each worker has a name of its own, so the leases of one owner are one hold.
fn judge(majority: usize, replies: usize, leases: Vec<Lease>) -> State {
    let of = |owner: &str| {
        let leases = leases.iter().filter(move |lease| lease.owner == owner);
        leases.collect::<Vec<_>>()
    };
    let counted = leases.iter().map(|lease| of(&lease.owner));
    let most = counted.max_by_key(Vec::len).unwrap_or_default();
    if most.len() >= majority {
        let mut left: Vec<Duration> = most.iter().map(|lease| lease.left).collect();
        left.sort_unstable_by(|a, b| b.cmp(a));
        return State::Held(Hold {
            owner: most[0].owner.clone(),
            // A master that granted late shows a higher one until it has heard of it.
            fence: most.iter().map(|lease| lease.fence).min().unwrap_or(0),
            masters: most.len(),
            left: left[majority - 1],
        });
    }
    match (replies < majority, leases.is_empty()) {
        (true, _) => State::Unknown,
        (false, true) => State::Free,
        (false, false) => State::Partial,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(owner: &str, fence: u64, millis: u64) -> Lease {
        Lease {
            owner: owner.to_owned(),
            fence,
            left: Duration::from_millis(millis),
        }
    }

    #[test]
    fn a_majority_holds_for_as_long_as_a_majority_keeps_the_lease() {
        let leases = vec![
            lease("ada", 7, 900),
            lease("ben", 8, 500),
            lease("ada", 7, 300),
            lease("ada", 9, 600),
        ];
        let hold = Hold {
            owner: "ada".to_owned(),
            fence: 7,
            masters: 3,
            left: Duration::from_millis(300),
        };
        assert_eq!(judge(3, 5, leases), State::Held(hold));
    }

    #[test]
    fn a_minority_holds_nothing_and_too_few_replies_say_nothing() {
        assert_eq!(judge(3, 3, vec![lease("ada", 7, 900)]), State::Partial);
        assert_eq!(judge(3, 3, Vec::new()), State::Free);
        assert_eq!(judge(3, 2, Vec::new()), State::Unknown);
    }
}
