//! Instructions to save a lock in an RDB file, and to load it.

use super::{COMMANDS, Counter};
use crate::Outcome;
use crate::growth::{RELOAD, empty, keys};
use crate::measure::{Figures, progress};
use crate::measured::check_yes;
use crate::memory::{STRING, used_memory};
use crate::results::{Chart, OURS, Unit};
use crate::ways::Way;

pub const SAVE: &str = "saving a lock in an RDB file";
pub const LOAD: &str = "loading a lock from an RDB file";

impl Counter {
    /// What the server has is flushed.
    pub(super) fn saves_and_loads(&mut self) -> Outcome<[Chart; 2]> {
        let ways = [
            (Way::Ours, OURS),
            (Way::Script, STRING),
            (Way::Bare, Way::Bare.name()),
        ];
        let (mut saves, mut loads) = (Vec::new(), Vec::new());
        let before = used_memory(&mut self.connection)?;
        for (way, name) in ways {
            if !self.ways.all.contains(&way) {
                continue;
            }
            progress(&format!("instructions: save and load, {name}"));
            empty(&mut self.connection, before)?;
            self.acquires(way)?;
            let save = self.each(COMMANDS, |counter| counter.done(&["SAVE"]))?;
            empty(&mut self.connection, before)?;
            let load = self.each(COMMANDS, |counter| counter.done(&RELOAD))?;
            if keys(&mut self.connection)? != COMMANDS as i64 {
                return Err("not all locks were loaded".into());
            }
            saves.push((name.to_owned(), Figures::one(save)));
            loads.push((name.to_owned(), Figures::one(load)));
        }
        let chart = |title, found| Chart::new(title, Unit::Instructions, found);
        Ok([chart(SAVE, saves), chart(LOAD, loads)])
    }

    fn done(&mut self, words: &[&str]) -> Outcome<()> {
        check_yes(&self.connection.try_call(words)?)
    }
}
