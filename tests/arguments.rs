//! Bad input, in one table: a clear error each, nothing changed, nothing echoed, the server alive.

use redislock_testkit::lock::{all_locks, counter};
use redislock_testkit::{Connection, Server, Value, granted, info_number, refused};

/// A byte string that no error text contains by chance.
const ECHO: &[u8] = b"QZX\xf7VJ";

/// What is sent, the class of the error, and a word that names what is wrong.
type Case = (&'static str, Vec<Vec<u8>>, &'static str, &'static str);

fn case(what: &'static str, line: &str, class: &'static str, names: &'static str) -> Case {
    let words = line.split(' ').filter(|word| !word.is_empty());
    let args = words.map(|word| match word {
        "<empty>" => Vec::new(),
        "<256>" => vec![b'Q'; 256],
        "<257>" => vec![b'Q'; 257],
        "<huge>" => vec![b'Q'; 1 << 20],
        "<bytes>" => ECHO.to_vec(),
        "<nul>" => b"QZX\0VJ".to_vec(),
        word => word.as_bytes().to_vec(),
    });
    (what, args.collect(), class, names)
}

fn cases() -> Vec<Case> {
    let mut cases = vec![
        case("no key", "LOCK.ACQUIRE", "ERR", "arguments"),
        case("no token", "LOCK.ACQUIRE job", "ERR", "arguments"),
        case("no ttl", "LOCK.ACQUIRE job QZX", "ERR", "arguments"),
        case("no key to release", "LOCK.RELEASE", "ERR", "arguments"),
        case(
            "no token to release",
            "LOCK.RELEASE job",
            "ERR",
            "arguments",
        ),
        case(
            "too much to release",
            "LOCK.RELEASE job me ALL QZX",
            "ERR",
            "",
        ),
        case("no key to extend", "LOCK.EXTEND", "ERR", "arguments"),
        case("no token to extend", "LOCK.EXTEND job", "ERR", "arguments"),
        case("no ttl to extend", "LOCK.EXTEND job me", "ERR", "arguments"),
        case("no key to tell of", "LOCK.INFO", "ERR", "arguments"),
        case(
            "too much to tell of",
            "LOCK.INFO job me QZX",
            "ERR",
            "arguments",
        ),
        case("a node with arguments", "LOCK.NODE QZX", "ERR", "arguments"),
        case("no key to force", "LOCK.FORCE", "ERR", "arguments"),
        case(
            "two keys to force",
            "LOCK.FORCE job QZX",
            "ERR",
            "arguments",
        ),
        case("help with arguments", "LOCK.HELP QZX", "ERR", "arguments"),
        case(
            "an unknown option",
            "LOCK.ACQUIRE job new 1000 QZXOPTION",
            "ERR",
            "unknown option at argument 4, see LOCK.HELP",
        ),
        case(
            "unknown after known",
            "LOCK.ACQUIRE job new 1000 ONCE QZXOPTION",
            "ERR",
            "unknown option at argument 5, see LOCK.HELP",
        ),
        case(
            "an option of bytes",
            "LOCK.ACQUIRE job new 1000 <bytes>",
            "ERR",
            "argument 4",
        ),
        case(
            "an option with a NUL",
            "LOCK.ACQUIRE job new 1000 ONCE\0QZX",
            "ERR",
            "argument 4",
        ),
        case(
            "an empty option",
            "LOCK.ACQUIRE job new 1000 <empty>",
            "ERR",
            "argument 4",
        ),
        case(
            "a long option",
            "LOCK.ACQUIRE job new 1000 <huge>",
            "ERR",
            "argument 4",
        ),
        case(
            "half an option",
            "LOCK.ACQUIRE job new 1000 ONC",
            "ERR",
            "argument 4",
        ),
        case(
            "an unknown option of extend",
            "LOCK.EXTEND job me 1000 QZXOPTION 1",
            "ERR",
            "argument 4",
        ),
        case(
            "an option of acquire on extend",
            "LOCK.EXTEND job me 1000 ONCE",
            "ERR",
            "argument 4",
        ),
        case(
            "an unknown option of release",
            "LOCK.RELEASE job me QZXOPTION",
            "ERR",
            "argument 3",
        ),
        case(
            "a star with once",
            "LOCK.ACQUIRE free * 1000 ONCE",
            "ERR",
            "ONCE",
        ),
        case("a star to release", "LOCK.RELEASE job *", "ERR", "token"),
        case("a star to extend", "LOCK.EXTEND job * 1000", "ERR", "token"),
        case(
            "a fence too far ahead",
            "LOCK.ACQUIRE free new 1000 FENCE 9007199254740991",
            "LOCKFENCE",
            "",
        ),
        case(
            "a fence too far ahead to extend",
            "LOCK.EXTEND job me 1000 FENCE 9007199254740991",
            "LOCKFENCE",
            "",
        ),
        case(
            "a hold cut short",
            "LOCK.ACQUIRE free new 1001 MAXHOLD 1000",
            "LOCKLIMIT",
            "",
        ),
        case("the internal command", "LOCK._APPLY QZX job", "ERR", ""),
        case("the internal command alone", "LOCK._APPLY", "ERR", ""),
        case(
            "an unknown lock command",
            "LOCK.STEAL QZX",
            "ERR",
            "unknown command",
        ),
    ];
    for (name, doubled) in [
        ("ONCE", "ONCE once"),
        ("FENCE", "FENCE 1 FENCE 1"),
        ("MAXHOLD", "MAXHOLD 5000 maxhold 6000"),
        ("OWNER", "OWNER a OWNER b"),
        ("BLOCK", "BLOCK 0 block 0"),
        ("SHARED", "SHARED shared"),
        ("LIMIT", "SHARED LIMIT 2 LIMIT 2"),
        ("EPHEMERAL", "EPHEMERAL ephemeral"),
    ] {
        cases.push(case(
            "a doubled option",
            &format!("LOCK.ACQUIRE free new 1000 {doubled}"),
            "ERR",
            name,
        ));
    }
    cases.push(case(
        "a doubled option of extend",
        "LOCK.EXTEND job me 1000 FENCE 1 FENCE 1",
        "ERR",
        "FENCE",
    ));
    cases.push(case("all twice", "LOCK.RELEASE job me ALL ALL", "ERR", ""));
    for name in ["FENCE", "MAXHOLD", "OWNER", "BLOCK", "LIMIT"] {
        cases.push(case(
            "an option without its value",
            &format!("LOCK.ACQUIRE free new 1000 {name}"),
            "ERR",
            name,
        ));
    }
    cases.push(case(
        "an extension without its fence",
        "LOCK.EXTEND job me 1000 FENCE",
        "ERR",
        "FENCE",
    ));
    cases.push(case(
        "a label of 257 bytes",
        "LOCK.ACQUIRE free new 1000 OWNER <257>",
        "ERR",
        "OWNER",
    ));
    cases.push(case(
        "a huge label",
        "LOCK.ACQUIRE free new 1000 OWNER <huge>",
        "ERR",
        "OWNER",
    ));

    // Every place of a ttl, and every other number, with all that is no number in its range.
    let not_numbers = [
        "-1",
        "-0",
        "+5",
        "05",
        "1.5",
        "1e3",
        "0x10",
        "QZX",
        "12QZX",
        "<empty>",
        "<bytes>",
        "<nul>",
        "<huge>",
        "-9223372036854775808",
        "9223372036854775808",
        "18446744073709551616",
        "99999999999999999999999999",
    ];
    for (line, named, beyond) in [
        ("LOCK.ACQUIRE free new #", "ttl-ms", "0"),
        ("LOCK.EXTEND job me #", "ttl-ms", "0"),
        (
            "LOCK.ACQUIRE free new 1000 FENCE #",
            "FENCE",
            "9007199254740992",
        ),
        (
            "LOCK.EXTEND job me 1000 FENCE #",
            "FENCE",
            "9007199254740992",
        ),
        ("LOCK.ACQUIRE free new 1 MAXHOLD #", "MAXHOLD", "0"),
        ("LOCK.ACQUIRE job new 1 BLOCK #", "BLOCK", "3162240000001"),
        ("LOCK.ACQUIRE free new 1 SHARED LIMIT #", "LIMIT", "0"),
        ("LOCK.MACQUIRE 2 free other new #", "ttl-ms", "0"),
        ("LOCK.MEXTEND 2 job other me #", "ttl-ms", "0"),
        (
            "LOCK.MEXTEND 1 job me 1000 FENCE #",
            "FENCE",
            "9007199254740992",
        ),
        ("LOCK.MACQUIRE # free new 1000", "numkeys", "0"),
        ("LOCK.MRELEASE # job me", "numkeys", "1001"),
        ("LOCK.MEXTEND # job me 1000", "numkeys", "0"),
    ] {
        for value in not_numbers.iter().chain(&[beyond, "9223372036854775807"]) {
            let line = line.replace('#', value);
            cases.push(case("a bad number", &line, "ERR", named));
        }
    }
    for line in [
        "LOCK.ACQUIRE free new 86400001",
        "LOCK.EXTEND job me 86400001",
        "LOCK.MACQUIRE 1 free new 86400001",
        "LOCK.MEXTEND 1 job me 86400001",
    ] {
        cases.push(case("a ttl above the limit", line, "LOCKLIMIT", "ttl-ms"));
    }

    for line in [
        "LOCK.ACQUIRE free T 1000",
        "LOCK.RELEASE job T",
        "LOCK.EXTEND job T 1000",
        "LOCK.INFO job T",
        "LOCK.MACQUIRE 1 free T 1000",
        "LOCK.MRELEASE 1 job T",
        "LOCK.MEXTEND 1 job T 1000",
        "LOCK.GUARD job T GET string",
    ] {
        for token in ["<empty>", "<257>", "<huge>"] {
            cases.push(case(
                "a token of a bad length",
                &line.replace(" T", &format!(" {token}")),
                "ERR",
                "token",
            ));
        }
    }
    for line in [
        "LOCK.ACQUIRE string new 1000",
        "LOCK.ACQUIRE string * 1000",
        "LOCK.RELEASE string me",
        "LOCK.EXTEND string me 1000",
        "LOCK.INFO string",
        "LOCK.INFO string me",
        "LOCK.FORCE string",
        "LOCK.MACQUIRE 2 free string new 1000",
        "LOCK.GUARD string me GET string",
    ] {
        cases.push(case("a key of another type", line, "WRONGTYPE", ""));
    }
    cases.extend(cases_of_several_keys_and_guards());
    cases
}

fn cases_of_several_keys_and_guards() -> Vec<Case> {
    let mut cases = Vec::new();
    for line in [
        "LOCK.MACQUIRE",
        "LOCK.MACQUIRE 1",
        "LOCK.MACQUIRE 1 free",
        "LOCK.MACQUIRE 1 free QZX",
        "LOCK.MACQUIRE 2 free other QZX",
        "LOCK.MRELEASE 1",
        "LOCK.MRELEASE 1 job",
        "LOCK.MRELEASE 2 job QZX",
        "LOCK.MEXTEND 1 job",
        "LOCK.MEXTEND 1 job QZX",
        "LOCK.MEXTEND 2 job other QZX",
        "LOCK.GUARD",
        "LOCK.GUARD job",
        "LOCK.GUARD job QZX",
    ] {
        cases.push(case("too few arguments", line, "ERR", "arguments"));
    }
    for (line, names) in [
        ("LOCK.MACQUIRE 3 free QZX", "arguments"),
        ("LOCK.MACQUIRE 9 free other QZX 1000", "numkeys"),
        ("LOCK.MRELEASE 9 job other QZX", "numkeys"),
        ("LOCK.MEXTEND 9 job other QZX 1000", "numkeys"),
        ("LOCK.MACQUIRE 3 QZX free QZX new 1000", "twice"),
        ("LOCK.MRELEASE 2 QZX QZX me", "twice"),
        ("LOCK.MEXTEND 2 QZX QZX me 1000", "twice"),
        (
            "LOCK.MACQUIRE 2 free other new 1000 QZXOPTION",
            "unknown option at argument 6, see LOCK.HELP",
        ),
        ("LOCK.MRELEASE 1 job me QZXOPTION", "argument 4"),
        ("LOCK.MRELEASE 1 job me ALL ALL", "ALL"),
        ("LOCK.MEXTEND 1 job me 1000 QZXOPTION 1", "argument 5"),
        ("LOCK.MEXTEND 1 job me 1000 FENCE 1 FENCE 1", "FENCE"),
        ("LOCK.MACQUIRE 1 free new 1000 LIMIT 2", "SHARED"),
        ("LOCK.ACQUIRE free new 1000 LIMIT 2", "SHARED"),
        ("LOCK.MACQUIRE 1 free * 1000 ONCE", "ONCE"),
        ("LOCK.MRELEASE 1 job *", "token"),
        ("LOCK.MEXTEND 1 job * 1000", "token"),
        ("LOCK.GUARD job * GET string", "token"),
        ("LOCK.GUARD job me QZXCOMMAND string", "unknown"),
        ("LOCK.GUARD job me <bytes> string", "unknown"),
        ("LOCK.GUARD job me <nul> string", "unknown"),
        ("LOCK.GUARD job me <empty> string", "unknown"),
        ("LOCK.GUARD job me <huge> string", "unknown"),
        ("LOCK.GUARD job me SET QZX", "arguments"),
        ("LOCK.GUARD job me BLPOP QZX 0", "block"),
        ("LOCK.GUARD job me XREAD STREAMS QZX 0", "block"),
        ("LOCK.GUARD job me LOCK.QZX job", "LOCK.*"),
        ("LOCK.GUARD job me LOCK.GUARD job me SET QZX 1", "LOCK.*"),
    ] {
        cases.push(case("several keys, or a guard", line, "ERR", names));
    }
    cases.push(case(
        "somebody else's guard",
        "LOCK.GUARD job QZX DEL string",
        "NOTHELD",
        "",
    ));
    cases.push(case(
        "a fence too far ahead for several keys",
        "LOCK.MACQUIRE 2 free other new 1000 FENCE 9007199254740991",
        "LOCKFENCE",
        "",
    ));
    cases
}

/// All that a request could change.
fn state(
    c: &mut Connection,
) -> (
    Vec<redislock_testkit::lock::Lock>,
    i64,
    Value,
    i64,
    Value,
    i64,
    bool,
) {
    (
        all_locks(c),
        counter(c),
        c.call("GET string"),
        info_number(c, "persistence", "rdb_changes_since_last_save"),
        c.call("DBSIZE"),
        c.call("LOCK.NODE").number("waiters"),
        c.call("LOCK.INFO job me").number("ttl") <= 600_000,
    )
}

fn server_with_a_lock() -> (Server, Connection) {
    let server = Server::start();
    let mut c = server.connect();
    c.ok("SET string value");
    granted(&c.call("LOCK.ACQUIRE job me 600000 OWNER label"));
    (server, c)
}

#[test]
fn bad_input_gets_a_clear_error_and_changes_nothing() {
    let (_server, mut c) = server_with_a_lock();
    let before = state(&mut c);
    let mut failures = Vec::new();
    for (what, args, class, names) in cases() {
        let reply = c.call_args(&args);
        let shown: Vec<String> = args
            .iter()
            .map(|arg| arg[..arg.len().min(40)].escape_ascii().to_string())
            .collect();
        let mut complain =
            |why: &str| failures.push(format!("{what}: {shown:?} -> {reply:?}: {why}"));
        let Value::Error(error) = &reply else {
            complain("no error");
            continue;
        };
        if !class.is_empty() && error.split(' ').next() != Some(class) {
            complain(&format!("not {class}"));
        }
        if !error.contains(names) {
            complain(&format!("does not name {names}"));
        }
        // The server's own answer to an unknown command repeats it; the module's never do.
        if error.contains("QZX") && !error.starts_with("ERR unknown command") {
            complain("repeats what the client sent");
        }
        if error.len() > 200 {
            complain("is no line for a human");
        }
        if state(&mut c) != before {
            complain("changed something");
            break;
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
    assert_eq!(c.call("PING"), Value::Status("PONG".into()));
}

#[test]
fn bad_input_is_refused_before_the_key_is_opened() {
    let (_server, mut c) = server_with_a_lock();
    refused(&c.call("LOCK.ACQUIRE string me 0"), "ERR");
    refused(&c.call("LOCK.EXTEND string * 1000"), "ERR");
}

#[test]
fn the_limits_themselves_are_allowed() {
    let server = Server::start();
    let mut c = server.connect();
    for line in [
        "LOCK.ACQUIRE shortest me 1",
        "LOCK.ACQUIRE longest me 86400000",
        "LOCK.EXTEND longest me 1",
        "LOCK.EXTEND longest me 86400000",
        "LOCK.ACQUIRE fence me 1000 FENCE 0",
        "LOCK.ACQUIRE capped me 1 MAXHOLD 1",
        "LOCK.ACQUIRE waited me 1000 BLOCK 3162240000000",
        "LOCK.ACQUIRE pool me 1000 SHARED LIMIT 1000000",
    ] {
        granted(&c.call(line));
    }
    let token = "T".repeat(256);
    granted(&c.call(&format!("LOCK.ACQUIRE job {token} 1000")));
    granted(&c.call("LOCK.ACQUIRE tiny x 1000"));
    granted(&c.call_args(&["LOCK.ACQUIRE", "label", "me", "1000", "OWNER", ""]));
}
