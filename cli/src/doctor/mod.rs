//! `redlock doctor`: checks a deployment and says what to change. `facts.rs` asks the nodes,
//! the `checks` files judge what they said, this file prints it.

#[cfg(test)]
mod check_tests;
mod checks;
mod facts;
mod finding;
mod node_checks;
mod replica_checks;

use serde_json::{Value, json};

use crate::args::{DEFAULT_TTL, Doctor};
use crate::exit::Failure;
use crate::names::printable;
use crate::output::{Colors, Output};

use self::facts::Deployment;
use self::finding::{Finding, Severity};

/// Checks all nodes. The exit code is that of the worst finding: 0, 1 for a warning, 2 for an
/// error.
pub async fn doctor(args: Doctor, output: &Output) -> Result<u8, Failure> {
    let timeout = args.place.node_timeout_for(args.ttl.unwrap_or(DEFAULT_TTL));
    let deployment = facts::collect(&args.place, &args.keys, timeout).await?;
    check_any_reply(&deployment)?;
    let findings = checks::check(&deployment);
    let count = |severity| {
        findings
            .iter()
            .filter(|found| found.severity == severity)
            .count()
    };
    let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
    let nodes = deployment.nodes.len();
    let summary = match (errors, warnings) {
        (0, 0) if findings.iter().any(Finding::is_about_a_missing_check) => format!(
            "{}: no problems in what could be checked",
            plural(nodes, "node")
        ),
        (0, 0) => format!("{}: no problems", plural(nodes, "node")),
        _ => format!(
            "{}: {}, {}",
            plural(nodes, "node"),
            plural(errors, "error"),
            plural(warnings, "warning")
        ),
    };
    let values: Vec<Value> = findings.iter().map(Finding::json).collect();
    let value =
        json!({ "nodes": nodes, "errors": errors, "warnings": warnings, "findings": values });
    output.result(&text(&findings, &summary, output.colors), &value)?;
    let worst = findings.iter().map(|found| found.severity).max();
    Ok(worst.map_or(0, Severity::exit_code))
}

fn check_any_reply(deployment: &Deployment) -> Result<(), Failure> {
    let problem = |node: &facts::Node| {
        let problem = node.state.as_ref().err()?;
        Some((node.name.clone(), problem.to_string()))
    };
    let problems: Vec<(String, String)> = deployment.nodes.iter().filter_map(problem).collect();
    if problems.len() < deployment.nodes.len() {
        return Ok(());
    }
    Err(Failure::no_node_replies(&problems))
}

fn text(findings: &[Finding], summary: &str, colors: Colors) -> String {
    let mut text = String::new();
    for finding in findings {
        let word = finding.severity.word();
        let word = match finding.severity {
            Severity::Note => colors.faint(word),
            Severity::Warning => colors.warning(word),
            Severity::Error => colors.bad(word),
        };
        let node = finding.node.as_ref().map(|node| format!("{node}: "));
        let node = node.unwrap_or_default();
        text.push_str(&format!("{word}: {node}{}\n", printable(&finding.problem)));
        text.push_str(&format!("  fix: {}\n", finding.fix));
    }
    text.push_str(&format!("{summary}\n"));
    text
}

fn plural(count: usize, word: &str) -> String {
    match count {
        1 => format!("1 {word}"),
        _ => format!("{count} {word}s"),
    }
}
