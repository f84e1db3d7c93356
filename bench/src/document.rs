//! docs/PERFORMANCE.md, its pictures and the first table of README.md, written from the results.
//!
//! A block of a document stands between `<!-- bench:name -->` and `<!-- /bench:name -->`, where
//! `name` is a section, `in-short`, `further`, `targets`, `peers`, `peers-summary`, or
//! `peers-targets`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::peers::Peers;
use crate::results::{self, Results, Run};
use crate::{Outcome, SECTIONS, pairs, plot, report, summary};

/// Where they are in the folder of the project.
const DOCUMENT: &str = "docs/PERFORMANCE.md";
const README: &str = "README.md";
const PICTURES: &str = "docs/performance";

/// Writes them again.
pub fn write(project: &Path) -> Outcome<()> {
    let results = Results::read(&project.join(results::FILE))?;
    let peers = Peers::read(project)?;
    for (document, with_tables) in DOCUMENTS {
        let path = project.join(document);
        let text = fs::read_to_string(&path)?;
        let text = with_tables(&text, &results, &peers);
        fs::write(
            &path,
            text.map_err(|problem| format!("{document}: {problem}"))?,
        )?;
    }
    fs::create_dir_all(project.join(PICTURES))?;
    for (path, picture) in pictures(project, &results, &peers) {
        fs::write(path, picture)?;
    }
    Ok(())
}

/// A document with the tables of these results.
type WithTables = fn(&str, &Results, &Peers) -> Outcome<String>;

/// The documents with tables.
const DOCUMENTS: [(&str, WithTables); 2] = [(DOCUMENT, with_all), (README, with_the_first)];

fn with_the_first(text: &str, results: &Results, peers: &Peers) -> Outcome<String> {
    let table = summary::table_of(results, summary::FIRST);
    let text = with_block(text, "in-short", &table)?;
    with_block(&text, "peers-summary", &peers.summary())
}

fn with_all(text: &str, results: &Results, peers: &Peers) -> Outcome<String> {
    let mut text = with_the_first(text, results, peers)?;
    let table = summary::table_of(results, summary::FURTHER);
    text = with_block(&text, "further", &table)?;
    let sections = SECTIONS.iter().map(|section| section.name);
    for name in sections {
        text = with_block(&text, name, &report::section(results, name))?;
    }
    text = with_block(&text, "peers", &peers.tables())?;
    text = with_block(&text, "peers-targets", &peers.targets())?;
    with_block(&text, "targets", &report::targets(results))
}

fn with_block(text: &str, name: &str, block: &str) -> Outcome<String> {
    let (open, close) = (
        format!("<!-- bench:{name} -->\n"),
        format!("<!-- /bench:{name} -->\n"),
    );
    let (before, rest) = text.split_once(&open).ok_or_else(|| missing(&open))?;
    let (_, after) = rest.split_once(&close).ok_or_else(|| missing(&close))?;
    let block = block.trim_end();
    Ok(format!("{before}{open}\n{block}\n\n{close}{after}"))
}

fn missing(mark: &str) -> String {
    format!("there is no line {}", mark.trim_end())
}

/// What the picture of README.md shows.
const IN_SHORT: &str = "CPU time of an acquire and its release, compared with the alternatives";

/// What README.md shows of the pairs: the first server, and what users can choose between.
fn in_short(servers: &BTreeMap<String, Run>) -> BTreeMap<String, Run> {
    let mut first: BTreeMap<_, _> = servers
        .first_key_value()
        .map(|(server, run)| (server.clone(), run.clone()))
        .into_iter()
        .collect();
    for run in first.values_mut() {
        let titles = [pairs::PLAIN, pairs::AOF];
        run.charts
            .retain(|chart| titles.contains(&chart.title.as_str()));
        for chart in &mut run.charts {
            let ways = &mut chart.alternatives;
            ways.retain(|way| summary::is_a_choice(&way.name));
        }
    }
    first
}

/// The pictures of what was measured.
fn pictures(project: &Path, results: &Results, peers: &Peers) -> Vec<(PathBuf, String)> {
    let sections = SECTIONS.iter().filter_map(|section| {
        let servers = results.0.get(section.name)?;
        Some((section.name, plot::picture(section.about, servers)))
    });
    let short = results.0.get("pairs").map(in_short);
    let short = short.map(|servers| ("in-short", plot::picture(IN_SHORT, &servers)));
    let all = sections.chain(short).chain(peers.pictures());
    let folder = project.join(PICTURES);
    all.map(|(name, picture)| (folder.join(format!("{name}.svg")), picture))
        .collect()
}

#[cfg(test)]
mod tests {
    use redislock_testkit::project_folder;

    use super::*;

    #[test]
    fn the_tables_and_pictures_are_those_of_the_results() {
        let project = project_folder();
        let results = Results::read(&project.join(results::FILE)).unwrap();
        assert!(!results.0.is_empty(), "{} has no results", results::FILE);
        let peers = Peers::read(&project).unwrap();
        assert!(!peers.is_empty(), "{} has no results", crate::peers::FILE);
        let repair = "write it again: make bench-report";
        for (document, with_tables) in DOCUMENTS {
            let text = fs::read_to_string(project.join(document)).unwrap();
            assert!(
                text == with_tables(&text, &results, &peers).unwrap(),
                "{document} shows other figures than {} and {}; {repair}",
                results::FILE,
                crate::peers::FILE
            );
        }
        for (path, picture) in pictures(&project, &results, &peers) {
            let drawn = fs::read_to_string(&path).unwrap_or_default();
            assert!(drawn == picture, "{}: {repair}", path.display());
        }
    }

    #[test]
    fn only_the_block_changes() {
        let text = "a\n<!-- bench:x -->\nold\n<!-- /bench:x -->\nb\n";
        let changed = with_block(text, "x", "new\n").unwrap();
        assert_eq!(
            changed,
            "a\n<!-- bench:x -->\n\nnew\n\n<!-- /bench:x -->\nb\n"
        );
        assert_eq!(with_block(&changed, "x", "new\n").unwrap(), changed);
        assert!(with_block(text, "y", "").is_err());
    }
}
