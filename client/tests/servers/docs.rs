//! What the documentation says about names is so.

use std::collections::HashSet;
use std::path::Path;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The words in backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn every_test_that_the_documentation_names_exists() {
    let page = read("../docs/CLIENT.md");
    let named = quoted(&page).filter_map(|words| words.split_once("::"));
    let mut count = 0;
    for (file, test) in named {
        let source = match file {
            "quorum" => read("src/quorum/tests.rs"),
            "quorum_model" => read("src/quorum/model/walk.rs"),
            file => read(&format!("tests/servers/{file}.rs")),
        };
        // A test, and not just any function.
        let (before, _) = source
            .split_once(&format!("fn {test}("))
            .unwrap_or_else(|| panic!("{file}::{test} is named, but there is no such test"));
        let attribute = before.trim_end_matches("async ").trim_end();
        assert!(
            attribute.ends_with(")]") || attribute.ends_with("test]"),
            "{test}"
        );
        count += 1;
    }
    assert!(count > 30, "only {count} tests are named");
}

#[test]
fn every_file_that_the_documentation_names_exists_and_every_file_is_named() {
    let page = read("../docs/CLIENT.md");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let named: HashSet<&str> = quoted(&page).filter(|name| name.ends_with(".rs")).collect();
    let (table, _) = page.split_once("## An acquire").unwrap();
    for name in quoted(table).filter(|name| name.ends_with(".rs")) {
        let project = source.join("../..");
        let exists = source.join(name).exists() || project.join(name).exists();
        assert!(exists, "{name} is named");
    }
    for entry in source.read_dir().unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".rs") && name != "lib.rs" {
            assert!(named.contains(&*name), "{name} is not on the map");
        }
    }
}

/// The names of the public functions.
fn functions(source: &str) -> HashSet<String> {
    let lines = source.lines().map(str::trim_start);
    let named = lines.filter_map(|line| {
        let rest = line.strip_prefix("pub fn ");
        rest.or_else(|| line.strip_prefix("pub async fn "))
    });
    named
        .map(|rest| rest.split(['(', '<']).next().unwrap().to_owned())
        .collect()
}

/// The names of the settings that `settings_of!` passes on.
fn settings(source: &str) -> impl Iterator<Item = String> {
    let blocks = source.split("settings_of! {").skip(1);
    let lines = blocks.flat_map(|block| block.split_once('}').unwrap().0.lines());
    let settings = lines.filter(|line| line.ends_with(';'));
    settings.map(|line| line.trim().split('(').next().unwrap().to_owned())
}

/// What tools need to look at nodes from outside is async only, and the page of the module says so.
const ASYNC_ONLY: &str = "observe";

#[test]
fn the_blocking_api_has_every_name_of_the_async_one() {
    let source = read("src/blocking.rs");
    assert!(source.contains(&format!("`Builder::{ASYNC_ONLY}`")));
    let mut names = functions(&source);
    names.insert(ASYNC_ONLY.to_owned());
    names.extend(settings(&source));
    // A guard of either kind is a view of the same kind, too.
    assert!(source.contains("impl Deref for Guard {\n    type Target = Held;"));
    let guard = read("src/guard.rs");
    names.extend(functions(guard.split_once("pub struct Guard").unwrap().0));
    // An owner is the same in both.
    names.extend(["new", "named", "label"].map(str::to_owned));
    for file in ["src/redlock.rs", "src/lock.rs", "src/guard.rs"] {
        for name in functions(&read(file)) {
            assert!(names.contains(&name), "{file} has {name}, blocking has not");
        }
    }
}
