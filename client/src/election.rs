//! Leader election on top of a lock: candidates campaign, one leads, the others observe. The fence
//! of the lock is the term.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::command::DEFAULT_TTL;
use crate::error::{Error, Loss, Verdict};
use crate::guard::{Guard, Held};
use crate::host::Moment;
use crate::lock::{Lock, Owner};
use crate::quorum::majority;
use crate::redlock::Redlock;
use crate::release::Released;
use crate::reply::LockStatus;
use crate::round::{Question, Round};

/// Observers check the nodes no more often than this …
const SHORTEST_LOOK: Duration = Duration::from_millis(10);
/// … and at least this often.
const LONGEST_LOOK: Duration = Duration::from_secs(86_400);

/// A leader election; made by [`Redlock::election`].
#[derive(Clone, Debug)]
pub struct Election {
    client: Redlock,
    name: Vec<u8>,
    candidate: Option<String>,
    ttl: Duration,
}

impl Redlock {
    /// The election with this name. It is a lock: do not use the name for anything else.
    pub fn election(&self, name: impl AsRef<[u8]>) -> Election {
        Election {
            client: self.clone(),
            name: name.as_ref().to_vec(),
            candidate: None,
            ttl: DEFAULT_TTL,
        }
    }
}

impl Election {
    /// The name that others see when this candidate leads, up to 256 bytes. Give every candidate
    /// its own.
    pub fn candidate(mut self, name: impl Into<String>) -> Self {
        self.candidate = Some(name.into());
        self
    }

    /// The lease of a leader, 10 s if not set. The leader renews it; a leader that has died is
    /// replaced after at most this time.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Waits until this candidate is elected. Candidates are elected in the order in which they
    /// campaign. Dropping the future withdraws the candidate.
    pub async fn campaign(&self) -> Result<Leadership, Error> {
        let guard = self.lock().acquire().await?;
        Ok(Leadership { guard })
    }

    /// Campaigns for at most this long; [`Error::Busy`] if another candidate leads until then.
    pub async fn campaign_for(&self, wait: Duration) -> Result<Leadership, Error> {
        let guard = self.lock().wait(wait).acquire().await?;
        Ok(Leadership { guard })
    }

    /// Every campaign has its own owner, so a second campaign is another candidate.
    fn lock(&self) -> Lock {
        let owner = match &self.candidate {
            Some(name) => Owner::named(name),
            None => Owner::new(),
        };
        self.client.lock(&self.name).ttl(self.ttl).owner(&owner)
    }

    /// Who leads at this moment, as a majority of the nodes sees it. The leadership may be over
    /// when the answer arrives. A resource that compares terms is safe all the same.
    pub async fn leader(&self) -> Result<Option<Leader>, Error> {
        let (said, leader) = self.look().await;
        leader.ok_or_else(|| self.no_quorum(said))
    }

    /// Follows changes of the leader by asking the nodes at this interval: at least 10 ms and at
    /// most a day.
    pub fn observe(&self, every: Duration) -> Observation {
        Observation {
            election: self.clone(),
            every: every.clamp(SHORTEST_LOOK, LONGEST_LOOK),
            last: None,
            next_look: Instant::now(),
        }
    }

    async fn look(&self) -> (Vec<Said>, Option<Option<Leader>>) {
        let fleet = &self.client.client.fleet;
        fleet.first_answers(None).await;
        let mut round: Round<Said> = fleet.round();
        for (place, node) in fleet.nodes.iter().enumerate() {
            let (name, node) = (self.name.clone(), Arc::clone(node));
            let asked = async move { node.lock_status(&name, 1).await };
            round.push(Question::new(place, Moment::now()), asked);
        }
        let mut said: Vec<Said> = vec![Err(Verdict::NotAsked); fleet.nodes.len()];
        while let Some((question, answer)) = round.next().await {
            said[question.place] = answer;
        }
        let leader = leader_of(&said);
        (said, leader)
    }

    fn no_quorum(&self, said: Vec<Said>) -> Error {
        let verdict = |place: usize| match &said[place] {
            Ok(Some(status)) => status.verdict(),
            Ok(None) => Verdict::NotHeld,
            Err(verdict) => verdict.clone(),
        };
        Error::NoQuorum {
            lock: format!("election {}", self.name.escape_ascii()),
            nodes: self.client.client.fleet.reports(verdict),
        }
    }
}

/// This candidate is the leader. Dropping it resigns in the background.
#[derive(Debug)]
#[must_use = "dropping the leadership resigns"]
pub struct Leadership {
    guard: Guard,
}

impl Leadership {
    /// The term: every leader has a higher one than all before it. Send it with every action of the
    /// leader, and let the resource refuse a term that is lower than one it has seen.
    pub fn term(&self) -> u64 {
        self.guard.fence()
    }

    /// Whether this candidate certainly leads at this moment.
    pub fn is_valid(&self) -> bool {
        self.guard.is_valid()
    }

    /// Completes with the reason when the leadership is lost, before another candidate can be
    /// elected.
    pub fn lost(&self) -> impl Future<Output = Loss> + Send + use<> {
        self.guard.lost()
    }

    /// The same as a cancellation token, for whatever must stop.
    pub fn lost_token(&self) -> CancellationToken {
        self.guard.lost_token()
    }

    /// A view for code that works for the leader and must not resign.
    pub fn held(&self) -> Held {
        self.guard.held()
    }

    /// Resigns, so that the next candidate can lead. Returns whether the leadership was held until
    /// now.
    pub async fn resign(self) -> Released {
        self.guard.release().await
    }
}

/// Who leads.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The name that the candidate gave, if any.
    pub candidate: Option<String>,
    /// The term, as most of the nodes show it.
    pub term: u64,
}

/// Changes of the leader; made by [`Election::observe`].
#[derive(Debug)]
pub struct Observation {
    election: Election,
    every: Duration,
    /// What was last returned.
    last: Option<Option<Leader>>,
    next_look: Instant,
}

impl Observation {
    /// Returns the current leader first, then each new one; `None` while nobody leads. A leader
    /// that leads only between two checks is not seen. After an error, call it again.
    pub async fn next(&mut self) -> Result<Option<Leader>, Error> {
        loop {
            tokio::time::sleep_until(self.next_look).await;
            self.next_look = Instant::now() + self.every;
            let leader = self.election.leader().await?;
            if self.last.as_ref() != Some(&leader) {
                self.last = Some(leader.clone());
                return Ok(leader);
            }
        }
    }
}

/// What one node knows about the leader.
type Said = Result<Option<LockStatus>, Verdict>;

/// The leader that a majority of all nodes confirms, or that there is no leader. `None` if nodes
/// that did not answer could change the result.
fn leader_of(said: &[Said]) -> Option<Option<Leader>> {
    let mut claims: Vec<Claim> = Vec::new();
    for status in said.iter().filter_map(|said| said.as_ref().ok()?.as_ref()) {
        for holder in &status.holders {
            // A node that was restarted may show a fence of its own for the same hold.
            let same = |claim: &&mut Claim| match &holder.owner {
                Some(owner) => claim.owner.as_ref() == Some(owner),
                None => claim.owner.is_none() && claim.terms.contains(&holder.fence),
            };
            match claims.iter_mut().find(same) {
                Some(claim) => claim.terms.push(holder.fence),
                None => claims.push(Claim {
                    owner: holder.owner.clone(),
                    terms: vec![holder.fence],
                }),
            }
        }
    }
    let silent = said.iter().filter(|said| said.is_err()).count();
    let best = claims.into_iter().max_by_key(|claim| claim.terms.len());
    let nodes = best.as_ref().map_or(0, |claim| claim.terms.len());
    let majority = majority(said.len());
    match best {
        Some(claim) if nodes >= majority => Some(Some(claim.leader())),
        _ if nodes + silent >= majority => None,
        _ => Some(None),
    }
}

/// A candidate that leads on some nodes, with the fence of each.
struct Claim {
    owner: Option<String>,
    terms: Vec<u64>,
}

impl Claim {
    fn leader(self) -> Leader {
        let shown = |term: u64| self.terms.iter().filter(|other| **other == term).count();
        // If several terms are shown by the same number of nodes, the lowest counts: a node that
        // granted again has a higher one.
        let rank = |term: &u64| (shown(*term), Reverse(*term));
        let term = self.terms.iter().copied().max_by_key(rank);
        Leader {
            term: term.unwrap_or(0),
            candidate: self.owner,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reply::Holder;

    fn held_by(owner: &str, fence: u64) -> Said {
        let holder = Holder {
            owner: Some(owner.to_owned()).filter(|owner| !owner.is_empty()),
            fingerprint: String::new(),
            holds: 1,
            fence,
            ttl: Duration::from_secs(1),
            age: Duration::ZERO,
        };
        Ok(Some(LockStatus {
            mode: "exclusive".to_owned(),
            limit: 0,
            waiters: 0,
            oldest_wait: Duration::ZERO,
            holders: vec![holder],
        }))
    }

    fn silent() -> Said {
        Err(Verdict::TimedOut(Duration::ZERO))
    }

    fn leads(candidate: &str, term: u64) -> Option<Option<Leader>> {
        let candidate = Some(candidate.to_owned()).filter(|name| !name.is_empty());
        Some(Some(Leader { candidate, term }))
    }

    #[test]
    fn a_majority_of_all_nodes_decides_who_leads() {
        let (a, b) = (|| held_by("a", 7), || held_by("b", 8));
        assert_eq!(leader_of(&[a()]), leads("a", 7));
        assert_eq!(leader_of(&[a(), b(), a()]), leads("a", 7));
        assert_eq!(leader_of(&[a(), silent(), a()]), leads("a", 7));
        assert_eq!(leader_of(&[Ok(None), Ok(None), silent()]), Some(None));
        assert_eq!(leader_of(&[a(), b(), Ok(None)]), Some(None));
    }

    #[test]
    fn what_silent_nodes_could_change_is_unknown() {
        let a = || held_by("a", 7);
        assert_eq!(leader_of(&[silent()]), None);
        assert_eq!(leader_of(&[a(), Ok(None), silent()]), None);
        assert_eq!(leader_of(&[Ok(None), silent(), silent()]), None);
    }

    #[test]
    fn a_node_that_granted_again_does_not_change_the_term() {
        let said = [held_by("a", 9), held_by("a", 7), held_by("a", 7)];
        assert_eq!(leader_of(&said), leads("a", 7));
        let said = [held_by("a", 7), held_by("a", 9), silent()];
        assert_eq!(leader_of(&said), leads("a", 7));
        // Without a name, only the term tells candidates apart.
        let said = [held_by("", 9), held_by("", 7), held_by("", 7)];
        assert_eq!(leader_of(&said), leads("", 7));
        let said = [held_by("", 9), held_by("", 7), held_by("", 8)];
        assert_eq!(leader_of(&said), Some(None));
    }
}
