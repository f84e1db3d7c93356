//! The options of flock(1), and what goes beyond them: semaphores and a minimum time of holding.

use std::time::{Duration, Instant};

use redislock_testkit::process::{Outcome, outcome};
use redislock_testkit::{Server, Value, wait_until};

use crate::masters;
use crate::tool::{holder, nothing_is_held, run};

fn ask(servers: &[Server], options: &[&str]) -> Outcome {
    outcome(run(servers, "job", options, "echo ran"))
}

/// How long the first holder's lease still lasts.
fn lease_left(server: &Server) -> Duration {
    let info: Value = server.run(&["LOCK.INFO", "job"]);
    let left = info.field("holders").items()[0].number("ttl");
    Duration::from_millis(left.try_into().unwrap())
}

#[test]
fn short_options_mean_what_they_mean_for_flock() {
    let servers = masters::<1>();
    let _holder = holder(&servers, "job", &[]);
    for (options, code) in [
        (&["-n"][..], 75),
        (&["--nonblock"], 75),
        (&["-w", "0"], 75),
        (&["-w", "0.3"], 75),
        (&["--wait", "1"], 75),
        (&["-n", "-E", "3"], 3),
        (&["-n", "-s"], 75),
    ] {
        let ended = ask(&servers, options);
        assert_eq!(ended.code, Some(code), "{options:?}: {ended:?}");
        assert_eq!(ended.out, "", "{options:?}");
    }
    let both = ask(&servers, &["-n", "-w", "5"]);
    assert_eq!(both.code, Some(64), "{both:?}");
}

#[test]
fn a_wait_in_seconds_is_that_long() {
    let servers = masters::<1>();
    let _holder = holder(&servers, "job", &[]);
    let start = Instant::now();
    assert_eq!(ask(&servers, &["-w", "2"]).code, Some(75));
    assert!(start.elapsed() >= Duration::from_secs(2));
}

#[test]
fn quiet_hides_a_busy_lock_and_no_other_error() {
    let servers = masters::<1>();
    let _holder = holder(&servers, "job", &[]);
    for options in [&["-q", "-n"][..], &["-q", "-w", "1"]] {
        let ended = ask(&servers, options);
        assert_eq!(
            (ended.code, ended.err.as_str()),
            (Some(75), ""),
            "{ended:?}"
        );
    }
    assert!(ask(&servers, &["-n"]).err.contains("held by"));
    let wrong = ask(&servers, &["-q", "-n", "--grace", "20s"]);
    assert_eq!(wrong.code, Some(64));
    assert_ne!(wrong.err, "");
}

#[test]
fn shared_holders_run_together_up_to_the_limit() {
    let servers = masters::<1>();
    let first = holder(&servers, "job", &["-s"]);
    assert_eq!(ask(&servers, &["-s", "-n"]).code, Some(0));
    drop(first);
    wait_until("the first is gone", || {
        servers[0].run::<u64>(&["LOCK.FORCE", "job"]) == 1
    });
    let limit = ["--limit", "2", "-n"];
    let _first = holder(&servers, "job", &limit);
    let second = holder(&servers, "job", &limit);
    assert_eq!(ask(&servers, &limit).code, Some(75));
    drop(second);
    // The tool was killed: its lease must end first.
    let later = ["--limit", "2", "-w", "forever"];
    assert_eq!(ask(&servers, &later).code, Some(0));
    for (limit, hint) in [("0", "0 is not in"), ("many", "many")] {
        let wrong = ask(&servers, &["--limit", limit]);
        assert_eq!(wrong.code, Some(64), "{wrong:?}");
        assert!(wrong.err.contains(hint), "{wrong:?}");
    }
    let several = ask(&masters::<3>(), &["--limit", "2"]);
    assert_eq!(several.code, Some(64), "{several:?}");
    assert!(several.err.contains("single node"), "{several:?}");
}

#[test]
fn two_cron_hosts_that_start_a_moment_apart_do_not_both_run_a_short_job() {
    for servers in [&masters::<1>()[..], &masters::<3>()[..]] {
        let options = ["-n", "--min-hold", "60s"];
        let start = Instant::now();
        let first = ask(servers, &options);
        assert_eq!(
            (first.code, first.out.as_str()),
            (Some(0), "ran\n"),
            "{first:?}"
        );
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "it waited instead of ending"
        );
        let second = ask(servers, &options);
        assert_eq!(
            (second.code, second.out.as_str()),
            (Some(75), ""),
            "{second:?}"
        );
        let held = servers.iter().filter(|server| !server.is_free("job"));
        let left: Vec<Duration> = held.map(lease_left).collect();
        let until_the_end = Duration::from_secs(60).saturating_sub(start.elapsed());
        assert!(left.len() > servers.len() / 2, "{left:?}");
        for left in left {
            assert!(
                left >= until_the_end && left <= Duration::from_secs(60),
                "{left:?}"
            );
        }
    }
}

#[test]
fn a_command_that_outlasts_min_hold_releases_at_its_end() {
    let servers = masters::<3>();
    let options = ["-n", "--min-hold", "1s"];
    let ended = outcome(run(&servers, "job", &options, "sleep 1.5; echo ran"));
    assert_eq!(
        (ended.code, ended.out.as_str()),
        (Some(0), "ran\n"),
        "{ended:?}"
    );
    nothing_is_held(&servers);
}

#[test]
fn a_master_that_hangs_is_not_waited_for_when_the_lock_is_left_held() {
    let servers = masters::<3>();
    let hang = format!("kill -STOP {}; echo ran", servers[2].process_id());
    // A node has far more time to reply than the whole test takes.
    let timeouts = ["--ttl", "400s", "--node-timeout", "100s"];
    let options = [&timeouts[..], &["-n", "--min-hold", "900s"]].concat();
    let start = Instant::now();
    let ended = outcome(run(&servers, "job", &options, &hang));
    servers[2].resume();
    assert_eq!(
        (ended.code, ended.out.as_str()),
        (Some(0), "ran\n"),
        "{ended:?}"
    );
    assert!(
        start.elapsed() < Duration::from_secs(50),
        "it waited for the master that hangs"
    );
    for server in &servers[..2] {
        assert!(lease_left(server) > Duration::from_secs(700));
    }
}

#[test]
fn a_command_that_cannot_start_does_not_hold_the_lock() {
    let servers = masters::<1>();
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script");
    std::fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, executable).unwrap();
    let mut command = crate::tool::redlock(&servers);
    command
        .args(["run", "--key", "job", "--min-hold", "60s", "--"])
        .arg(script);
    assert_eq!(outcome(command).code, Some(126));
    nothing_is_held(&servers);
}

#[test]
fn a_min_hold_above_the_longest_lease_of_a_node_is_a_usage_error() {
    let servers = [Server::with(["lock.max-ttl 60000"])];
    let ended = ask(&servers, &["--min-hold", "61s"]);
    assert_eq!(
        (ended.code, ended.out.as_str()),
        (Some(64), ""),
        "{ended:?}"
    );
    assert!(ended.err.contains("lock.max-ttl"), "{ended:?}");
    assert_eq!(ask(&servers, &["--min-hold", "8d"]).code, Some(64));
    let long = ask(&servers, &["--ttl", "2m"]);
    assert_eq!((long.code, long.out.as_str()), (Some(64), ""), "{long:?}");
    nothing_is_held(&servers);
}

#[test]
fn a_token_from_outside_is_not_passed_on() {
    let servers = masters::<1>();
    let mut command = run(
        &servers,
        "job",
        &[],
        "echo \"${REDLOCK_TOKEN-none} $REDLOCK_KEY\"",
    );
    command
        .env("REDLOCK_TOKEN", "secret")
        .env("REDLOCK_KEY", "outer");
    assert_eq!(outcome(command).out, "none job\n");
}
