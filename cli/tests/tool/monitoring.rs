//! The files in packaging/ that read the metrics: alert rules and dashboard.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::exporter::Exporter;
use crate::masters;

const RULES: &str = include_str!("../../../packaging/prometheus/alerts.yml");
const RULE_TESTS: &str = include_str!("../../../packaging/prometheus/alerts.test.yml");
const DASHBOARD: &str = include_str!("../../../packaging/grafana/redislock.json");
const PAGE: &str = include_str!("../../../docs/OPERATIONS.md");

/// Whatever looks like one of our metrics in a text.
fn metrics_in(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words
        .filter(|word| word.starts_with("redislock_"))
        .collect()
}

#[test]
fn every_metric_that_rules_dashboard_and_page_name_is_on_a_real_page_and_documented() {
    let [server] = masters::<1>();
    let user = ["ACL", "SETUSER", "half", "on", ">pw", "+lock.node"];
    let _: () = server.run(&user);
    let nobody = format!("redis://half:pw@127.0.0.1:{}", server.port());
    let page = Exporter::start(&server.url()).scrape();
    // A page with a problem has one metric more.
    let with_problem = Exporter::start(&nobody).scrape();
    let names: BTreeSet<&str> = page.names().union(&with_problem.names()).copied().collect();
    let (_, metrics) = PAGE.split_once("\n## Metrics\n").expect("the section");
    let metrics = metrics.split("\n## ").next().expect("its text");
    for (what, text) in [
        ("the rules", RULES),
        ("the dashboard", DASHBOARD),
        ("the page", metrics),
    ] {
        let named = metrics_in(text);
        assert!(named.len() > 10, "{what}: {named:?}");
        for name in named {
            assert!(names.contains(name), "{what}: no metric {name}");
        }
    }
    let documented = metrics_in(metrics);
    for name in names {
        assert!(documented.contains(name), "{name} is not documented");
    }
}

#[test]
fn the_dashboard_is_json_with_a_query_in_every_panel() {
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    assert!(panels.len() > 10);
    for panel in panels {
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{panel}");
        for target in targets {
            let query = target["expr"].as_str().unwrap();
            assert!(query.contains("job=~\"$job\""), "{query}");
        }
    }
}

#[test]
fn each_runbook_of_the_rules_is_a_heading_of_the_page() {
    let headings: BTreeSet<String> = PAGE
        .lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| line.trim_start_matches(['#', ' ']).to_lowercase())
        .map(|title| {
            title
                .replace(' ', "-")
                .replace([',', '(', ')', '`', ':'], "")
        })
        .collect();
    let runbooks: Vec<&str> = RULES
        .lines()
        .filter_map(|line| line.trim().strip_prefix("runbook: "))
        .collect();
    let alerts = RULES
        .lines()
        .filter(|line| line.trim().starts_with("- alert: "))
        .count();
    assert_eq!(runbooks.len(), alerts);
    for runbook in runbooks {
        assert!(
            headings.contains(runbook),
            "no heading {runbook}: {headings:?}"
        );
    }
}

#[test]
fn each_rule_has_a_test() {
    let named = |line: &'static str| line.trim().strip_prefix("- alert: ");
    for alert in RULES.lines().filter_map(named) {
        let tested = format!("alertname: {alert}\n        exp_alerts:");
        assert!(
            RULE_TESTS.contains(&tested),
            "{alert} never fires in a test"
        );
    }
}

/// Skipped where Prometheus is not installed; `make package-test` has it.
#[test]
fn promtool_accepts_the_rules_and_their_tests_pass() {
    let folder = Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../packaging/prometheus"
    ));
    for words in [
        ["check", "rules", "alerts.yml"],
        ["test", "rules", "alerts.test.yml"],
    ] {
        let mut promtool = Command::new("promtool");
        match promtool.args(words).current_dir(folder).output() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                eprintln!("skipped: promtool is not installed");
                return;
            }
            ended => {
                let ended = ended.unwrap();
                assert!(ended.status.success(), "{words:?}: {ended:?}");
            }
        }
    }
}
