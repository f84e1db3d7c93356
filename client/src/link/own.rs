//! Connections that one caller uses at a time: who may open one, and which are idle.

use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

use super::Connection;
use crate::host::{Moment, locked};

/// The number of idle connections that are kept for the next caller.
const IDLE_CONNECTIONS: usize = 128;
/// The number of connections to one server that waiters open at the same time. If all of them start
/// at once on a busy machine, none is open in time.
pub(super) const OPENING_CONNECTIONS: usize = 10;

/// A connection: the shared one, or one for commands that block it, which one caller uses at a
/// time. The latter may be kept as long as the shared one has the same generation.
pub(crate) struct Own {
    pub(crate) generation: u64,
    pub(crate) connection: Connection,
}

/// The turns of waiters that open connections to one server.
pub(crate) struct Turns {
    free: Semaphore,
    /// When a connection was last opened in turn.
    opened_at: Mutex<Option<Moment>>,
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            free: Semaphore::new(OPENING_CONNECTIONS),
            opened_at: Mutex::default(),
        }
    }
}

impl Turns {
    /// Waits for the caller's turn. It lasts until the result is dropped.
    pub(crate) async fn next(&self) -> Option<SemaphorePermit<'_>> {
        self.free.acquire().await.ok()
    }

    /// Notes that the caller has opened a connection.
    pub(crate) fn opened(&self) {
        *locked(&self.opened_at) = Some(Moment::now());
    }

    /// Does the work of one turn, including the wait for it. `None` if it is not done, and nobody
    /// else has opened a connection, for this time: a slow server gets to every waiter in the end,
    /// and one that stands still costs each waiter this time only once.
    pub(crate) async fn take<T>(
        &self,
        patience: Duration,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        let mut progress = Moment::now();
        tokio::pin!(work);
        loop {
            let left = (progress + patience).remaining();
            match tokio::time::timeout(left, &mut work).await {
                Ok(done) => return Some(done),
                Err(_) => {
                    let opened_at = *locked(&self.opened_at);
                    progress = opened_at.filter(|at| *at > progress)?;
                }
            }
        }
    }
}

/// Idle connections that are kept for the next caller, and since when they are idle.
#[derive(Default)]
pub(crate) struct Idle {
    kept: Mutex<Vec<(Moment, Own)>>,
}

impl Idle {
    /// An idle connection of this generation that was used within this time. If the most recently
    /// used one is older, it is closed: the caller opens another one, and their number must not
    /// grow. Connections of other generations are closed.
    pub(crate) fn take(&self, generation: u64, longest: Duration) -> Option<Own> {
        let (mut idle, now) = (locked(&self.kept), Moment::now());
        idle.retain(|(_, own)| own.generation == generation);
        // The last one is the most recently used one.
        let (since, own) = idle.pop()?;
        (now.since(since) <= longest).then_some(own)
    }

    pub(crate) fn keep(&self, own: Own) {
        let mut idle = locked(&self.kept);
        if idle.len() < IDLE_CONNECTIONS {
            idle.push((Moment::now(), own));
        }
    }

    pub(crate) fn close(&self) {
        locked(&self.kept).clear();
    }
}
