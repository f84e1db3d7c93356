//! The result of a run, as text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use redislock_testkit::history::{Claims, Entry, What};

use super::episode::Record;
use super::plan::Plan;

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
    let problems: usize = records.iter().map(|record| record.problems.len()).sum();
    let claims = |record: &Record| Claims::of(&record.entries);
    let acquired = |record: &Record| claims(record).all().filter(|c| c.held.is_some()).count();
    let faults: usize = records
        .iter()
        .flat_map(|it| it.faults().into_values())
        .sum();
    let _ = writeln!(
        text,
        "{} of {} deployments, {faults} faults, {} acquisitions: {}",
        records.len(),
        plan.episodes.len(),
        records.iter().map(acquired).sum::<usize>(),
        match problems {
            0 => "no promise was broken".to_owned(),
            count => format!("{count} PROBLEMS"),
        }
    );
    text
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
    let faults: Vec<String> = faults.map(|(name, n)| format!("{name} {n}")).collect();
    let _ = writeln!(text, "  faults: {}", faults.join(", "));
    let _ = writeln!(text, "  {}", operations(record));
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
    let (written, refused) = claims.writes();
    let mut why: BTreeMap<&str, usize> = BTreeMap::new();
    for entry in &record.entries {
        if let What::Failed { why: reason } = &entry.what {
            *why.entry(reason).or_default() += 1;
        }
    }
    let why: Vec<String> = why.iter().map(|(name, n)| format!("{name} {n}")).collect();
    format!(
        "acquired {acquired}, entered again {again}, not acquired: {}; found lost {lost}; \
         register: {written} writes, {refused} refused; slowest recovery {} ms",
        why.join(", "),
        recovery(&claims, record.healed)
    )
}

/// How long after the faults the last client acquired its last lock, in milliseconds.
fn recovery(claims: &Claims, healed: u64) -> u64 {
    let after = claims.all().filter(|claim| claim.asked >= healed);
    let waits = after.filter_map(|claim| Some(claim.held?.0.saturating_sub(claim.asked)));
    waits.max().unwrap_or(0) / 1000
}

/// The journal of an episode, by time.
pub fn journal(entries: &[Entry]) -> String {
    let mut entries: Vec<&Entry> = entries.iter().collect();
    entries.sort_by_key(|entry| entry.at);
    entries.into_iter().map(Entry::line).collect()
}
