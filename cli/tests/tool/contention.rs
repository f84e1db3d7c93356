//! Several tools at once.

use std::process::{Command, Stdio};

use redislock_testkit::Server;
use redislock_testkit::process::Running;

use crate::masters;
use crate::tool::nothing_is_held;

const CONTENDERS: u64 = 8;
const ROUNDS: u64 = 4;

/// Adds one to a file, in the most careless way, and writes down its fence.
const INCREMENT: &str = "n=$(cat counter); echo $((n+1)) > counter; echo $REDLOCK_FENCE >> fences";

#[test]
fn eight_in_a_loop_over_a_file_lose_no_increment() {
    for servers in [&masters::<1>()[..], &masters::<5>()[..]] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("counter"), "0\n").unwrap();
        let nodes: Vec<String> = servers.iter().map(Server::url).collect();
        let looping = format!(
            "for round in $(seq {ROUNDS}); do \"$0\" run --key counter --wait forever -- sh -c \
             \"$1\" || exit $?; done"
        );
        let start = |_| {
            let mut command = Command::new("sh");
            command
                .args(["-c", &looping, env!("CARGO_BIN_EXE_redlock"), INCREMENT])
                .env("REDLOCK_NODES", nodes.join(","))
                .current_dir(folder.path())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            Running::start(command)
        };
        let contenders: Vec<Running> = (0..CONTENDERS).map(start).collect();
        for contender in contenders {
            let ended = contender.end();
            assert_eq!(ended.code, Some(0), "{ended:?}");
        }
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        let counter: u64 = read("counter").trim().parse().unwrap();
        assert_eq!(counter, CONTENDERS * ROUNDS);
        let fences: Vec<u64> = read("fences")
            .lines()
            .map(|line| line.parse().unwrap())
            .collect();
        assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
        nothing_is_held(servers);
    }
}
