//! Any arguments to any command on a live server. The module's parser reads strings of the
//! server, so it runs there. Each request gets one well-formed reply, no error shows bytes of the
//! request, and a lock that nobody named stays held.
#![no_main]

use std::cell::RefCell;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use redislock_testkit::{Connection, Server, Value, encode, granted};

struct Target {
    // Ends with the program: the guard stops it.
    server: Server,
    c: Connection,
}

thread_local! {
    static TARGET: RefCell<Option<Target>> = const { RefCell::new(None) };
}

const COMMANDS: [&str; 13] = [
    "LOCK.ACQUIRE",
    "LOCK.RELEASE",
    "LOCK.EXTEND",
    "LOCK.MACQUIRE",
    "LOCK.MRELEASE",
    "LOCK.MEXTEND",
    "LOCK.GUARD",
    "LOCK.INFO",
    "LOCK.NODE",
    "LOCK.FORCE",
    "LOCK.HELP",
    "LOCK._APPLY",
    "LOCK._PROBE",
];

const WORDS: [&str; 32] = [
    "a",
    "b",
    "c",
    "me",
    "you",
    "*",
    "0",
    "1",
    "2",
    "-1",
    "1000",
    "604800000",
    "604800001",
    "1000001",
    "9007199254740991",
    "9223372036854775807",
    "18446744073709551616",
    "SHARED",
    "limit",
    "BLOCK",
    "once",
    "FENCE",
    "MAXHOLD",
    "EPHEMERAL",
    "OWNER",
    "ALL",
    "COUNT",
    "GET",
    "SET",
    "LOCK.GUARD",
    "BLPOP",
    "",
];

#[derive(Arbitrary, Debug)]
enum Word<'a> {
    Known(u8),
    Number(i64),
    Bytes(&'a [u8]),
    Long { byte: u8, length: u16 },
}

#[derive(Arbitrary, Debug)]
struct Request<'a> {
    command: u8,
    key: u8,
    words: Vec<Word<'a>>,
}

impl Request<'_> {
    fn words(&self) -> Vec<Vec<u8>> {
        let command = COMMANDS[usize::from(self.command) % COMMANDS.len()];
        let mut all = vec![command.as_bytes().to_vec()];
        if self.key < 200 {
            all.push(WORDS[usize::from(self.key % 3)].as_bytes().to_vec());
        }
        // Nobody may wait forever here, nor touch the bystander.
        for word in self.words.iter().take(40) {
            all.push(match word {
                Word::Known(at) => WORDS[usize::from(*at) % WORDS.len()].as_bytes().to_vec(),
                Word::Number(number) => number.to_string().into_bytes(),
                Word::Bytes(bytes) => bytes.to_vec(),
                Word::Long { byte, length } => vec![*byte; usize::from(*length) % 600],
            });
        }
        all
    }
}

impl Target {
    fn start() -> Self {
        let server = Server::start();
        let mut c = server.connect();
        granted(&c.call("LOCK.ACQUIRE bystander me 86400000"));
        Self { server, c }
    }
}

fuzz_target!(|requests: Vec<Request<'_>>| {
    TARGET.with_borrow_mut(|target| {
        let target = target.get_or_insert_with(Target::start);
        // In a transaction BLOCK does not wait, and nothing else comes in between.
        let mut sent = encode(&["MULTI"]);
        let requests: Vec<_> = requests.iter().take(20).map(Request::words).collect();
        for request in &requests {
            sent.extend(encode(request));
        }
        sent.extend(encode(&["EXEC"]));
        sent.extend(encode(&["DEL", "a", "b", "c"]));
        sent.extend(encode(&["LOCK.INFO", "bystander", "me"]));
        target.c.try_send_raw(&sent).expect("the server is there");
        let mut replies = Vec::new();
        for _ in 0..requests.len() + 4 {
            replies.push(target.c.try_receive().expect("the server replies"));
        }
        let shown = format!("{replies:?}");
        assert!(!shown.contains("LOCKFAILED"), "the module failed: {shown}");
        let held = replies.last().expect("a reply");
        let forced = requests.iter().any(|request| names_bystander(request));
        assert!(
            forced || *held != Value::Null,
            "the bystander was released by {requests:?}"
        );
        if *held == Value::Null {
            granted(&target.c.call("LOCK.ACQUIRE bystander me 86400000"));
        }
        assert!(target.server.is_alive());
    });
});

/// Whether a request may have ended the hold of the bystander, by its name or as a whole.
fn names_bystander(request: &[Vec<u8>]) -> bool {
    request.iter().skip(1).any(|word| {
        let word = word.to_ascii_lowercase();
        word == b"bystander" || word.starts_with(b"flush") || word == b"swapdb" || word == b"eval"
    })
}
