//! Rounds, medians, and the server's own clock.

use std::io::{IsTerminal, Write};
use std::sync::{Mutex, PoisonError};

use redislock_testkit::Connection;
use serde::{Deserialize, Serialize};

use crate::Outcome;

/// Rounds of each comparison.
pub const ROUNDS: usize = 7;

/// From so many rounds on, the lowest and the highest one say little.
const MANY: usize = 20;

/// One figure of many rounds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures(Vec<f64>);

impl Figures {
    /// Of one round.
    pub fn one(figure: f64) -> Self {
        let mut figures = Self::default();
        figures.push(figure);
        figures
    }

    /// Of these rounds.
    pub fn of(figures: Vec<f64>) -> Self {
        Self(figures)
    }

    /// Adds a round, rounded to six significant digits: no measurement is more exact.
    pub fn push(&mut self, figure: f64) {
        let shown = format!("{figure:.5e}");
        self.0.push(shown.parse().unwrap_or(figure));
    }

    /// How many rounds.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    pub fn median(&self) -> f64 {
        let sorted = self.sorted();
        match sorted.len() {
            0 => f64::NAN,
            len if len % 2 == 1 => sorted[len / 2],
            len => f64::midpoint(sorted[len / 2 - 1], sorted[len / 2]),
        }
    }

    /// Its spread: the lowest and the highest round, or, of so many rounds that some are disturbed,
    /// the quartiles.
    pub fn range(&self) -> [f64; 2] {
        if self.count() < MANY {
            return [self.least(), self.most()];
        }
        let sorted = self.sorted();
        [sorted.len() / 4, sorted.len() * 3 / 4].map(|place| sorted[place])
    }

    pub fn least(&self) -> f64 {
        self.sorted().first().copied().unwrap_or(f64::NAN)
    }

    pub fn most(&self) -> f64 {
        self.sorted().last().copied().unwrap_or(f64::NAN)
    }

    /// This over the other, round by round.
    pub fn over(&self, other: &Self) -> Self {
        let rounds = self.0.iter().zip(&other.0);
        Self(rounds.map(|(this, other)| this / other).collect())
    }

    /// This minus the other, round by round.
    pub fn less(&self, other: &Self) -> Self {
        let rounds = self.0.iter().zip(&other.0);
        Self(rounds.map(|(this, other)| this - other).collect())
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }
}

/// Measures each alternative in each round; they take turns to be first, so that none profits
/// from its place.
pub fn alternate(
    what: &str,
    rounds: usize,
    alternatives: usize,
    measure: impl FnMut(usize) -> Outcome<f64>,
) -> Outcome<Vec<Figures>> {
    interleave(what, rounds, 1, alternatives, measure)
}

/// The same, with each round in several steps, and their mean: other work on the machine
/// affects all alternatives alike.
pub fn interleave(
    what: &str,
    rounds: usize,
    steps: usize,
    alternatives: usize,
    mut measure: impl FnMut(usize) -> Outcome<f64>,
) -> Outcome<Vec<Figures>> {
    let mut found = vec![Figures::default(); alternatives];
    for round in 0..rounds {
        progress(&format!("{what}: round {} of {rounds}", round + 1));
        let mut sums = vec![0.0; alternatives];
        for step in 0..steps {
            for turn in 0..alternatives {
                let alternative = (round + step + turn) % alternatives;
                sums[alternative] += measure(alternative)?;
            }
        }
        for (figures, sum) in found.iter_mut().zip(sums) {
            figures.push(sum / steps as f64);
        }
    }
    Ok(found)
}

/// Which part of the whole is being done: it stands before each line of [`progress`].
static PART: Mutex<String> = Mutex::new(String::new());

pub fn set_part(part: String) {
    *PART.lock().unwrap_or_else(PoisonError::into_inner) = part;
}

/// Shows what is being done, on one line of a terminal.
pub fn progress(line: &str) {
    let part = PART.lock().unwrap_or_else(PoisonError::into_inner);
    let whole = if line.is_empty() {
        String::new()
    } else {
        format!("{part}{line}")
    };
    let line = whole.as_str();
    let mut out = std::io::stderr();
    // Nothing is lost if it cannot be shown.
    let _ = if out.is_terminal() {
        write!(out, "\r\x1b[K{line}")
    } else if line.is_empty() {
        Ok(())
    } else {
        writeln!(out, "{line}")
    };
    let _ = out.flush();
}

/// Microseconds of CPU that the whole server process has used so far.
pub fn server_cpu(connection: &mut Connection) -> Outcome<f64> {
    let info = connection.try_info("cpu")?;
    Ok((info.number::<f64>("used_cpu_user")? + info.number::<f64>("used_cpu_sys")?) * 1e6)
}

/// Server CPU in microseconds that some work takes.
pub fn cpu_of(control: &mut Connection, work: impl FnOnce() -> Outcome<()>) -> Outcome<f64> {
    let before = server_cpu(control)?;
    work()?;
    Ok(server_cpu(control)? - before)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_is_measured_as_often_and_begins_in_turn() {
        let mut order = Vec::new();
        let found = interleave("", 3, 2, 3, |alternative| {
            order.push(alternative);
            Ok(alternative as f64)
        });
        let medians: Vec<_> = found.unwrap().iter().map(Figures::median).collect();
        assert_eq!(medians, [0.0, 1.0, 2.0]);
        assert_eq!(order[..6], [0, 1, 2, 1, 2, 0]);
    }

    #[test]
    fn a_few_disturbed_rounds_of_many_are_not_in_the_range() {
        let rounds = |count: u8| Figures((1..=count).map(f64::from).collect());
        assert_eq!(rounds(19).range(), [1.0, 19.0]);
        assert_eq!(rounds(21).range(), [6.0, 16.0]);
    }

    #[test]
    fn ratios_are_those_of_one_round() {
        let figures = |all: &[f64]| Figures(all.to_vec());
        let ratio = figures(&[2.0, 8.0]).over(&figures(&[1.0, 2.0]));
        assert_eq!(
            (ratio.least(), ratio.median(), ratio.most()),
            (2.0, 3.0, 4.0)
        );
    }
}
