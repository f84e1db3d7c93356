//! `redlock nodes`: the state of each node.

use std::borrow::Cow;

use redislock_client::{Answer, NodeStatus};
use serde_json::{Value, json};

use crate::args::Nodes;
use crate::duration::shown;
use crate::exit::{Failure, UNAVAILABLE};
use crate::names::printable;
use crate::output::{Colors, Output};
use crate::refusal;
use crate::summary::millis;
use crate::table::table;

/// Clocks that differ by this many ms or more are colored: fences follow the clocks.
const CLOCK_WARNING: i64 = 1_000;

/// Shows every node. The exit code is 0 only if each of them can grant locks now.
pub async fn nodes(args: Nodes, output: &Output) -> Result<u8, Failure> {
    let answers = args.place.view().await?.nodes().await;
    let problems: Vec<Option<String>> = (0..answers.len())
        .map(|place| problem(&answers, place))
        .collect();
    let unfit = problems.iter().flatten().count();
    if answers.iter().all(|answer| answer.result.is_err()) {
        let why = |(answer, problem): (&Answer<_>, &Option<String>)| {
            (answer.node.clone(), problem.clone().unwrap_or_default())
        };
        let why: Vec<_> = answers.iter().zip(&problems).map(why).collect();
        return Err(Failure::no_node_replies(&why));
    }
    let values: Vec<Value> = answers.iter().zip(&problems).map(value).collect();
    output.result(
        &text(&answers, &problems, output.colors),
        &json!({ "nodes": values }),
    )?;
    if unfit > 0 {
        let text = format!("{unfit} of {} nodes cannot grant locks", answers.len());
        return Err(Failure::new(UNAVAILABLE, text));
    }
    Ok(0)
}

/// Why this node cannot grant locks now.
pub fn problem(answers: &[Answer<NodeStatus>], place: usize) -> Option<String> {
    let node = match &answers[place].result {
        Ok(node) => node,
        Err(verdict) => return Some(verdict.to_string()),
    };
    let same = answers[..place].iter().find(|other| {
        let other = other.result.as_ref();
        other.is_ok_and(|other| other.incarnation == node.incarnation)
    });
    if let Some(same) = same {
        return Some(format!("the same server as {}", same.node));
    }
    if node.failed {
        return Some("stopped by an internal error: restart the server".to_owned());
    }
    if node.role != "master" {
        return Some(format!("a {}, not a master", printable(&node.role)));
    }
    let left = node.quarantine;
    let quarantined = (!left.is_zero()).then(|| format!("quarantined for {}", shown(left)));
    match (quarantined, refusal::of(node)) {
        (Some(quarantined), Some(refused)) => Some(format!("{quarantined}; {refused}")),
        (quarantined, refused) => quarantined.or(refused.map(Cow::into_owned)),
    }
}

fn text(answers: &[Answer<NodeStatus>], problems: &[Option<String>], colors: Colors) -> String {
    let heading = [
        "NODE",
        "VERSION",
        "ROLE",
        "QUARANTINE",
        "DURABLE",
        "CLOCK",
        "LOCKS",
        "WAITING",
        "REPLY TIME",
    ];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    rows.extend(answers.iter().map(row));
    let mut text = table(&rows, |row, column, cell| {
        let node = match row.checked_sub(1).map(|place| &answers[place].result) {
            None => return colors.faint(cell),
            Some(Err(_)) if column > 0 => return colors.bad(cell),
            Some(Err(_)) => return cell.to_owned(),
            Some(Ok(node)) => node,
        };
        match column {
            2 if node.role != "master" => colors.bad(cell),
            3 if !node.quarantine.is_zero() => colors.warning(cell),
            5 if node.clock_lead.abs() / 1_000 >= CLOCK_WARNING => colors.warning(cell),
            _ => cell.to_owned(),
        }
    });
    for (answer, problem) in answers.iter().zip(problems) {
        if let (Ok(_), Some(problem)) = (&answer.result, problem) {
            let line = colors.bad(&format!("{}: {problem}", answer.node));
            text.push_str(&format!("{line}\n"));
        }
    }
    text
}

fn row(answer: &Answer<NodeStatus>) -> Vec<String> {
    let node = match &answer.result {
        Ok(node) => node,
        Err(verdict) => return vec![answer.node.clone(), verdict.to_string()],
    };
    let quarantine = if node.quarantine.is_zero() {
        "none".to_owned()
    } else {
        format!("{} left", shown(node.quarantine))
    };
    vec![
        answer.node.clone(),
        printable(&node.version),
        printable(&node.role),
        quarantine,
        if node.durable { "yes" } else { "no" }.to_owned(),
        // The round trip makes anything below a millisecond meaningless.
        format!("{:+} ms", node.clock_lead / 1_000),
        node.locks.to_string(),
        node.waiters.to_string(),
        shown(node.round_trip),
    ]
}

fn value((answer, problem): (&Answer<NodeStatus>, &Option<String>)) -> Value {
    let Ok(node) = &answer.result else {
        return json!({ "node": answer.node, "problem": problem });
    };
    json!({
        "node": answer.node,
        "version": node.version,
        "role": node.role,
        "quarantine_ms": millis(node.quarantine),
        "durable": node.durable,
        "clock_lead_us": node.clock_lead,
        "locks": node.locks,
        "waiters": node.waiters,
        "fence": node.fence,
        "max_ttl_ms": millis(node.max_ttl),
        "refusal": node.refusal,
        "round_trip_us": u64::try_from(node.round_trip.as_micros()).unwrap_or(u64::MAX),
        "problem": problem,
    })
}
