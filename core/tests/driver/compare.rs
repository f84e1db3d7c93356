//! What has to be the same in the core, its replica and the model after every step.

use std::collections::{BTreeMap, BTreeSet};

use redislock_core::lock as core_lock;
use redislock_core::table::Events;
use redislock_core::time::{LeaseTime, Micros, MonoTime};

use super::{Driver, Told, key};
use crate::node::{Change, Node, Value};
use crate::reference::{Answer, Hold, Key, Lock, Mode, Model};

/// Every lock of a node as the model would write it, leases that have ended included. `end` says
/// when a hold ends.
fn seen(
    node: &Node,
    end: impl Fn(&core_lock::Hold) -> LeaseTime,
    shown_limit: impl Fn(u32) -> u32,
) -> Result<BTreeMap<Key, Lock>, String> {
    let mut seen = BTreeMap::new();
    let behind = node.now.mono.0 - node.table.lease_now(node.now.mono).0;
    let mono = |lease: LeaseTime| lease.0 + behind;
    for (at, value) in &node.keys.0 {
        let Value::Lock(id) = value else { continue };
        let lock = node.table.lock(*id).ok_or("a key without its lock")?;
        let holds = lock.holds().map(|hold| {
            let token = hold.token.secret()[0] - b'A';
            let hold = Hold {
                count: hold.count(),
                fence: hold.fence,
                end: mono(end(hold)),
                granted: mono(hold.granted),
                max_hold: hold.max_hold().map_or(0, |cap| cap.0 as u32),
                owner: hold.owner().first().copied(),
                connection: node.table.connection_of(hold),
            };
            (token, hold)
        });
        let mode = match lock.mode() {
            core_lock::Mode::Exclusive => Mode::Exclusive,
            core_lock::Mode::Shared { limit } => Mode::Shared(shown_limit(limit.unwrap_or(0))),
        };
        seen.insert(
            (at.db(), at.name()[0] - b'a'),
            Lock {
                mode,
                holds: holds.collect(),
            },
        );
    }
    Ok(seen)
}

fn without_connections(mut locks: BTreeMap<Key, Lock>) -> BTreeMap<Key, Lock> {
    let holds = locks.values_mut().flat_map(|lock| lock.holds.values_mut());
    holds.for_each(|hold| hold.connection = None);
    locks
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: &T, expected: &T) -> Result<(), String> {
    if found == expected {
        Ok(())
    } else {
        Err(format!("{what}: {found:?}\ninstead of {expected:?}"))
    }
}

impl Driver {
    /// Every new grant has a fence above all earlier ones; who is granted is to be told.
    pub(super) fn note_grants(&mut self, answers: &[(u64, Answer)]) -> Result<(), String> {
        let granted = answers
            .iter()
            .filter(|(_, answer)| matches!(answer, Answer::Fences(_)));
        self.undelivered.extend(granted.map(|(id, _)| *id));
        let held: Vec<_> = self
            .model()
            .held()
            .into_values()
            .flat_map(|lock| lock.holds.into_values())
            .collect();
        let new = held
            .iter()
            .filter(|hold| hold.granted == self.model().now && hold.fence > self.highest_fence);
        let highest = new
            .map(|hold| hold.fence)
            .max()
            .unwrap_or(self.highest_fence);
        if held
            .iter()
            .any(|hold| hold.fence > highest.max(self.model().fence))
        {
            return Err("a fence above the node's counter".into());
        }
        self.highest_fence = highest;
        Ok(())
    }

    /// Everybody who was granted, extended or forced something is told of once.
    pub(super) fn compare_events(
        &self,
        changes: &[Change],
        answers: &[(u64, Answer)],
    ) -> Result<(), String> {
        let mut expected = self.expected;
        for (_, answer) in answers {
            if let Answer::Fences(fences) = answer {
                expected.acquired += fences.len();
            }
        }
        let sum = |count: fn(&Events) -> u32| {
            changes
                .iter()
                .map(|change| count(&change.events) as usize)
                .sum()
        };
        let told = Told {
            acquired: sum(|events| events.acquired),
            extended: sum(|events| events.extended),
            forced: sum(|events| events.forced),
        };
        same("events", &told, &expected)
    }

    /// Everything that can be seen of the core, against its replica and the model.
    pub(super) fn compare(&self, model: &Model) -> Result<(), String> {
        let node = &self.suspect.node;
        let shown_limit = |limit| self.suspect.shown_limit(limit);
        let mut locks = seen(node, |hold| node.table.end_of(hold), shown_limit)?;
        let all_locks = seen(node, |hold| hold.end, shown_limit)?;
        same("fence", &node.table.fence(), &model.fence)?;
        for (whose, node) in [("locks", node), ("locks of the replica", &self.replica)] {
            let keys = node
                .keys
                .0
                .values()
                .filter(|value| matches!(value, Value::Lock(_)))
                .count();
            same(whose, &node.table.locks(), &keys)?;
        }

        let all = locks.values().map(|lock| lock.holds.len()).sum::<usize>();
        for lock in locks.values_mut() {
            lock.holds.retain(|_, hold| hold.end > model.now);
        }
        locks.retain(|_, lock| !lock.holds.is_empty());
        same("locks", &locks, &model.held())?;

        same("waiters", &node.table.waiters(), &model.queue.len())?;
        for db in 0..2 {
            for name in 0..4 {
                let queue = model
                    .queue
                    .iter()
                    .filter(|waiter| waiter.request.keys.contains(&(db, name)));
                let first = queue
                    .clone()
                    .next()
                    .map(|first| (queue.count(), MonoTime(first.since)));
                same("queue", &node.table.waiting_for(&key((db, name))), &first)?;
            }
        }

        let left = model.quarantine_until.saturating_sub(model.now);
        same(
            "quarantine",
            &node
                .table
                .quarantine
                .left(node.now.mono)
                .map_or(0, |(left, _)| left.0),
            &left,
        )?;
        if self.timer_ran == model.now && !model.holds_back && !model.in_quarantine() {
            same(
                "waiters whose turn has come",
                &model.passed_over(),
                &Vec::new(),
            )?;
            same("waiters in a deadlock", &model.stuck(), &BTreeSet::new())?;
        }
        if self.timer_ran == model.now {
            let live = locks.values().map(|lock| lock.holds.len()).sum::<usize>();
            same("ended leases that are left", &(all - live), &0)?;
            let next = node.table.next_deadline().map(|next| next.0);
            let due = [
                model.next_end(),
                model.in_quarantine().then_some(model.quarantine_until),
            ];
            let due = due.into_iter().flatten().min();
            // What was flushed keeps its deadline until it is freed, and strings are looked at now
            // and then: the timer runs for nothing then.
            let is_early = node.has_flushed() || node.table.next_look().is_some();
            let runs_for_nothing = due.is_none() && next.is_some() && is_early;
            if !runs_for_nothing
                && (next.is_some() != due.is_some()
                    || next > due.map(|due| due + super::step::TICK - 1))
            {
                return Err(format!(
                    "the timer would run at {next:?} instead of {due:?}"
                ));
            }
        }
        let replicated = seen(&self.replica, |hold| hold.end, shown_limit)?;
        same("the replica", &replicated, &without_connections(all_locks))?;
        same(
            "fence of the replica",
            &self.replica.table.fence(),
            &node.table.fence(),
        )?;
        Ok(())
    }

    /// Everybody goes: nothing may be left.
    ///
    /// # Errors
    /// What is left.
    pub fn end(mut self) -> Result<(), String> {
        let node = &mut self.suspect.node;
        node.free();
        node.table.unblock_all();
        node.table.holds_back = false;
        let keys: Vec<_> = node.keys.0.keys().cloned().collect();
        for at in keys {
            node.force(&at);
            node.keys.0.remove(&at);
        }
        node.advance(10_000 * Micros(super::step::TICK));
        node.tick();
        let table = &node.table;
        same("locks left", &(table.locks(), node.keys.0.len()), &(0, 0))?;
        same("known locks", &table.known_locks(), &0)?;
        same("waiters left", &table.waiters(), &0)?;
        same("unserved queues left", &table.has_unserved(), &false)?;
        same("deadlines left", &table.next_deadline(), &None)?;
        same("owners left", &table.holding_owners(), &0)?;
        same(
            "ties to connections left",
            &(0..1000).any(|connection| table.is_bound(connection)),
            &false,
        )
    }
}
