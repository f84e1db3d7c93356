//! docs/PERFORMANCE.md and its pictures, written from the results.
//!
//! A block of the document stands between `<!-- bench:name -->` and `<!-- /bench:name -->`, where
//! `name` is a section, `targets`, `peers`, `peers-summary`, or `peers-targets`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::peers::Peers;
use crate::results::{self, BARE, Results, Run, UNTRAINED};
use crate::{Outcome, SECTIONS, pairs, plot, report};

/// Where they are in the folder of the project.
const DOCUMENT: &str = "docs/PERFORMANCE.md";
const PICTURES: &str = "docs/performance";

/// Writes them again.
pub fn write(project: &Path) -> Outcome<()> {
    let results = Results::read(&project.join(results::FILE))?;
    let path = project.join(DOCUMENT);
    let text = fs::read_to_string(&path)?;
    let peers = Peers::read(project)?;
    fs::write(&path, with_tables(&text, &results, &peers)?)?;
    fs::create_dir_all(project.join(PICTURES))?;
    for (path, picture) in pictures(project, &results, &peers) {
        fs::write(path, picture)?;
    }
    Ok(())
}

/// The document with the tables of these results.
fn with_tables(text: &str, results: &Results, peers: &Peers) -> Outcome<String> {
    let mut text = text.to_owned();
    let sections = SECTIONS.iter().map(|section| section.name);
    for name in sections {
        text = with_block(&text, name, &report::section(results, name))?;
    }
    text = with_block(&text, "peers-summary", &peers.summary())?;
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
    format!("{DOCUMENT} has no line {}", mark.trim_end())
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
            ways.retain(|way| way.name != BARE && way.name != UNTRAINED);
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
        let text = fs::read_to_string(project.join(DOCUMENT)).unwrap();
        let repair = "write it again: make bench-report";
        assert!(
            text == with_tables(&text, &results, &peers).unwrap(),
            "{DOCUMENT} shows other figures than {} and {}; {repair}",
            results::FILE,
            crate::peers::FILE
        );
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
