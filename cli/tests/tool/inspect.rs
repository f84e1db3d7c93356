//! status, ls, nodes and force, as text and as JSON.

use redislock_testkit::process::{Running, outcome};
use redislock_testkit::{Server, wait_until};

use crate::masters;
use crate::tool::{Json, holder, nothing_is_held, redlock, run};

fn ask(servers: &[Server], words: &[&str]) -> redislock_testkit::process::Outcome {
    let mut command = redlock(servers);
    command.args(words);
    outcome(command)
}

#[test]
fn a_held_lock_is_shown_with_holder_fence_lease_and_waiters() {
    let servers = masters::<3>();
    let free = ask(&servers, &["status", "job"]);
    assert_eq!((free.code, free.out.as_str()), (Some(0), "job: free\n"));
    let _holder = holder(&servers, "job", &["--owner", "ada"]);
    let wait = ["--wait", "forever"];
    let _waiter = Running::start(run(&servers, "job", &wait, ""));
    wait_until("somebody waits", || {
        let seen = ask(&servers, &["status", "job", "--json"]).json();
        seen["waiters"] == 1
    });
    let seen = ask(&servers, &["status", "job", "--json"]).json();
    assert_eq!(seen["state"], "held");
    assert_eq!(seen["mode"], "exclusive");
    assert_eq!(seen["holders"][0]["owner"], "ada");
    // The third may have been too slow to be waited for.
    assert!(seen["holders"][0]["nodes"].as_u64().unwrap() >= 2);
    assert!(seen["holders"][0]["fence"].as_u64().unwrap() > 0);
    assert!(seen["holders"][0]["ttl_ms"].as_u64().unwrap() <= 30_000);
    let text = ask(&servers, &["status", "job"]).out;
    assert!(
        text.starts_with("job: held, exclusive, 1 waiting for"),
        "{text}"
    );
    assert!(text.contains("ada") && text.contains(" of 3 "), "{text}");
    assert!(!text.contains('\x1b'), "{text}");
}

#[test]
fn keys_that_are_not_utf_8_are_listed_on_one_line_each_and_look_different() {
    let servers = masters::<1>();
    let client = redis::Client::open(servers[0].url()).unwrap();
    let mut connection = client.get_connection().unwrap();
    for key in [&b"\xff\xfe"[..], b"\xfe\xff", b"a b\nc\x1b[2J"] {
        let mut acquire = redis::cmd("LOCK.ACQUIRE");
        acquire.arg(key).arg("token").arg(60_000);
        let _: u64 = acquire.query(&mut connection).unwrap();
    }
    let seen = ask(&servers, &["ls", "--json"]).json();
    let keys: Vec<&str> = (0..3)
        .map(|place| seen["locks"][place]["key"].as_str().unwrap())
        .collect();
    assert_eq!(keys, ["a b\nc\x1b[2J", "\\xfe\\xff", "\\xff\\xfe"]);
    let text = ask(&servers, &["ls"]).out;
    assert_eq!(text.lines().count(), 4, "{text}");
    assert!(text.contains("a b\\nc\\u{1b}[2J"), "{text}");
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let servers = masters::<1>();
    let names = (0..1_000).map(|number| format!("a-name-that-helps-to-fill-the-pipe-{number}"));
    let mut words = vec!["LOCK.MACQUIRE".to_owned(), names.len().to_string()];
    words.extend(names);
    words.extend(["token".to_owned(), "60000".to_owned()]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let _: Vec<u64> = servers[0].run(&words);
    for words in ["ls", "ls --json", "nodes", "man run", "completions bash"] {
        let mut shell = std::process::Command::new("sh");
        let script = "{ \"$0\" $1; echo \"ended with $?\" >&2; } | head -c 1";
        shell.args(["-c", script, env!("CARGO_BIN_EXE_redlock"), words]);
        shell.env("REDLOCK_NODES", servers[0].url());
        let ended = shell.output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(said, "ended with 0\n", "{words}");
    }
}

#[test]
fn locks_of_all_nodes_are_listed_once_and_by_pattern() {
    let servers = masters::<3>();
    let empty = ask(&servers, &["ls"]);
    assert_eq!((empty.code, empty.out.as_str()), (Some(0), "no locks\n"));
    let _first = holder(&servers, "backup:a", &[]);
    let _second = holder(&servers, "backup:b", &["--shared"]);
    let _third = holder(&servers, "other", &[]);
    // A string is no lock, and a lock on one node of three is not held.
    let _: String = servers[0].run(&["SET", "backup:text", "x"]);
    let _: u64 = servers[1].run(&["LOCK.ACQUIRE", "partial", "t", "60000"]);
    let listed = |words: &[&str]| -> Vec<(String, String)> {
        let listing = ask(&servers, words).json();
        let locks = listing["locks"].as_array().unwrap().iter();
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        locks
            .map(|lock| (text(&lock["key"]), text(&lock["state"])))
            .collect()
    };
    let held = |key: &str| (key.to_owned(), "held".to_owned());
    let partial = ("partial".to_owned(), "partly held".to_owned());
    assert_eq!(
        listed(&["ls", "--json"]),
        [held("backup:a"), held("backup:b"), held("other"), partial]
    );
    assert_eq!(
        listed(&["ls", "backup:*", "--json"]),
        [held("backup:a"), held("backup:b")]
    );
    let text = ask(&servers, &["ls"]).out;
    assert_eq!(text.lines().count(), 5, "{text}");
}

#[test]
fn very_many_locks_are_all_listed() {
    // As many as one command takes, three times: more than a page of SCAN.
    const AT_ONCE: usize = 1_000;
    let servers = masters::<1>();
    for batch in ["a", "b", "c"] {
        let mut words = vec!["LOCK.MACQUIRE".to_owned(), AT_ONCE.to_string()];
        words.extend((0..AT_ONCE).map(|number| format!("many:{batch}{number}")));
        words.extend(["token".to_owned(), "60000".to_owned()]);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let _: Vec<u64> = servers[0].run(&words);
    }
    let listing = ask(
        &servers,
        &["ls", "many:*", "--json", "--node-timeout", "20s"],
    )
    .json();
    let locks = listing["locks"].as_array().unwrap();
    assert_eq!(locks.len(), 3 * AT_ONCE);
    assert!(locks.iter().all(|lock| lock["state"] == "held"));
}

#[test]
fn nodes_are_shown_even_if_some_are_down_or_replicas() {
    let mut servers = masters::<3>();
    let _holder = holder(&servers, "job", &[]);
    servers[2].kill();
    let figures = ask(&servers, &["nodes", "--json"]).json();
    let first = &figures["nodes"][0];
    assert_eq!(first["role"], "master");
    assert_eq!(first["locks"], 1);
    assert_eq!(first["waiters"], 0);
    assert_eq!(first["quarantine_ms"], 0);
    assert!(first["version"].as_str().unwrap().contains('.'));
    assert!(first["clock_lead_us"].is_i64());
    assert!(
        figures["nodes"][2]["problem"]
            .as_str()
            .unwrap()
            .contains("unreachable")
    );
    let text = ask(&servers, &["nodes"]).out;
    assert_eq!(text.lines().count(), 4, "{text}");
    assert!(
        text.contains("CLOCK") && text.contains("unreachable"),
        "{text}"
    );

    let quarantined = Server::with(["lock.quarantine 600000"]);
    let replica = Server::options().replica_of(&servers[0]).start();
    let both = [quarantined, replica];
    let figures = ask(&both, &["nodes", "--json"]).json();
    assert!(figures["nodes"][0]["quarantine_ms"].as_u64().unwrap() > 0);
    assert_ne!(figures["nodes"][1]["role"], "master");
}

#[test]
fn if_no_node_replies_that_is_the_error() {
    let mut servers = masters::<1>();
    servers[0].kill();
    for words in [
        &["nodes"][..],
        &["ls"],
        &["status", "k"],
        &["force", "k", "--yes"],
    ] {
        let ended = ask(&servers, words);
        assert_eq!(ended.code, Some(69), "{words:?}: {ended:?}");
        assert!(
            ended.err.contains("no node replies"),
            "{words:?}: {ended:?}"
        );
        assert_eq!(ended.err.lines().count(), 1);
    }
}

#[test]
fn force_needs_confirmation() {
    let servers = masters::<3>();
    let free = ask(&servers, &["force", "job", "--yes"]);
    assert_eq!((free.code, free.out.as_str()), (Some(0), "job is free\n"));
    let holding = holder(&servers, "job", &["--ttl", "2s"]);
    let unasked = ask(&servers, &["force", "job"]);
    assert_eq!(unasked.code, Some(64));
    assert!(unasked.err.contains("--yes"), "{unasked:?}");
    assert!(!servers[0].is_free("job"));
    let forced = ask(&servers, &["force", "job", "--yes", "--json"]).json();
    assert!(forced["forced"].as_u64().unwrap() >= 2, "{forced}");
    assert_eq!(holding.end().code, Some(70));
    nothing_is_held(&servers);
}

#[test]
fn nodes_succeeds_only_if_every_node_can_grant_locks() {
    let mut servers = masters::<2>();
    let fit = ask(&servers, &["nodes"]);
    assert_eq!((fit.code, fit.err.as_str()), (Some(0), ""), "{fit:?}");
    let [first, second] = [servers[0].url(), servers[1].url()];
    let quarantined = Server::with(["lock.quarantine 600000"]);
    let replica = Server::options().replica_of(&servers[0]).start();
    let bare = Server::options().without_module().start();
    let same = format!("redis://localhost:{}", servers[0].port());
    for (unfit, why) in [
        (quarantined.url(), "quarantined for"),
        (replica.url(), "not a master"),
        (bare.url(), "module is not loaded"),
        (same, "the same server as"),
    ] {
        let ended = ask(&[], &["nodes", "--node", &first, &second, &unfit]);
        assert_eq!(ended.code, Some(69), "{ended:?}");
        assert!(ended.out.contains(why), "{why}: {ended:?}");
        assert!(
            ended.err.contains("1 of 3 nodes cannot grant locks"),
            "{ended:?}"
        );
    }
    servers[1].kill();
    let ended = ask(&servers, &["nodes", "--json"]);
    assert_eq!(ended.code, Some(69), "{ended:?}");
    assert_eq!(ended.json()["nodes"][0]["problem"], serde_json::Value::Null);
}

#[test]
fn the_exit_code_of_status_check_shows_whether_the_lock_is_free() {
    let mut servers = masters::<3>();
    let check = |servers: &[Server]| {
        let quiet = ask(servers, &["status", "--check", "-q", "job"]);
        assert_eq!(quiet.out, "", "{quiet:?}");
        let verbose = ask(servers, &["status", "job", "--check"]);
        assert_eq!(verbose.code, quiet.code);
        (quiet.code, verbose.out)
    };
    assert_eq!(check(&servers), (Some(0), "job: free\n".to_owned()));
    let _: u64 = servers[0].run(&["LOCK.ACQUIRE", "job", "t", "60000"]);
    assert_eq!(check(&servers).0, Some(1), "partly held");
    let _: u64 = servers[1].run(&["LOCK.ACQUIRE", "job", "t", "60000"]);
    assert_eq!(check(&servers).0, Some(1), "held");
    servers[0].kill();
    servers[1].kill();
    let (code, out) = check(&servers);
    assert_eq!(code, Some(69));
    assert!(out.starts_with("job: unknown"), "{out}");
    assert_eq!(ask(&servers, &["status", "job"]).code, Some(0));
    servers[2].kill();
    assert_eq!(check(&servers).0, Some(69));
}
