//! Instructions to save a lock in an RDB file, and to load it.

use super::{Counter, Counters, ROUNDS};
use crate::Outcome;
use crate::growth::{RELOAD, empty, keys};
use crate::measure::{Figures, alternate};
use crate::measured::check_yes;
use crate::memory::{STRING, used_memory};
use crate::results::{Chart, OURS, Unit};
use crate::ways::Way;

pub const SAVE: &str = "saving a lock in an RDB file";
pub const LOAD: &str = "loading a lock from an RDB file";

/// How many locks are saved and loaded at once: what a file costs by itself hardly counts.
const LOCKS: usize = 5_000;

impl Counters {
    /// What the servers have is flushed.
    pub(super) fn saves_and_loads(&mut self) -> Outcome<[Chart; 2]> {
        let ways = [
            (Way::Ours, OURS),
            (Way::Script, STRING),
            (Way::Bare, Way::Bare.name()),
        ];
        let known = self.ways();
        let ways: Vec<_> = ways.iter().filter(|(way, _)| known.contains(way)).collect();
        let mut loads = vec![Figures::default(); ways.len()];
        let what = "instructions, save and load";
        let saves = alternate(what, ROUNDS, ways.len(), |number| {
            let (way, _) = ways[number];
            let (save, load) = self.of(way.host())?.save_and_load(*way)?;
            loads[number].push(load);
            Ok(save)
        })?;
        let chart = |title, figures: Vec<_>| {
            let names = ways.iter().map(|(_, name)| (*name).to_owned());
            Chart::new(title, Unit::Instructions, names.zip(figures).collect())
        };
        Ok([chart(SAVE, saves), chart(LOAD, loads)])
    }
}

impl Counter {
    fn save_and_load(&mut self, way: Way) -> Outcome<(f64, f64)> {
        let filled = used_memory(&mut self.connection)?;
        empty(&mut self.connection, filled)?;
        let before = used_memory(&mut self.connection)?;
        self.acquires(way, LOCKS)?;
        let save = self.each(LOCKS, |counter| counter.done(&["SAVE"]))?;
        empty(&mut self.connection, before)?;
        let load = self.each(LOCKS, |counter| counter.done(&RELOAD))?;
        if keys(&mut self.connection)? != LOCKS as i64 {
            return Err("not all locks were loaded".into());
        }
        Ok((save, load))
    }

    fn done(&mut self, words: &[&str]) -> Outcome<()> {
        check_yes(&self.connection.try_call(words)?)
    }
}
