//! Rounds, medians, and the server's own clock.

use std::io::{IsTerminal, Write};

use redislock_testkit::Connection;

use crate::Outcome;

/// Rounds of each comparison.
pub const ROUNDS: usize = 7;

/// One figure of many rounds.
#[derive(Clone, Debug, Default)]
pub struct Figures(Vec<f64>);

impl Figures {
    pub fn push(&mut self, figure: f64) {
        self.0.push(figure);
    }

    pub fn median(&self) -> f64 {
        let sorted = self.sorted();
        match sorted.len() {
            0 => f64::NAN,
            len if len % 2 == 1 => sorted[len / 2],
            len => f64::midpoint(sorted[len / 2 - 1], sorted[len / 2]),
        }
    }

    pub fn least(&self) -> f64 {
        self.sorted().first().copied().unwrap_or(f64::NAN)
    }

    pub fn most(&self) -> f64 {
        self.sorted().last().copied().unwrap_or(f64::NAN)
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }
}

/// Ours and the peer's, round by round.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    pub ours: Figures,
    pub peer: Figures,
    /// Ours over the peer's, of the same round.
    pub ratio: Figures,
}

impl Comparison {
    /// Of two things that were measured one after the other, as often.
    pub fn of(ours: &Figures, peer: &Figures) -> Self {
        let mut comparison = Self::default();
        for (ours, peer) in ours.0.iter().zip(&peer.0) {
            comparison.push(*ours, *peer);
        }
        comparison
    }

    pub fn push(&mut self, ours: f64, peer: f64) {
        self.ours.push(ours);
        self.peer.push(peer);
        self.ratio.push(ours / peer);
    }

    /// The peer's over ours.
    pub fn inverted(&self) -> Figures {
        Figures(self.ratio.0.iter().map(|ratio| 1.0 / ratio).collect())
    }

    /// Ours less the peer's.
    pub fn difference(&self) -> Figures {
        let rounds = self.ours.0.iter().zip(&self.peer.0);
        Figures(rounds.map(|(ours, peer)| ours - peer).collect())
    }
}

/// Which of two alternating things is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Ours,
    Peer,
}

/// Measures both sides in each of `rounds` rounds; who begins changes, so that neither profits from
/// its place.
pub fn alternate(
    what: &str,
    rounds: usize,
    measure: impl FnMut(Side) -> Outcome<f64>,
) -> Outcome<Comparison> {
    interleave(what, rounds, 1, measure)
}

/// The same with each round in several steps, and its mean: whatever else the machine does
/// meanwhile, it does to both.
pub fn interleave(
    what: &str,
    rounds: usize,
    steps: usize,
    mut measure: impl FnMut(Side) -> Outcome<f64>,
) -> Outcome<Comparison> {
    let mut comparison = Comparison::default();
    for round in 0..rounds {
        progress(&format!("{what}: round {} of {rounds}", round + 1));
        let (mut ours, mut peer) = (0.0, 0.0);
        for step in 0..steps {
            if (round + step) % 2 == 0 {
                ours += measure(Side::Ours)?;
                peer += measure(Side::Peer)?;
            } else {
                peer += measure(Side::Peer)?;
                ours += measure(Side::Ours)?;
            }
        }
        comparison.push(ours / steps as f64, peer / steps as f64);
    }
    progress("");
    Ok(comparison)
}

/// Shows what is being done, on one line of a terminal.
pub fn progress(line: &str) {
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
