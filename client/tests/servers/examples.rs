//! The examples run, against real servers.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use redislock_testkit::Server;
use redislock_testkit::process::outcome;

/// Examples are built next to the tests: target/<profile>/examples.
pub fn example(name: &str) -> Command {
    let test = std::env::current_exe().unwrap();
    let profile = test
        .parent()
        .and_then(|deps| deps.parent())
        .map(PathBuf::from)
        .unwrap();
    let program = profile.join("examples").join(name);
    assert!(
        program.exists(),
        "{} is not built: run cargo test, which builds examples",
        program.display()
    );
    Command::new(program)
}

/// Runs the example on these nodes, and returns what it prints.
pub fn output_of(name: &str, servers: &[Server]) -> String {
    let mut command = example(name);
    command
        .args(servers.iter().map(Server::url))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let run = outcome(command);
    assert_eq!(run.code, Some(0), "{run:?}");
    run.out
}

#[test]
fn the_front_page_runs_on_one_node_and_on_five() {
    for servers in [
        Vec::from(Server::start_many::<1>()),
        Vec::from(Server::start_many::<5>()),
    ] {
        let text = output_of("front_page", &servers);
        assert!(text.starts_with("done under fence "), "{text}");
        assert!(
            servers
                .iter()
                .all(|server| server.is_free("nightly-report"))
        );
    }
}

#[test]
fn the_front_page_is_the_example() {
    let example = include_str!("../../examples/front_page.rs");
    // The example takes its nodes from the command line; from the guard on they are the same.
    let from_the_guard = |text: &str| {
        text[text.find("    let guard = client").unwrap()..]
            .trim_end()
            .to_owned()
    };
    for readme in [
        include_str!("../../README.md"),
        include_str!("../../../README.md"),
    ] {
        let (_, shown) = readme
            .split_once("async fn main() -> Result<(), Error> {\n")
            .unwrap();
        let (shown, _) = shown.split_once("```").unwrap();
        assert_eq!(from_the_guard(shown), from_the_guard(example));
    }
}

#[test]
fn the_fenced_resource_refuses_the_holder_that_was_paused() {
    for servers in [
        Vec::from(Server::start_many::<1>()),
        Vec::from(Server::start_many::<3>()),
    ] {
        let text = output_of("fenced_resource", &servers);
        assert!(text.contains("was refused"), "{text}");
    }
}
