//! The OpenMetrics text of a sample: pure.

use std::fmt::Write;

use redislock_client::NodeStatus;

use super::fields::{DISTRIBUTIONS, Distribution, FIELDS, Field, Kind, REASONS};
use super::sample::{Node, Sample};
use crate::refusal;

const US: f64 = 1e6;

/// Labels and value of a sample.
type Value<'a> = (Vec<(&'a str, &'a str)>, f64);

/// The whole page.
pub fn write(sample: &Sample) -> String {
    let mut page = Page(String::new());
    page.deployment(sample);
    page.nodes(&sample.nodes);
    for field in &FIELDS {
        page.field(field, &sample.nodes);
    }
    page.reasons(&sample.nodes);
    for distribution in &DISTRIBUTIONS {
        page.distribution(distribution, &sample.nodes);
    }
    page.0.push_str("# EOF\n");
    page.0
}

struct Page(String);

impl Page {
    fn begin(&mut self, metric: &str, kind: &str, help: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "# TYPE {metric} {kind}");
        if metric.ends_with("_seconds") {
            let _ = writeln!(self.0, "# UNIT {metric} seconds");
        }
        let _ = writeln!(self.0, "# HELP {metric} {help}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let labels: Vec<String> = labels
            .iter()
            .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
            .collect();
        let labels = if labels.is_empty() {
            String::new()
        } else {
            format!("{{{}}}", labels.join(","))
        };
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }

    fn gauge<'a>(&mut self, metric: &str, help: &str, values: impl IntoIterator<Item = Value<'a>>) {
        self.begin(metric, "gauge", help);
        for (labels, value) in values {
            self.sample(metric, &labels, value);
        }
    }

    fn deployment(&mut self, sample: &Sample) {
        let granting = sample.nodes.iter().filter(|node| node.grants).count();
        for (metric, help, value) in [
            ("redislock_nodes", "Known nodes", sample.nodes.len()),
            (
                "redislock_nodes_granting",
                "Nodes that can grant locks now",
                granting,
            ),
            (
                "redislock_quorum",
                "Nodes that must grant for a lock to be held",
                sample.quorum,
            ),
        ] {
            self.gauge(metric, help, [(Vec::new(), value as f64)]);
        }
        let took = [(Vec::new(), sample.took.as_secs_f64())];
        let help = "How long it took to ask all nodes";
        self.gauge("redislock_scrape_seconds", help, took);
        self.begin("redislock_exporter", "info", "The exporter itself");
        let version = [("version", clap::crate_version!())];
        self.sample("redislock_exporter_info", &version, 1.0);
    }

    /// What LOCK.NODE says.
    fn nodes(&mut self, nodes: &[Node]) {
        let help = "1 if the node replies to LOCK.NODE";
        let up = |node: &Node| f64::from(node.status.is_some());
        self.gauge("redislock_up", help, each(nodes, |node| Some(up(node))));
        let help = "1 if the node can grant locks now";
        let grants = each(nodes, |node| Some(f64::from(node.grants)));
        self.gauge("redislock_granting", help, grants);
        let help = "1 for a node that cannot be read completely: timeout, unreachable, module, \
                    permission, refused or other";
        let problems = nodes.iter().filter_map(|node| {
            let labels = vec![("node", node.name.as_str()), ("problem", node.problem?)];
            Some((labels, 1.0))
        });
        self.gauge("redislock_problem", help, problems);
        self.begin("redislock_node", "info", "Versions and role of the node");
        for node in nodes {
            let Some(status) = &node.status else { continue };
            let labels = [
                ("node", node.name.as_str()),
                ("version", &status.version),
                ("role", &status.role),
                ("server", &server(node)),
            ];
            self.sample("redislock_node_info", &labels, 1.0);
        }
        type Read = fn(&NodeStatus) -> f64;
        let of_status: [(&str, &str, Read); 5] = [
            ("redislock_master", "1 if the node is a master", |node| {
                f64::from(node.role == "master")
            }),
            (
                "redislock_durable",
                "1 if every acknowledged grant is on disk",
                |node| f64::from(node.durable),
            ),
            (
                "redislock_max_ttl_seconds",
                "The longest lease that a request may ask for",
                |node| node.max_ttl.as_secs_f64(),
            ),
            (
                "redislock_clock_lead_seconds",
                "The clock of the node minus the clock of the exporter",
                |node| node.clock_lead as f64 / US,
            ),
            (
                "redislock_round_trip_seconds",
                "How long the node took to reply to LOCK.NODE",
                |node| node.round_trip.as_secs_f64(),
            ),
        ];
        for (metric, help, read) in of_status {
            let values = each(nodes, |node| node.status.as_ref().map(read));
            self.gauge(metric, help, values);
        }
        let help =
            "The fence counter minus the clock of the node; far above 0: the clock was set back";
        let lead = each(nodes, |node| {
            Some(node.details.as_ref()?.fence_lead as f64 / US)
        });
        self.gauge("redislock_fence_lead_seconds", help, lead);
        let help = "Warnings of the node: redlock doctor shows their texts";
        let warnings = each(nodes, |node| Some(node.details.as_ref()?.warnings as f64));
        self.gauge("redislock_warnings", help, warnings);
    }

    /// One field of INFO.
    fn field(&mut self, field: &Field, nodes: &[Node]) {
        let (kind, suffix) = match field.kind {
            Kind::Gauge => ("gauge", ""),
            Kind::Counter => ("counter", "_total"),
        };
        self.begin(field.metric, kind, field.help);
        let name = format!("{}{suffix}", field.metric);
        for (labels, value) in each(nodes, |node| number(node, field.field)) {
            self.sample(&name, &labels, value / field.divisor);
        }
    }

    fn reasons(&mut self, nodes: &[Node]) {
        let help = "1 for the reason of the quarantine, none if there is none";
        let now = |node: &'_ Node| node.info.get("lock_quarantine_reason").cloned();
        self.states("redislock_quarantine_reason", help, &REASONS, nodes, now);
        let help = "1 for the reason why the server refuses new locks, none if it does not";
        let now = |node: &'_ Node| node.details.as_ref()?.refusal.clone();
        self.states("redislock_refusal", help, &refusal::WORDS, nodes, now);
    }

    /// One sample for each state that a node may be in, 1 for the state that it is in. A state that
    /// only a newer module knows is `other`.
    fn states(
        &mut self,
        metric: &str,
        help: &str,
        known: &[&str],
        nodes: &[Node],
        now: impl Fn(&Node) -> Option<String>,
    ) {
        self.begin(metric, "gauge", help);
        for node in nodes {
            let Some(now) = now(node) else { continue };
            let is_known = known.contains(&now.as_str());
            let now = if is_known { now.as_str() } else { "other" };
            let new = (!known.contains(&now)).then_some(&now);
            for state in known.iter().chain(new) {
                let labels = [("node", node.name.as_str()), ("reason", state)];
                self.sample(metric, &labels, f64::from(now == *state));
            }
        }
    }

    fn distribution(&mut self, wanted: &Distribution, nodes: &[Node]) {
        self.begin(wanted.metric, "summary", wanted.help);
        for node in nodes {
            let name = ("node", node.name.as_str());
            for (quantile, field) in wanted.quantiles {
                if let Some(micros) = number(node, field) {
                    let labels = [name, ("quantile", quantile)];
                    self.sample(wanted.metric, &labels, micros / US);
                }
            }
            if let Some(count) = number(node, wanted.count) {
                self.sample(&format!("{}_count", wanted.metric), &[name], count);
            }
        }
    }
}

/// A value of each node that has it.
fn each<'a>(
    nodes: &'a [Node],
    read: impl Fn(&Node) -> Option<f64> + 'a,
) -> impl Iterator<Item = Value<'a>> {
    let value = move |node: &'a Node| Some((vec![("node", node.name.as_str())], read(node)?));
    nodes.iter().filter_map(value)
}

fn number(node: &Node, field: &str) -> Option<f64> {
    node.info.get(field)?.parse().ok()
}

/// `valkey 8.1.1` or `redis 7.0.15`; empty if INFO cannot be read.
fn server(node: &Node) -> String {
    let named = |(name, field): (&str, &str)| Some(format!("{name} {}", node.info.get(field)?));
    let names = [("valkey", "valkey_version"), ("redis", "redis_version")];
    names.into_iter().find_map(named).unwrap_or_default()
}

fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace('"', "\\\"");
    text.replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_name_cannot_break_out_of_its_label() {
        let node = Node {
            name: "a\"} 1\n\\".to_owned(),
            status: None,
            details: None,
            info: [("lock_grants".to_owned(), "7".to_owned())].into(),
            grants: false,
            problem: Some("timeout"),
        };
        let sample = Sample {
            nodes: vec![node],
            quorum: 1,
            took: Duration::from_millis(5),
        };
        let text = write(&sample);
        assert!(
            text.contains("redislock_grants_total{node=\"a\\\"} 1\\n\\\\\"} 7\n"),
            "{text}"
        );
        assert!(text.contains("redislock_scrape_seconds 0.005\n"), "{text}");
        assert!(text.ends_with("\n# EOF\n"), "{text}");
    }
}
