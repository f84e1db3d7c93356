//! The exchanges with redis-cli that the documentation shows, typed again on a real server.
//!
//! Each block starts on an empty server. A comment in the line before it says otherwise:
//!
//! - `<!-- continues -->`: with what the blocks before it have left;
//! - `<!-- continues when KEY is free -->`: the same, once that lock is free;
//! - `<!-- after: command | command -->`: after these; one that ends with `&` keeps waiting.
//!
//! A command without a reply waits; its reply is a later block without a command.

use std::collections::HashMap;
use std::path::Path;

use redislock_testkit::{Connection, Server, Value, info_number, wait_until};

const PROMPT: &str = "127.0.0.1:6379> ";

#[test]
fn what_the_readme_shows_is_what_a_server_replies() {
    assert!(replay("README.md") >= 15);
}

#[test]
fn what_the_command_reference_shows_is_what_a_server_replies() {
    assert!(replay("docs/COMMANDS.md") >= 40);
}

#[test]
fn what_the_guarantees_show_is_what_a_server_replies() {
    assert!(replay("docs/GUARANTEES.md") >= 7);
}

/// Every error text that the reference lists is one of the module.
#[test]
fn the_error_texts_of_the_command_reference_are_those_of_the_module() {
    let text = read("docs/COMMANDS.md");
    let (_, list) = text
        .split_once("Some error texts:")
        .expect("the list is there");
    let list = list.split("```").nth(1).expect("a block follows");
    let source = sources(Path::new("src"));
    // The reason of a quarantine is filled in; tests/quarantine.rs reads it.
    let lines = list.lines().filter(|line| !line.starts_with("QUARANTINE"));
    for line in lines.filter(|line| !line.is_empty()) {
        // What is filled in is a number, the name of an argument or of a setting.
        let is_plain = |word: &str| {
            word.chars()
                .all(|c| c.is_ascii_lowercase() || ",:*".contains(c))
        };
        let words: Vec<&str> = line.split(' ').collect();
        for part in words
            .split(|word| !is_plain(word))
            .filter(|part| part.len() > 2)
        {
            let part = part.join(" ");
            assert!(
                source.contains(&part),
                "no error of the module says {part:?}: {line}"
            );
        }
    }
}

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect("a document")
}

/// All Rust code of a folder, with the lines of a long string joined.
fn sources(folder: &Path) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut all = String::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            all += &sources(&path);
        } else {
            let text = std::fs::read_to_string(&path).expect("a source file");
            for line in text.lines() {
                all += line.trim_start().strip_suffix('\\').unwrap_or(line);
            }
        }
    }
    all
}

/// A block of a document: what the comment before it says, and its lines.
struct Block {
    directive: String,
    lines: Vec<String>,
}

fn blocks(text: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let (mut before, mut open) = (String::new(), None::<Block>);
    for line in text.lines().map(str::trim) {
        match (&mut open, line.starts_with("```")) {
            (None, true) => {
                let directive = before.strip_prefix("<!-- ").unwrap_or_default();
                let directive = directive.trim_end_matches("-->").trim().to_owned();
                open = Some(Block {
                    directive,
                    lines: Vec::new(),
                });
            }
            (Some(_), true) => found.extend(open.take()),
            (Some(block), false) => block.lines.push(line.to_owned()),
            (None, false) => {}
        }
        line.clone_into(&mut before);
    }
    found
}

/// Types every command of a document, and compares the replies. How many there were.
#[track_caller]
fn replay(document: &str) -> usize {
    let server = Server::start();
    let mut typed = 0;
    // The window of a command that has no reply yet.
    let mut waiting = None;
    for block in blocks(&read(document)) {
        let Block { directive, lines } = &block;
        if !lines.iter().any(|line| line.starts_with(PROMPT)) {
            let reply = lines
                .first()
                .is_some_and(|line| line.starts_with("(integer)"));
            if let Some(mut window) = waiting.take_if(|_| reply) {
                same(
                    document,
                    "the command that waited",
                    lines,
                    &Connection::receive(&mut window),
                );
            }
            continue;
        }
        let _waiting_meanwhile = prepare(&server, directive);
        let mut window = server.connect().resp3();
        // A line with a prompt, and those of its reply.
        for exchange in lines.chunk_by(|_, next| !next.starts_with(PROMPT)) {
            let (command, reply) = exchange.split_first().expect("a prompt");
            let command = command.trim_start_matches(PROMPT);
            window.send_args(&words(command));
            typed += 1;
            if reply.is_empty() {
                waiting = Some(std::mem::replace(&mut window, server.connect().resp3()));
                await_waiters(&server, 1);
            } else {
                same(document, command, reply, &window.receive());
            }
        }
    }
    typed
}

/// Brings the server into the state in which a block starts. Returns the windows that wait.
fn prepare(server: &Server, directive: &str) -> Vec<Connection> {
    let mut waiting = Vec::new();
    let mut window = server.connect();
    if let Some(condition) = directive.strip_prefix("continues") {
        if let Some(key) = condition.trim().strip_prefix("when ") {
            let key = key.trim_end_matches(" is free").to_owned();
            wait_until("the lease ends", || server.is_free(&key));
        }
        return waiting;
    }
    window.ok("FLUSHALL");
    for command in directive
        .strip_prefix("after: ")
        .unwrap_or_default()
        .split(" | ")
    {
        match command.strip_suffix('&') {
            Some(waits) => {
                let mut other = server.connect();
                other.send_args(&words(waits));
                waiting.push(other);
                await_waiters(server, waiting.len() as i64);
            }
            None if command.is_empty() => {}
            None => drop(window.call_args(&words(command))),
        }
    }
    waiting
}

fn waiters(server: &Server) -> i64 {
    info_number(&mut server.connect(), "lock_state", "lock_waiters")
}

#[track_caller]
fn await_waiters(server: &Server, at_least: i64) {
    wait_until("a request waits", || waiters(server) >= at_least);
}

/// The words of a command line, as redis-cli reads them.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (number, part) in line.split('"').enumerate() {
        if number % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    words
}

/// Whether the reply is the one that is shown, apart from what differs from run to run.
#[track_caller]
fn same(document: &str, command: &str, shown: &[String], reply: &Value) {
    let took = |line: &&String| !(line.starts_with('(') && line.ends_with("s)"));
    let shown: Vec<&str> = shown.iter().filter(took).map(String::as_str).collect();
    let (mut shown, mut got) = (shown.join(" "), written(reply));
    if command.starts_with("INFO") {
        let Value::Bulk(text) = reply else {
            panic!("{document}: {command}: {reply:?}")
        };
        got = String::from_utf8_lossy(text.strip_prefix(b"txt:").unwrap_or(text))
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        (shown, got) = (names(&shown), names(&got));
    }
    assert_eq!(steady(&got), steady(&shown), "{document}: {command}");
}

/// The names of INFO without their values.
fn names(info: &str) -> String {
    let names = info
        .split(' ')
        .map(|field| field.split_once(':').map_or(field, |(name, _)| name));
    names.collect::<Vec<_>>().join(" ")
}

/// A reply as redis-cli writes it, in one line.
fn written(reply: &Value) -> String {
    let numbered = |items: Vec<String>, mark: char| match items.len() {
        0 => "(empty array)".to_owned(),
        _ => {
            let items = items.iter().enumerate();
            let items = items.map(|(number, item)| format!("{}{mark} {item}", number + 1));
            items.collect::<Vec<_>>().join(" ")
        }
    };
    match reply {
        Value::Status(text) => text.clone(),
        Value::Error(text) => format!("(error) {text}"),
        Value::Integer(number) => format!("(integer) {number}"),
        Value::Bulk(bytes) => format!("\"{}\"", bytes.escape_ascii()),
        Value::Null | Value::NullArray => "(nil)".to_owned(),
        Value::Array(items) => numbered(items.iter().map(written).collect(), ')'),
        Value::Map(pairs) => {
            let pair =
                |(name, value): &(Value, Value)| format!("{} => {}", written(name), written(value));
            numbered(pairs.iter().map(pair).collect(), '#')
        }
        other => format!("{other:?}"),
    }
}

/// What is the same in every run: times and random values become marks. Equal fences become equal
/// marks, and unequal ones unequal marks.
fn steady(text: &str) -> String {
    let mut fences = HashMap::new();
    let (mut steady, mut field, mut before) = (Vec::new(), "", "");
    for word in text.split_whitespace() {
        let bare = word.trim_matches('"');
        if bare == "=>" {
            field = before;
        }
        let is_number = !bare.is_empty() && bare.chars().all(|c| c.is_ascii_digit());
        let is_time = ["ttl", "age", "oldest-wait", "time"].contains(&field);
        // Of the 30 s that the examples give to MAXHOLD; a busy machine needs some of them.
        let is_rest = before == "lock.max-hold," && bare.parse().is_ok_and(|ms: u32| ms <= 30_000);
        let is_random = field == "fingerprint" || bare.matches('-').count() == 4;
        steady.push(if is_rest || (is_number && is_time) {
            "time".to_owned()
        } else if is_number && bare.len() > 12 {
            let known = fences.len();
            format!("fence{}", fences.entry(bare).or_insert(known))
        } else if is_random && word.starts_with('"') && bare.len() >= 8 {
            "random".to_owned()
        } else {
            word.to_owned()
        });
        before = bare;
    }
    steady.join(" ")
}
