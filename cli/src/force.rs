//! `redlock force`: an administrator releases a lock that another client holds.

use std::io::{BufRead, IsTerminal, Write};

use redislock_client::Answer;
use serde_json::json;

use crate::args::{Force, key_of};
use crate::exit::{Failure, NO, UNAVAILABLE};
use crate::names::printable;
use crate::output::Output;
use crate::summary::{LockSummary, State};

/// Asks for confirmation, then ends every hold of the lock on every node.
pub async fn force(args: Force, output: &Output) -> Result<u8, Failure> {
    let key = key_of(args.key.as_ref(), "NAME")?;
    let view = args.place.view().await?;
    let seen = view.lock(&key).await;
    seen.check_any_reply()?;
    if seen.holders.is_empty() && seen.state == State::Free {
        let value = json!({ "key": key, "forced": 0, "problems": [] });
        output.result(&format!("{} is free\n", printable(&key)), &value)?;
        return Ok(0);
    }
    if !args.yes && !confirmed(&key, &seen)? {
        return Err(Failure::new(NO, "not confirmed: nothing was changed"));
    }
    report(&key, &view.force(key.as_bytes()).await, output)
}

/// What the nodes said when a lock was released by force.
pub struct Forced {
    nodes: usize,
    /// On how many of them the lock was held.
    forced: usize,
    problems: Vec<String>,
}

impl Forced {
    pub fn of(answers: &[Answer<u64>]) -> Self {
        let released = |answer: &&Answer<u64>| matches!(answer.result, Ok(1..));
        let problem = |answer: &Answer<u64>| {
            let verdict = answer.result.as_ref().err()?;
            Some(format!("{}: {verdict}", answer.node))
        };
        Self {
            nodes: answers.len(),
            forced: answers.iter().filter(released).count(),
            problems: answers.iter().filter_map(problem).collect(),
        }
    }

    /// Whether no node released it, and at least one of them could not be asked.
    fn has_failed(&self) -> bool {
        self.forced == 0 && !self.problems.is_empty()
    }

    /// The outcome in one line.
    pub fn text(&self, name: &str) -> String {
        let why = self.problems.join("; ");
        if self.has_failed() {
            return format!("lock {name} could not be released ({why})");
        }
        let mut text = self.released(name);
        if !why.is_empty() {
            text.push_str(&format!(" ({why})"));
        }
        text
    }

    fn released(&self, name: &str) -> String {
        let (forced, nodes) = (self.forced, self.nodes);
        format!("{name} was released on {forced} of {nodes} nodes")
    }
}

fn report(key: &str, answers: &[Answer<u64>], output: &Output) -> Result<u8, Failure> {
    let forced = Forced::of(answers);
    let name = printable(key);
    if forced.has_failed() {
        return Err(Failure::new(UNAVAILABLE, forced.text(&name)));
    }
    let mut text = format!("{}\n", forced.released(&name));
    for problem in &forced.problems {
        text.push_str(&format!("{}\n", output.colors.bad(problem)));
    }
    let value = json!({ "key": key, "forced": forced.forced, "problems": forced.problems });
    output.result(&text, &value)?;
    Ok(0)
}

fn confirmed(key: &str, seen: &LockSummary) -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage(
            "standard input is not a terminal: pass --yes to confirm",
        ));
    }
    let mut out = std::io::stderr().lock();
    let question = format!(
        "{}: {}. The holder does not notice until its next renewal. Release the lock? [y/N] ",
        printable(key),
        seen.holder_line()
    );
    let asked = out
        .write_all(question.as_bytes())
        .and_then(|()| out.flush());
    asked.map_err(|error| Failure::io("cannot ask", &error))?;
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    read.map_err(|error| Failure::io("cannot read the answer", &error))?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}
