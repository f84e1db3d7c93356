//! docs/TESTS.md names tests for what the documentation claims: each claim has one, and each that is named is there.

use crate::guarantees::{code, tests};

const PAGE: &str = include_str!("../docs/TESTS.md");

/// The rows of all tables: what is claimed, and the tests that are named for it.
fn claims() -> Vec<(&'static str, Vec<&'static str>)> {
    let rows = PAGE.lines().filter(|line| line.starts_with("| "));
    let rows = rows.filter(|line| !line.starts_with("| claim |"));
    rows.map(|row| {
        let cells: Vec<&str> = row.split(" | ").collect();
        let [claim, named] = cells[..] else {
            panic!("not a claim and its tests: {row}")
        };
        (claim.trim_start_matches("| "), code(named).collect())
    })
    .collect()
}

#[test]
fn every_claim_names_tests_that_are_there() {
    let claims = claims();
    assert!(!claims.is_empty());
    for (claim, named) in claims {
        assert!(!named.is_empty(), "no test is named for: {claim}");
        for name in named {
            let (file, test) = name.rsplit_once("::").unwrap_or(("", name));
            // Those of the core are named `core/file::test`.
            let path = match file.strip_prefix("core/") {
                Some(file) => format!("../core/tests/{file}.rs"),
                None => format!("{file}.rs"),
            };
            let found = tests(&path).iter().any(|there| there == test);
            assert!(found, "{name} is not there, named for: {claim}");
        }
    }
}
