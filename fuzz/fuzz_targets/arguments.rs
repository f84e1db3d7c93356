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

/// Requests that the server passed to the module, and those of them that got no error: half and a
/// quarter of the first 1,000, more later.
static RAN: Share = Share::new("requests that ran", 4);
static SUCCEEDED: Share = Share::new("requests that succeeded", 10);
/// A module that grants nothing still serves those that only read. One in 8 of the first 5,000, and
/// one in 38; more later.
static ACQUIRED: Share = Share::new("inputs with a granted LOCK.ACQUIRE", 30);
static MACQUIRED: Share = Share::new("inputs with a granted LOCK.MACQUIRE", 100);

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

/// What a command needs before its options: few inputs would have it by chance, and hardly any the
/// keys of LOCK.MACQUIRE.
fn well_begun<'a>(command: &str, [key, other]: [&'a str; 2]) -> Vec<&'a str> {
    match command {
        "LOCK.ACQUIRE" | "LOCK.EXTEND" => vec![key, "me", "1000"],
        "LOCK.RELEASE" | "LOCK.GUARD" => vec![key, "me"],
        "LOCK.MACQUIRE" | "LOCK.MEXTEND" => vec!["2", key, other, "me", "1000"],
        "LOCK.MRELEASE" => vec!["2", key, other, "me"],
        _ => vec![key],
    }
}

impl Request<'_> {
    fn words(&self) -> Vec<Vec<u8>> {
        let command = COMMANDS[usize::from(self.command) % COMMANDS.len()];
        let mut all = vec![command.as_bytes().to_vec()];
        // The keys are the first words.
        let keys = [0, 1].map(|next| WORDS[usize::from(self.key % 3 + next) % 3]);
        let (begin, options) = match self.key {
            0..100 => (well_begun(command, keys), usize::from(self.key / 3 % 4)),
            100..200 => (vec![keys[0]], 40),
            200.. => (vec![], 40),
        };
        all.extend(begin.into_iter().map(|word| word.as_bytes().to_vec()));
        // Nobody may wait forever here, nor touch the bystander.
        for word in self.words.iter().take(options) {
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
        let server = Server::options().end_with_this_process().start();
        let mut c = server.connect();
        granted(&c.call("LOCK.ACQUIRE bystander me 86400000"));
        Self { server, c }
    }

    fn receive(&mut self) -> Value {
        self.c.try_receive().expect("the server replies")
    }

    /// Checks the replies to a request in its transaction. Returns the reply of the module.
    fn check(&mut self, request: &[Vec<u8>]) -> Value {
        assert_eq!(self.receive(), Value::Status("OK".into()));
        let (queued, done) = (self.receive(), self.receive());
        let (ran, reply) = match (queued, done) {
            (Value::Status(queued), Value::Array(mut replies)) if queued == "QUEUED" => {
                assert_eq!(replies.len(), 1, "{request:?} got {replies:?}");
                (true, replies.remove(0))
            }
            (queued @ Value::Error(_), Value::Error(aborted))
                if aborted.starts_with("EXECABORT") =>
            {
                (false, queued)
            }
            other => panic!("{request:?} got {other:?}"),
        };
        RAN.count(ran);
        SUCCEEDED.count(ran && !reply.is_error());
        check_errors(&reply, request);
        reply
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
        let (mut acquired, mut macquired) = (false, false);
        for request in &requests {
            let is_grant = matches!(target.check(request), Value::Integer(_) | Value::Array(_));
            acquired |= is_grant && request[0] == b"LOCK.ACQUIRE";
            macquired |= is_grant && request[0] == b"LOCK.MACQUIRE";
        }
        ACQUIRED.count(acquired);
        MACQUIRED.count(macquired);
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
