//! The metadata of the commands: COMMAND DOCS, COMMAND GETKEYSANDFLAGS, COMMAND INFO.

use std::collections::HashSet;

use redislock_testkit::{Connection, Server, Value};

/// A request of each command with a key, and how it uses the key.
const KEYED: [(&str, &str); 9] = [
    ("LOCK.ACQUIRE job me 1000", "RW"),
    ("LOCK.RELEASE job me", "RW"),
    ("LOCK.EXTEND job me 1000", "RW"),
    ("LOCK.INFO job", "RO"),
    ("LOCK.FORCE job", "RW"),
    ("LOCK.MACQUIRE 1 job me 1000", "RW"),
    ("LOCK.MRELEASE 1 job me", "RW"),
    ("LOCK.MEXTEND 1 job me 1000", "RW"),
    ("LOCK.GUARD job me PING", "RO"),
];

fn command_docs(c: &mut Connection, name: &str) -> Value {
    let docs = c.call(&format!("COMMAND DOCS LOCK.{name}"));
    let (_, docs) = docs.pairs().remove(0);
    docs
}

#[test]
fn command_docs_read_well() {
    let server = Server::start();
    let mut c = server.connect();
    for name in [
        "ACQUIRE", "RELEASE", "EXTEND", "MACQUIRE", "MRELEASE", "MEXTEND", "GUARD", "INFO", "NODE",
        "FORCE", "HELP",
    ] {
        let docs = command_docs(&mut c, name);
        assert!(docs.field("summary").text().len() > 10, "{name}: {docs:?}");
        assert!(!docs.field("since").text().is_empty(), "{name}");
        assert!(!docs.field("complexity").text().is_empty(), "{name}");
    }
}

/// What redis-cli makes its hints of.
#[test]
fn command_docs_list_the_arguments_of_every_command() {
    const OPTIONS: &str = "ttl-ms SHARED LIMIT BLOCK ONCE FENCE MAXHOLD EPHEMERAL OWNER";
    let server = Server::start();
    let mut c = server.connect();
    for (name, words) in [
        ("ACQUIRE", format!("key token {OPTIONS}")),
        ("RELEASE", "key token ALL".into()),
        ("EXTEND", "key token ttl-ms FENCE".into()),
        ("MACQUIRE", format!("numkeys key token {OPTIONS}")),
        ("MRELEASE", "numkeys key token ALL".into()),
        ("MEXTEND", "numkeys key token ttl-ms FENCE".into()),
        ("GUARD", "key token command arg".into()),
        ("INFO", "key token COUNT WAITERS".into()),
        ("FORCE", "key".into()),
    ] {
        let arguments = command_docs(&mut c, name).field("arguments");
        // An option by what is to be written, all else by its name.
        let told = arguments.items().iter().map(|argument| {
            let written = |pair: &(String, Value)| pair.0 == "token";
            let token = argument.pairs().into_iter().find(written);
            let word = token.map_or(argument.field("name"), |(_, token)| token);
            word.text().to_owned()
        });
        assert_eq!(told.collect::<Vec<_>>().join(" "), words, "{name}");
    }
}

/// A number that COMMAND DOCS calls a string misleads programs that check arguments.
#[test]
fn command_docs_call_every_number_an_integer() {
    const NUMBERS: [&str; 7] = [
        "ttl-ms", "LIMIT", "BLOCK", "FENCE", "MAXHOLD", "COUNT", "numkeys",
    ];
    let server = Server::start();
    let mut c = server.connect();
    let mut seen = HashSet::new();
    for name in [
        "ACQUIRE", "EXTEND", "MACQUIRE", "MRELEASE", "MEXTEND", "INFO",
    ] {
        let mut open = command_docs(&mut c, name)
            .field("arguments")
            .items()
            .to_vec();
        while let Some(argument) = open.pop() {
            let text = |field: &str| {
                let pair = argument.pairs().into_iter().find(|(name, _)| name == field);
                pair.map(|(_, value)| value.text().to_owned())
            };
            let word = text("token")
                .or(text("name"))
                .expect("an argument has a name");
            if NUMBERS.contains(&word.as_str()) {
                assert_eq!(text("type").as_deref(), Some("integer"), "{name}: {word}");
                seen.insert(word);
            } else if let Some((_, nested)) = argument
                .pairs()
                .into_iter()
                .find(|(name, _)| name == "arguments")
            {
                open.extend(nested.items().iter().cloned());
            }
        }
    }
    assert_eq!(seen.len(), NUMBERS.len(), "{seen:?}");
}

#[test]
fn command_getkeysandflags_returns_the_key_of_every_command() {
    let server = Server::start();
    let mut c = server.connect();
    for (line, flag) in KEYED {
        let reply = c.call(&format!("COMMAND GETKEYSANDFLAGS {line}"));
        let [key] = reply.items() else {
            panic!("{line}: {reply:?}")
        };
        assert_eq!(key.items()[0].text(), "job", "{line}");
        let flags: Vec<&str> = key.items()[1].items().iter().map(Value::text).collect();
        assert!(flags.contains(&flag), "{line}: {flags:?}");
    }
    // Inner keys keep the flags that the inner command gives them.
    let guarded = c.call("COMMAND GETKEYSANDFLAGS LOCK.GUARD job me SET data value");
    let inner = c.call("COMMAND GETKEYSANDFLAGS SET data value");
    assert_eq!(guarded.items()[1], inner.items()[0]);
    for line in ["LOCK.NODE", "LOCK.HELP"] {
        assert!(
            c.call(&format!("COMMAND GETKEYSANDFLAGS {line}"))
                .is_error(),
            "{line}"
        );
    }
}

#[test]
fn command_flags_distinguish_readers_from_writers() {
    let server = Server::start();
    let mut c = server.connect();
    for (name, has, has_not) in [
        ("lock.acquire", &["write", "denyoom"][..], &["readonly"][..]),
        ("lock.release", &["write"], &["readonly", "denyoom"]),
        ("lock.extend", &["write"], &["readonly", "denyoom"]),
        ("lock.force", &["write"], &["readonly", "denyoom"]),
        ("lock.info", &["readonly"], &["write", "denyoom"]),
        ("lock.node", &["loading", "stale"], &["write", "denyoom"]),
    ] {
        let reply = c.call(&format!("COMMAND INFO {name}"));
        let flags = reply.items()[0].items()[2].clone();
        let flags: Vec<&str> = flags.items().iter().map(Value::text).collect();
        for flag in has {
            assert!(flags.contains(flag), "{name}: {flags:?}");
        }
        for flag in has_not {
            assert!(!flags.contains(flag), "{name}: {flags:?}");
        }
    }
}
