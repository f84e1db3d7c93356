//! `redlock nodes`: how each node is doing.

use redislock_client::{Answer, NodeStatus};
use serde_json::{Value, json};

use crate::args::Nodes;
use crate::duration::shown;
use crate::exit::Failure;
use crate::merged::millis;
use crate::table::table;
use crate::voice::Voice;

/// Clocks further apart than this, in ms, are worth a colour: fences follow them.
const CLOCK_WORTH_A_LOOK: i64 = 1_000;

/// Shows every node; fails only if none answers.
pub async fn nodes(args: Nodes, voice: &Voice) -> Result<u8, Failure> {
    let observer = args.place.observe()?;
    let answers = observer.nodes().await;
    if answers.iter().all(|answer| answer.result.is_err()) {
        let why: Vec<String> = answers.iter().filter_map(problem).collect();
        return Err(Failure::usage(format!(
            "no node answers ({}): check --node or REDLOCK_NODES, and that the servers run",
            why.join("; ")
        )));
    }
    let values: Vec<Value> = answers.iter().map(value).collect();
    voice.result(&text(&answers, voice), &json!({ "nodes": values }))?;
    Ok(0)
}

fn problem(answer: &Answer<NodeStatus>) -> Option<String> {
    let verdict = answer.result.as_ref().err()?;
    Some(format!("{}: {verdict}", answer.node))
}

fn text(answers: &[Answer<NodeStatus>], voice: &Voice) -> String {
    let paint = voice.paint;
    let heading = [
        "NODE",
        "VERSION",
        "ROLE",
        "QUARANTINE",
        "DURABLE",
        "CLOCK",
        "LOCKS",
        "WAITING",
        "ANSWERS IN",
    ];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for answer in answers {
        rows.push(match &answer.result {
            Ok(node) => vec![
                answer.node.clone(),
                node.version.clone(),
                node.role.clone(),
                match node.quarantine.is_zero() {
                    true => "none".to_owned(),
                    false => format!("{} left", shown(node.quarantine)),
                },
                if node.durable { "yes" } else { "no" }.to_owned(),
                lead(node),
                node.locks.to_string(),
                node.waiters.to_string(),
                shown(node.round_trip),
            ],
            Err(verdict) => vec![answer.node.clone(), verdict.to_string()],
        });
    }
    table(&rows, |row, column, cell| {
        let node = match row.checked_sub(1).map(|place| &answers[place].result) {
            None => return paint.faint(cell),
            Some(Err(_)) if column > 0 => return paint.bad(cell),
            Some(Err(_)) => return cell.to_owned(),
            Some(Ok(node)) => node,
        };
        match column {
            2 if node.role != "master" => paint.bad(cell),
            3 if !node.quarantine.is_zero() => paint.doubtful(cell),
            5 if node.clock_lead.abs() / 1_000 >= CLOCK_WORTH_A_LOOK => paint.doubtful(cell),
            _ => cell.to_owned(),
        }
    })
}

/// How far the node's clock is ahead of ours: what the round trip leaves open is not shown.
fn lead(node: &NodeStatus) -> String {
    format!("{:+}ms", node.clock_lead / 1_000)
}

fn value(answer: &Answer<NodeStatus>) -> Value {
    match &answer.result {
        Ok(node) => json!({
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
            "round_trip_us": u64::try_from(node.round_trip.as_micros()).unwrap_or(u64::MAX),
        }),
        Err(verdict) => json!({ "node": answer.node, "problem": verdict.to_string() }),
    }
}
