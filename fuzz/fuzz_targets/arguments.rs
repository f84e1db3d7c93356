//! Any arguments to any command on a live server. The module's parser reads strings of the
//! server, so it runs there. Each request gets one well-formed reply, an error has only printable
//! text and repeats no long word of the request, and a lock that nobody named stays held.
#![no_main]

#[path = "../share.rs"]
mod share;

use std::cell::RefCell;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use redislock_testkit::{Connection, Server, Value, encode, granted};
use share::Share;

struct Target {
    // Ends with the program: the guard stops it.
    server: Server,
    c: Connection,
}

/// Requests that the server passed to the module, and those of them that got no error: half, and a
/// third.
static RAN: Share = Share::new("requests that ran", 4);
static SUCCEEDED: Share = Share::new("requests that succeeded", 50);

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

    fn receive(&mut self) -> Value {
        self.c.try_receive().expect("the server replies")
    }

    /// Checks the replies to a request in its transaction.
    fn check(&mut self, request: &[Vec<u8>]) {
        assert_eq!(self.receive(), Value::Status("OK".into()));
        let (queued, done) = (self.receive(), self.receive());
        let reply = match (&queued, &done) {
            (Value::Status(queued), Value::Array(replies)) if queued == "QUEUED" => {
                assert_eq!(replies.len(), 1, "{request:?} got {replies:?}");
                &replies[0]
            }
            (Value::Error(_), Value::Error(aborted)) if aborted.starts_with("EXECABORT") => &queued,
            other => panic!("{request:?} got {other:?}"),
        };
        let ran = matches!(done, Value::Array(_));
        RAN.count(ran);
        SUCCEEDED.count(ran && !reply.is_error());
        check_errors(reply, request);
    }
}

/// An error is one line of plain text, and does not repeat what the client sent.
fn check_errors(reply: &Value, request: &[Vec<u8>]) {
    match reply {
        Value::Array(replies) => replies
            .iter()
            .for_each(|reply| check_errors(reply, request)),
        Value::Error(text) => {
            assert!(!text.starts_with("LOCKFAILED"), "{request:?} got {text:?}");
            // The error of LOCK.GUARD may be that of the inner command.
            if request[0] != b"LOCK.GUARD" {
                let is_plain = text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
                let is_own = is_plain && !repeats_a_long_word(text);
                assert!(is_own, "{request:?} got {text:?}");
            }
        }
        _ => {}
    }
}

/// Whether an error has a long word of one repeated byte, as only a request has.
///
/// A comparison with all words would fail by chance: libFuzzer learns what is compared.
fn repeats_a_long_word(error: &str) -> bool {
    let mut runs = error.as_bytes().chunk_by(|one, next| one == next);
    runs.any(|run| run.len() >= 8)
}

fuzz_target!(|requests: Vec<Request<'_>>| {
    TARGET.with_borrow_mut(|target| {
        let target = target.get_or_insert_with(Target::start);
        let requests: Vec<_> = requests.iter().take(20).map(Request::words).collect();
        let mut sent = Vec::new();
        for request in &requests {
            // In a transaction BLOCK does not wait. Each request has its own, because the server
            // runs nothing of a transaction with a wrong number of arguments in it.
            sent.extend(encode(&["MULTI"]));
            sent.extend(encode(request));
            sent.extend(encode(&["EXEC"]));
        }
        sent.extend(encode(&["LOCK.INFO", "bystander", "me"]));
        // Every key is a word of its request: nothing is left.
        let mut delete = vec![b"DEL".to_vec(), b"a".to_vec()];
        delete.extend(requests.iter().flatten().cloned());
        sent.extend(encode(&delete));
        sent.extend(encode(&["LOCK.INFO", "bystander", "me"]));
        target.c.try_send_raw(&sent).expect("the server is there");
        for request in &requests {
            target.check(request);
        }
        let held = target.receive();
        let forced = requests.iter().any(|request| names_bystander(request));
        assert!(
            forced || held != Value::Null,
            "the bystander was released by {requests:?}"
        );
        target.receive();
        if target.receive() == Value::Null {
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
