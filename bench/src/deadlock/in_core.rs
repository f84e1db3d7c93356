//! The same requests in core, without a server: how many steps their searches take.

use redislock_core::table::{Denial, Verdict};
use redislock_core::time::Wait;

use super::{ASKER, BUSY, FIRST, HOLDER, MINE, NEXT, OWN, Request};
use crate::Outcome;
use crate::in_core::{Node, name, token};

/// The table, and how many owners wait in their chain.
pub struct Chain {
    node: Node,
    waiting: usize,
}

impl Chain {
    /// The same as on the server.
    pub fn new() -> Outcome<Self> {
        let mut node = Node::new();
        let (busy, mine) = (name(0, BUSY), name(0, MINE));
        node.hold(&busy, &token(HOLDER)?)?;
        node.hold(&mine, &token(ASKER)?)?;
        node.wait(&[&mine], &token(NEXT)?)?;
        for number in 0..2 {
            node.hold(&name(number, OWN), &token(FIRST)?)?;
        }
        Ok(Self { node, waiting: 0 })
    }

    /// Lets so many owners wait, each for the locks of the two owners before it.
    pub fn grow(&mut self, owners: usize) -> Outcome<()> {
        for number in self.waiting..owners {
            let token = token(&crate::ways::token(number))?;
            self.node.hold(&name(number + 2, OWN), &token)?;
            let (one, two) = (name(number, OWN), name(number + 1, OWN));
            self.node.wait(&[&one, &two], &token)?;
        }
        self.waiting = owners;
        Ok(())
    }

    /// The steps of the search for a request.
    pub fn steps(&mut self, request: Request) -> Outcome<u64> {
        let wanted = if request.wants_last() {
            name(self.waiting + 1, OWN)
        } else {
            name(0, BUSY)
        };
        let (token, before) = (token(request.owner())?, self.node.table.deadlock_steps());
        let verdict = self.node.request(&[&wanted], &token, Wait::Forever);
        let steps = self.node.table.deadlock_steps() - before;
        match (verdict, request) {
            (Verdict::Denied(Denial::Deadlock), Request::Closing) => Ok(steps),
            (Verdict::Waits(id), _) if request != Request::Closing => {
                self.node.end_wait(id)?;
                Ok(steps)
            }
            (other, _) => Err(format!("a request in core: {other:?}").into()),
        }
    }
}
