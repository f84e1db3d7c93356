//! The result of a run, as text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use redislock_testkit::history::{Claims, DelayedWrites, Entry, What};

use super::episode::{Faults, NEXT, Record};
use super::name_of;
use super::plan::{Episode, Plan, Setup};
use super::worker::RECOVERY;

/// A family that was planned this often must have had an effect. Nearly half of the cuts have none.
const OFTEN: usize = 8;

/// In a run with so many acquisitions, a register must have refused a late write.
const LONG: usize = 200;

/// The report of a run, for people.
pub fn summary(plan: &Plan, repeat: &str, records: &[Record], notes: &[String]) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "chaos, seed {}; repeat it with: {repeat}\n",
        plan.seed
    );
    for record in records {
        text += &of_episode(record);
    }
    for note in notes {
        let _ = writeln!(text, "{note}");
    }
    let idle = without_effect(records);
    for problem in &idle {
        let _ = writeln!(text, "PROBLEM {problem}");
    }
    let problems: usize = records.iter().map(|record| record.problems.len()).sum();
    let problems = problems + idle.len();
    let families = faults(records);
    let count = |of: fn(&Faults) -> usize| families.values().map(of).sum::<usize>();
    let _ = writeln!(
        text,
        "{} of {} deployments, {} of {} faults had an effect, {} acquisitions: {}",
        records.len(),
        plan.episodes.len(),
        count(|faults| faults.happened),
        count(|faults| faults.planned),
        acquired(records),
        match problems {
            0 => "no promise was broken".to_owned(),
            count => format!("{count} PROBLEMS"),
        }
    );
    let _ = writeln!(text, "{}", of_delayed(delayed_writes(records)));
    text
}

/// How many locks were acquired in all episodes.
fn acquired(records: &[Record]) -> usize {
    let claims = records.iter().map(|record| Claims::of(&record.entries));
    let held = claims.map(|claims| claims.all().filter(|claim| claim.held.is_some()).count());
    held.sum()
}

/// The delayed writes of all episodes.
fn delayed_writes(records: &[Record]) -> DelayedWrites {
    let mut sum = DelayedWrites::default();
    for record in records {
        sum += Claims::of(&record.entries).delayed_writes();
    }
    sum
}

fn of_delayed(writes: DelayedWrites) -> String {
    let DelayedWrites { all, late, refused } = writes;
    format!(
        "{all} writes were delayed in the network, {late} of them arrived after the hold was over, \
         {refused} of these were refused"
    )
}

/// The faults of each family in all episodes.
fn faults(records: &[Record]) -> BTreeMap<&str, Faults> {
    let mut all: BTreeMap<&str, Faults> = BTreeMap::new();
    for (family, faults) in records.iter().flat_map(Record::faults) {
        let sum = all.entry(family).or_default();
        sum.planned += faults.planned;
        sum.happened += faults.happened;
    }
    all
}

/// A problem for each family that was planned often and never had an effect, and for a long run in
/// which no late write was refused: a run without its faults shows nothing about them.
pub fn without_effect(records: &[Record]) -> Vec<String> {
    let is_idle = |faults: &Faults| faults.planned >= OFTEN && faults.happened == 0;
    let idle = faults(records).into_iter().filter(|(_, it)| is_idle(it));
    let idle = idle.map(|(family, faults)| {
        let planned = faults.planned;
        format!("no fault of the family {family} had an effect, {planned} were planned")
    });
    let lacks_late_writes = acquired(records) >= LONG && delayed_writes(records).refused == 0;
    let late = lacks_late_writes.then(|| "no register refused a late write".to_owned());
    idle.chain(late).collect()
}

fn of_episode(record: &Record) -> String {
    let mut text = String::new();
    let episode = &record.episode;
    let _ = writeln!(
        text,
        "{}: {} s of faults, {} client processes, {} locks, leases of at most {} ms",
        episode.setup,
        episode.length / 1000,
        episode.workers,
        episode.locks,
        episode.quarantine
    );
    let faults = record.faults().into_iter();
    let faults = faults.map(|(name, it)| format!("{name} {}/{}", it.planned, it.happened));
    let faults: Vec<String> = faults.collect();
    let _ = writeln!(text, "  faults (planned/happened): {}", faults.join(", "));
    let _ = writeln!(text, "  {}", operations(record));
    let _ = writeln!(
        text,
        "  {}",
        of_delayed(delayed_writes(std::slice::from_ref(record)))
    );
    let _ = writeln!(text, "  {}", liveness(record));
    for problem in record.problems.iter().take(10) {
        let _ = writeln!(text, "  PROBLEM {problem}");
    }
    if record.problems.len() > 10 {
        let _ = writeln!(text, "  and {} more", record.problems.len() - 10);
    }
    text.push('\n');
    text
}

fn operations(record: &Record) -> String {
    let claims = Claims::of(&record.entries);
    let acquired = claims.all().filter(|claim| claim.held.is_some()).count();
    let count = |wanted: fn(&What) -> bool| {
        let entries = record.entries.iter();
        entries.filter(|entry| wanted(&entry.what)).count()
    };
    let lost = count(|what| matches!(what, What::Lost));
    let again = count(|what| matches!(what, What::Again { .. }));
    let on_servers = count(|what| matches!(what, What::Reentered { .. }));
    let shared = claims.all().filter(|claim| !claim.exclusive);
    let shared = shared.filter(|claim| claim.held.is_some()).count();
    let (written, refused) = claims.writes();
    let mut why: BTreeMap<&str, usize> = BTreeMap::new();
    for entry in &record.entries {
        if let What::Failed { why: reason } = &entry.what {
            *why.entry(reason).or_default() += 1;
        }
    }
    let why: Vec<String> = why.iter().map(|(name, n)| format!("{name} {n}")).collect();
    format!(
        "acquired {acquired} (shared {shared}), not acquired: {}; re-entered {again}; {on_servers} \
         servers replied to direct re-entries; found lost {lost}; register: {written} writes, \
         {refused} refused",
        why.join(", "),
    )
}

fn liveness(record: &Record) -> String {
    let claims = Claims::of(&record.entries);
    let (of_one, limit) = (time_of_one(&record.episode), RECOVERY.as_secs());
    let took = recovery(&claims, record).map_or("did not acquire".to_owned(), |took| {
        format!("needed {took} ms to acquire")
    });
    format!(
        "after the faults: the clients {took} every lock (target for one acquisition {of_one} ms, \
         limit {limit} s)"
    )
}

/// In how many milliseconds one acquisition should succeed after the faults: its ttl, the
/// quarantine, and one second. It is not checked, because other processes may use the machine.
fn time_of_one(episode: &Episode) -> u64 {
    let ttl = episode.quarantine;
    let quarantine = match episode.setup {
        Setup::Durable { .. } => 0,
        _ => episode.quarantine,
    };
    ttl + quarantine + 1_000
}

/// How long after the faults every client had acquired every lock, in milliseconds.
fn recovery(claims: &Claims, record: &Record) -> Option<u64> {
    let acquired = |worker: usize, lock: &str| {
        let its = claims.all().filter(|claim| {
            claim.client % NEXT == worker as u32 && claim.locks.iter().any(|name| name == lock)
        });
        let at = its.filter_map(|claim| Some(claim.held?.0));
        at.filter(|at| *at >= record.healed).min()
    };
    let episode = &record.episode;
    let mut last = record.healed;
    for lock in (0..episode.locks).map(name_of) {
        for worker in 0..episode.workers {
            last = last.max(acquired(worker, &lock)?);
        }
    }
    Some((last - record.healed) / 1000)
}

/// The journal of an episode, by time.
pub fn journal(entries: &[Entry]) -> String {
    let mut entries: Vec<&Entry> = entries.iter().collect();
    entries.sort_by_key(|entry| entry.at);
    entries.into_iter().map(Entry::line).collect()
}

#[cfg(test)]
mod tests {
    use super::super::plan::{Episode, FAMILIES};
    use super::*;

    fn entry(at: u64, client: u32, claim: u64, what: What) -> Entry {
        Entry {
            at,
            client,
            claim,
            what,
        }
    }

    fn fault(family: &str, happened: Option<bool>) -> Entry {
        let what = What::Fault {
            name: "a fault".to_owned(),
            family: family.to_owned(),
            begins: happened.is_none(),
            happened,
        };
        entry(0, 0, 0, what)
    }

    fn an_episode() -> Episode {
        let plan = Plan::new(1, 100, &FAMILIES.map(|(_, family)| family));
        Episode {
            workers: 2,
            locks: 1,
            ..plan.episodes[0].clone()
        }
    }

    fn record(entries: Vec<Entry>) -> Record {
        Record {
            episode: an_episode(),
            entries,
            healed: 1_000_000,
            problems: Vec::new(),
        }
    }

    /// Faults of one family, each with its effect.
    fn faults_of(family: &str, effects: &[bool]) -> Record {
        let faults = effects
            .iter()
            .flat_map(|effect| [fault(family, None), fault(family, Some(*effect))]);
        record(faults.collect())
    }

    fn text(records: &[Record]) -> String {
        let plan = Plan {
            seed: 1,
            episodes: vec![an_episode()],
        };
        summary(&plan, "make chaos", records, &[])
    }

    #[test]
    fn the_report_says_how_many_of_the_planned_faults_happened() {
        let records = [faults_of("disk", &[false, true, false])];
        let text = text(&records);
        assert!(text.contains("disk 3/1"), "{text}");
        assert!(text.contains("1 of 3 faults had an effect"), "{text}");
        assert!(text.contains("no promise was broken"), "{text}");
    }

    #[test]
    fn a_family_that_was_planned_often_and_never_happened_is_a_problem() {
        let never = |effects: &[&[bool]]| {
            let records: Vec<_> = effects.iter().map(|it| faults_of("cut", it)).collect();
            let problems = without_effect(&records).len();
            assert_eq!(text(&records).contains("1 PROBLEMS"), problems == 1);
            problems == 1
        };
        let few = [false; OFTEN - 1];
        assert!(never(&[&[false; OFTEN]]));
        assert!(never(&[&few, &[false]]));
        assert!(!never(&[&few]));
        assert!(!never(&[&few, &[true]]));
    }

    #[test]
    fn a_long_run_in_which_no_late_write_was_refused_is_a_problem() {
        let run = |count: usize, was: Option<u64>| {
            let holds = (1..=count as u64).flat_map(|claim| {
                let (locks, shared) = (vec![name_of(0)], false);
                let (at, fence, lock) = (claim * 10, claim, name_of(0));
                let (until, arrived) = (at + 1, Some(at + 5));
                let write = What::Write {
                    lock,
                    fence,
                    read: claim,
                    was,
                    arrived,
                };
                [
                    entry(at - 1, 0, claim, What::Ask { locks, shared }),
                    entry(at, 0, claim, What::Held { fence, until }),
                    entry(at + 6, 0, claim, write),
                ]
            });
            let records = [record(holds.collect())];
            let problems = without_effect(&records).len();
            assert_eq!(text(&records).contains("1 PROBLEMS"), problems == 1);
            problems
        };
        assert_eq!(run(LONG, None), 0);
        assert_eq!(run(LONG - 1, Some(1)), 0);
        assert_eq!(run(LONG, Some(1)), 1);
    }

    #[test]
    fn recovery_lasts_until_every_client_has_acquired_every_lock() {
        let hold = |client: u32, claim: u64, at: u64| {
            let (locks, shared) = (vec![name_of(0)], false);
            let (fence, until) = (claim, at + 1);
            [
                entry(at - 10, client, claim, What::Ask { locks, shared }),
                entry(at, client, claim, What::Held { fence, until }),
            ]
        };
        let took = |holds: &[[Entry; 2]]| {
            let record = record(holds.concat());
            recovery(&Claims::of(&record.entries), &record)
        };
        // Client 1 was replaced. What it held before the end of the faults does not count.
        let (before, first) = (hold(1, 1, 999_000), hold(0, 2, 1_005_000));
        assert_eq!(took(&[before.clone(), first.clone()]), None);
        let (second, again) = (hold(1 + NEXT, 3, 1_042_000), hold(0, 4, 1_090_000));
        assert_eq!(took(&[before, first, second, again]), Some(42));
    }
}
