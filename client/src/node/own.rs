//! Connections of a node that one caller uses alone, for commands that block a connection.

use std::time::Duration;

use super::Node;
use crate::error::Verdict;
use crate::link::Own;
use crate::reply::trouble;

impl Node {
    /// A connection that was used within this time, or a new one. If it cannot be opened, that says
    /// nothing about the node: it may only have too many connections.
    pub(crate) async fn own_connection(&self, quiet: Duration) -> Result<Own, Verdict> {
        let shared = self.shared()?;
        match self.idle.take(shared.generation, quiet) {
            Some(own) => Ok(own),
            None => self.timed(self.open_own(shared, false)).await,
        }
    }

    /// The same for a waiter: only a few of them open a connection at the same time, and the others
    /// wait for their turn. Waiting for a turn is useless if the node is down.
    pub(crate) async fn connection_in_turn(&self) -> Result<Own, Verdict> {
        let opening = async {
            let shared = self.shared()?;
            if let Some(own) = self.idle.take(shared.generation, Duration::MAX) {
                return Ok(own);
            }
            let _turn = self.turns.next().await;
            // All of this may have changed meanwhile.
            if let Some(why) = self.why_down() {
                return Err(why);
            }
            let shared = self.shared()?;
            if let Some(own) = self.idle.take(shared.generation, Duration::MAX) {
                return Ok(own);
            }
            let opened = self.open_own(shared, true).await;
            if opened.is_ok() {
                self.turns.opened();
            }
            opened
        };
        let opened = self.turns.take(self.connect_timeout, opening).await;
        opened.unwrap_or(Err(Verdict::TimedOut(self.connect_timeout)))
    }

    /// Opens a connection; the caller sets the time limit.
    async fn open_own(&self, shared: Own, in_turn: bool) -> Result<Own, Verdict> {
        let opened = self.link.open_another(Duration::MAX, in_turn).await;
        let connection = opened.map_err(|error| trouble(&error))?;
        Ok(Own {
            connection,
            ..shared
        })
    }

    /// Takes back a connection without pending requests.
    pub(crate) fn keep_idle(&self, own: Own) {
        if own.generation == self.standing().generation {
            self.idle.keep(own);
        }
    }

    /// Closes the connections that are kept for the next caller.
    pub(crate) fn close_idle(&self) {
        self.idle.close();
    }
}
