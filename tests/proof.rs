//! docs/PROOF.md names, for each scenario of a crash or a failover, the protection it is about and
//! what was seen without it: every test that it names is there, and every test of a scenario is
//! named.

use std::fs;
use std::path::Path;

const PAGE: &str = include_str!("../docs/PROOF.md");
const SECTION: &str = "## How each protection was shown to matter";
/// Each test of these files is a scenario.
const SCENARIOS: [&str; 6] = [
    "crash.rs",
    "sentinel.rs",
    "resharding.rs",
    "partition.rs",
    "disk.rs",
    "interruptions.rs",
];

/// The words in backticks of a line.
fn code(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// The tests of a file, in its own words.
fn tests(file: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests")
        .join(file);
    let source = fs::read_to_string(path).expect("a file of tests");
    let mut lines = source.lines().map(str::trim);
    let mut tests = Vec::new();
    while let Some(line) = lines.next() {
        if line == "#[test]" {
            let name = lines.next().and_then(|line| line.strip_prefix("fn "));
            let name = name.and_then(|name| name.split('(').next());
            tests.push(name.expect("a test").to_owned());
        }
    }
    tests
}

/// The rows of the table as (the files they are about, the tests they name). A name may end with an
/// ellipsis.
fn rows() -> Vec<(Vec<&'static str>, Vec<&'static str>)> {
    let (_, section) = PAGE.split_once(SECTION).expect("the section");
    let mut files: Vec<&str> = Vec::new();
    let mut rows = Vec::new();
    for line in section.lines().filter(|line| line.starts_with('|')) {
        if line.starts_with("| **") {
            files = code(line).collect();
        } else {
            let tests = code(line).filter(|word| word.contains('_'));
            rows.push((files.clone(), tests.collect()));
        }
    }
    rows
}

fn is_named(test: &str, name: &str) -> bool {
    name.strip_suffix('…')
        .map_or(test == name, |begin| test.starts_with(begin))
}

#[test]
fn every_test_that_the_page_names_is_there() {
    let mut named = 0;
    for (files, names) in rows() {
        let there: Vec<String> = files.iter().flat_map(|file| tests(file)).collect();
        for name in names {
            named += 1;
            let found = there.iter().any(|test| is_named(test, name));
            assert!(found, "{name} is not in {files:?}");
        }
    }
    assert!(named > 0);
}

/// The files of `sabotage/`.
fn protections() -> [String; 4] {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("sabotage");
    ["client", "core", "module", "replication-lease"]
        .map(|list| folder.join(list).with_extension("toml"))
        .map(|list| fs::read_to_string(list).expect("a list of protections"))
}

#[test]
fn the_page_says_how_many_protections_are_removed() {
    let lists = protections();
    let lines = lists.iter().flat_map(|list| list.lines());
    let count = lines.filter(|line| *line == "[[sabotage]]").count();
    let said = format!("The list has {count} protections.");
    assert!(PAGE.contains(&said), "{said}");
}

#[test]
fn every_entry_of_sabotage_that_the_page_names_is_there() {
    let lists = protections();
    let (_, section) = PAGE.split_once(SECTION).expect("the section");
    let mut named = 0;
    for line in section.lines().filter(|line| line.starts_with("| ")) {
        let removed_by = line.split(" | ").nth(2).unwrap_or_default();
        for name in code(removed_by).filter(|word| !word.contains('_')) {
            named += 1;
            let entry = format!("name = \"{name}\"");
            let found = lists
                .iter()
                .any(|list| list.lines().any(|line| line == entry));
            assert!(found, "{name} is not in sabotage/");
        }
    }
    assert!(named > 0);
}

#[test]
fn every_scenario_is_named_with_its_protection() {
    let rows = rows();
    for file in SCENARIOS {
        let of_file = rows.iter().filter(|(files, _)| files.contains(&file));
        let names: Vec<&str> = of_file
            .flat_map(|(_, names)| names.iter().copied())
            .collect();
        for test in tests(file) {
            let found = names.iter().any(|name| is_named(&test, name));
            assert!(found, "{test} of {file} is not named");
        }
    }
}
