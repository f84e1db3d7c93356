//! How long the slices of background work took in soak, and whether the machine explains that.
//!
//! The clock of a thread also counts interrupts and pauses of the machine. So another thread
//! repeats a fixed piece of work, and slices may take long as often as that.

use std::time::Duration;

use redislock_testkit::{Connection, Interruptions, Pieces, info_number, wait_patiently};

use super::{EVENTS, ROUNDS};

/// The most CPU time that a slice may take.
const SLICE: Duration = Duration::from_millis(1);
/// Rounds with fewer slices show nothing.
const ENOUGH: u64 = 20;

/// The slices of each round so far.
pub struct Slices {
    machine: Interruptions,
    rounds: Vec<Round>,
}

/// The slices of one round, and other work at the same time.
#[derive(Clone, Copy)]
struct Round {
    count: u64,
    /// How many took more than [`SLICE`].
    long: u64,
    /// The CPU time of all.
    total: Duration,
    /// The CPU time of the longest one.
    longest: Duration,
    /// The most page faults of one.
    faults: u64,
    machine: Pieces,
}

impl Slices {
    pub fn watch() -> Self {
        Self {
            machine: Interruptions::watch(SLICE),
            rounds: Vec::new(),
        }
    }

    /// A round begins: what was before it does not count.
    pub fn begin(&self, c: &mut Connection) {
        // The module notices a reset within a second. There is something to reset.
        c.pipeline(&["LOCK.ACQUIRE begin me 5000", "LOCK.RELEASE begin me"]);
        c.ok("CONFIG RESETSTAT");
        wait_patiently("the statistics are reset", || {
            info_number(c, "lock", "lock_grants") == 0
        });
        self.machine.take();
    }

    /// Notes the slices of a round.
    pub fn add(&mut self, c: &mut Connection) {
        let info = c.call("INFO lock");
        let number = |name: &str| -> u64 {
            let line = info.text().lines().find_map(|line| {
                let (found, value) = line.split_once(':')?;
                (found == name).then_some(value)
            });
            let value = line.unwrap_or_else(|| panic!("{name} is missing"));
            value.trim().parse().expect("a number")
        };
        let round = Round {
            count: number("lock_expiry_slices"),
            long: number("lock_long_expiry_slices"),
            total: Duration::from_micros(number("lock_expiry_slices_cpu_us")),
            longest: Duration::from_micros(number("lock_longest_expiry_slice_cpu_us")),
            faults: number("lock_most_expiry_slice_page_faults"),
            machine: self.machine.take(),
        };
        assert_eq!(round.long > 0, round.longest > SLICE, "one must be counted");
        if round.long > 0 {
            let (at, event) = (self.rounds.len(), EVENTS[self.rounds.len() % ROUNDS]);
            println!("round {at}, {event}: {}", round.in_words());
        }
        self.rounds.push(round);
    }

    /// Prints what the rounds of each kind had.
    pub fn report(&self) {
        for (at, event) in EVENTS.iter().enumerate() {
            let rounds: Vec<_> = of_kind(&self.rounds, at).copied().collect();
            let mut longest: Vec<_> = rounds.iter().map(|round| round.longest).collect();
            longest.sort_unstable();
            let median = longest.get(longest.len() / 2);
            println!(
                "rounds with a {event}: longest slice {:?} (median); {}",
                median.copied().unwrap_or_default(),
                sum(rounds).in_words()
            );
        }
        println!("all rounds: {}", sum(self.rounds.clone()).in_words());
    }

    pub fn assert_short(&self) {
        if let Err(problem) = judge(&self.rounds) {
            panic!("{problem}");
        }
    }
}

impl Round {
    fn in_words(&self) -> String {
        let Self {
            count,
            long,
            total,
            longest,
            faults,
            machine,
        } = self;
        format!(
            "{long} of {count} slices took more than {SLICE:?} by the clock, {longest:?} at most, \
             {total:?} in all, at most {faults} page faults; {} pieces of other work took more, \
             {:?} at most, {:?} in all",
            machine.long, machine.longest, machine.total
        )
    }

    /// How many slices may be long: as many as the machine makes long, and three standard
    /// deviations more.
    fn allowed(&self) -> f64 {
        let rate = self.machine.long as f64 / self.machine.total.as_secs_f64();
        let expected = rate * self.total.as_secs_f64();
        expected + 3.0 * expected.max(1.0).sqrt()
    }

    /// Whether a slice took too long, and longer than any other work in the same round.
    fn is_unexplained(&self) -> bool {
        self.longest > SLICE.max(self.machine.longest)
    }
}

fn of_kind(rounds: &[Round], at: usize) -> impl Iterator<Item = &Round> {
    rounds.iter().skip(at).step_by(ROUNDS)
}

fn sum(rounds: impl IntoIterator<Item = Round>) -> Round {
    let nothing = Round {
        count: 0,
        long: 0,
        total: Duration::ZERO,
        longest: Duration::ZERO,
        faults: 0,
        machine: Pieces::default(),
    };
    rounds.into_iter().fold(nothing, |sum, round| Round {
        count: sum.count + round.count,
        long: sum.long + round.long,
        total: sum.total + round.total,
        longest: sum.longest.max(round.longest),
        faults: sum.faults.max(round.faults),
        machine: Pieces {
            longest: sum.machine.longest.max(round.machine.longest),
            long: sum.machine.long + round.machine.long,
            total: sum.machine.total + round.machine.total,
        },
    })
}

/// Says what is wrong: slices that are long more often than the machine explains, in most rounds
/// of a kind, or that are far longer than other work.
fn judge(rounds: &[Round]) -> Result<(), String> {
    for (at, event) in EVENTS.iter().enumerate() {
        let kind: Vec<_> = of_kind(rounds, at).copied().collect();
        let (many, all) = (kind.len(), sum(kind.clone()));
        let words = format!("rounds with a {event}: {}", all.in_words());
        if all.count < ENOUGH * many as u64 || all.machine.total.is_zero() || many == 0 {
            return Err(format!("too little was measured: {words}"));
        }
        let unexplained = kind.iter().filter(|round| round.is_unexplained());
        if 2 * unexplained.count() > many {
            return Err(format!("long slices in most {words}"));
        }
        if all.long as f64 > all.allowed() {
            return Err(format!("too many long slices in {words}"));
        }
    }
    let all = sum(rounds.to_vec());
    if all.long as f64 > all.allowed() {
        return Err(format!("too many long slices: {}", all.in_words()));
    }
    if all.longest > 2 * all.machine.longest.max(SLICE) {
        return Err(format!("a slice is far too long: {}", all.in_words()));
    }
    Ok(())
}

/// A quiet machine: no piece of work takes long.
const QUIET: Round = Round {
    count: 900,
    long: 0,
    total: Duration::from_millis(100),
    longest: Duration::from_micros(400),
    faults: 5,
    machine: Pieces {
        longest: Duration::from_micros(350),
        long: 0,
        total: Duration::from_millis(170),
    },
};

fn with_long(count: u64, longest: Duration) -> Round {
    Round {
        long: count,
        longest,
        ..QUIET
    }
}

/// Rounds of this kind are like this one, all others are quiet.
fn ten_cycles(kind: usize, round: Round) -> Vec<Round> {
    let rounds = 0..10 * ROUNDS;
    rounds
        .map(|at| if at % ROUNDS == kind { round } else { QUIET })
        .collect()
}

#[test]
fn short_slices_and_single_ones_that_are_little_longer_pass() {
    assert_eq!(judge(&[QUIET; 10 * ROUNDS]), Ok(()));
    let mut rounds = [QUIET; 10 * ROUNDS];
    rounds[3] = with_long(1, 2 * SLICE);
    rounds[8] = with_long(1, SLICE * 3 / 2);
    assert_eq!(judge(&rounds), Ok(()));
}

#[test]
fn a_long_slice_in_each_round_of_a_kind_is_noticed() {
    for (kind, event) in EVENTS.iter().enumerate() {
        let told = judge(&ten_cycles(kind, with_long(1, SLICE * 3 / 2)));
        assert!(told.is_err_and(|told| told.contains(event)), "{event}");
    }
}

#[test]
fn slices_that_are_long_more_often_than_other_work_are_noticed() {
    let noisy = |long| Round {
        machine: Pieces {
            longest: 5 * SLICE,
            long: 2,
            ..QUIET.machine
        },
        ..with_long(long, 2 * SLICE)
    };
    assert_eq!(judge(&ten_cycles(0, noisy(1))), Ok(()));
    assert!(judge(&ten_cycles(0, noisy(3))).is_err());
}

#[test]
fn one_slice_that_is_far_longer_than_other_work_is_noticed() {
    let mut rounds = [QUIET; 10 * ROUNDS];
    rounds[5] = with_long(1, 3 * SLICE);
    assert!(judge(&rounds).is_err());
}

#[test]
fn nothing_measured_shows_nothing() {
    let no_slices = Round { count: 0, ..QUIET };
    let no_other_work = Round {
        machine: Pieces::default(),
        ..QUIET
    };
    assert!(judge(&[]).is_err());
    assert!(judge(&[no_slices; 10 * ROUNDS]).is_err());
    assert!(judge(&[no_other_work; 10 * ROUNDS]).is_err());
}
