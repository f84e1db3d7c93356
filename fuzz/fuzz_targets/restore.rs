//! Any bytes behind RESTORE on a live server: an error that changes nothing, or a lock that every
//! command handles. The checksum and the id of the type are made right, so that the bytes reach
//! the module. Most are cut into strings as the module does it, some into any fields, and those are
//! refused.
//!
//! The module catches its panics: one while it loads looks like any other refused payload. So
//! LOCK.NODE must report no failure after each input.
#![no_main]

#[path = "../share.rs"]
mod share;

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use redislock_core::time::{LeaseTime, Micros};
use redislock_core::wire::{load, strings};
use redislock_testkit::{Connection, Server, Value, encode, granted};
use share::Share;

struct Target {
    // Ends with the program: the guard stops it.
    server: Server,
    c: Connection,
    /// A payload that the server made: its type comes first, its version last.
    dump: Vec<u8>,
}

thread_local! {
    static TARGET: RefCell<Option<Target>> = const { RefCell::new(None) };
}

/// One in 25 of the first 10,000, more later.
static ACCEPTED: Share = Share::new("payloads accepted", 60);
/// A third at first, and a fifth of the first 90,000.
static WRONGLY_CUT: Share = Share::new("payloads cut as the module never does it", 50);

/// An input that begins with a byte from here on says how it is cut: no saved lock begins so.
const CUT: u8 = 0x80;

/// A field of a module's value.
#[derive(Debug, PartialEq, Eq)]
enum Field<'a> {
    String(&'a [u8]),
    /// An opcode and what follows it.
    Other(&'static [u8]),
}

/// Fields that a lock does not have: both kinds of integer, a float and a double.
const OTHERS: [&[u8]; 4] = [
    &[1, 7],
    &[2, 7],
    &[3, 0, 0, 0, 0],
    &[4, 0, 0, 0, 0, 0, 0, 0, 0],
];

/// The fields in which the module saves a lock.
fn as_saved(saved: &[u8]) -> Vec<Field<'_>> {
    let (first, second) = strings(saved);
    let second = Some(second).filter(|second| !second.is_empty());
    [first]
        .into_iter()
        .chain(second)
        .map(Field::String)
        .collect()
}

/// The fields of an input. One that says how it is cut has their number in its first byte, then two
/// bytes for each of them: its kind and, of a string, the length.
fn fields(input: &[u8]) -> Vec<Field<'_>> {
    let Some((first, rest)) = input.split_first().filter(|(first, _)| **first >= CUT) else {
        return as_saved(input);
    };
    let kinds = usize::from(first % 4) * 2;
    let (kinds, mut rest) = rest.split_at(kinds.min(rest.len()));
    let (kinds, _) = kinds.as_chunks::<2>();
    let field = |[kind, length]: &[u8; 2]| {
        let Some(other) = usize::from(kind % 8).checked_sub(4) else {
            let string;
            (string, rest) = rest.split_at(usize::from(*length).min(rest.len()));
            return Field::String(string);
        };
        Field::Other(OTHERS[other])
    };
    kinds.iter().map(field).collect()
}

impl Target {
    fn start() -> Self {
        let server = Server::options()
            .end_with_this_process()
            .config("sanitize-dump-payload yes")
            .start();
        let mut c = server.connect();
        granted(&c.call("LOCK.ACQUIRE bystander me 86400000 OWNER label"));
        let dump = c.call("DUMP bystander").bytes().to_vec();
        Self { server, c, dump }
    }

    /// The type, the fields, the end; version and checksum.
    fn payload(&self, fields: &[Field<'_>]) -> Vec<u8> {
        let mut payload = self.dump[..10].to_vec();
        for field in fields {
            match field {
                Field::String(bytes) => put_string(bytes, &mut payload),
                Field::Other(bytes) => payload.extend(*bytes),
            }
        }
        payload.push(0);
        payload.extend(&self.dump[self.dump.len() - 10..self.dump.len() - 8]);
        let crc = crc64(&payload);
        payload.extend(crc.to_le_bytes());
        payload
    }
}

/// 5 is the opcode of a string in a module's value, and 0x80 a length of 32 bits.
fn put_string(bytes: &[u8], payload: &mut Vec<u8>) {
    payload.extend([5, 0x80]);
    payload.extend((bytes.len() as u32).to_be_bytes());
    payload.extend(bytes);
}

/// CRC-64/Jones, as the server puts it at the end of a DUMP.
fn crc64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0u64, |crc, byte| {
        (0..8).fold(crc ^ u64::from(*byte), |crc, _| {
            if crc & 1 == 1 {
                (crc >> 1) ^ 0x95ac_9329_ac4b_c9b5
            } else {
                crc >> 1
            }
        })
    })
}

/// What a lock that was accepted must handle. Where the second word is true, the reply is no error,
/// whatever the lock is.
const LINES: [(&str, bool); 14] = [
    ("TYPE victim", true),
    ("LOCK.INFO victim", true),
    ("LOCK.INFO victim me", true),
    ("DUMP victim", true),
    ("LOCK.EXTEND victim me 1000", false),
    ("LOCK.ACQUIRE victim me 1000", false),
    ("LOCK.ACQUIRE victim you 1000 SHARED", false),
    ("LOCK.RELEASE victim me", true),
    ("MEMORY USAGE victim", true),
    ("LOCK.FORCE victim", true),
    ("LOCK.ACQUIRE victim * 1000", true),
    ("DEL victim", true),
    ("LOCK.INFO bystander me", true),
    ("LOCK.NODE", true),
];

fuzz_target!(|input: &[u8]| {
    TARGET.with_borrow_mut(|target| {
        let target = target.get_or_insert_with(Target::start);
        let fields = fields(input);
        let strings = fields.iter().filter_map(|field| match field {
            Field::String(bytes) => Some(*bytes),
            Field::Other(_) => None,
        });
        let saved = strings.collect::<Vec<_>>().concat();
        let is_wrongly_cut = fields != as_saved(&saved);
        let payload = target.payload(&fields);
        let mut sent = encode(&[b"RESTORE", &b"victim"[..], b"0", &payload]);
        for (line, _) in LINES {
            sent.extend(encode(&line.split(' ').collect::<Vec<_>>()));
        }
        target.c.try_send_raw(&sent).expect("the server is there");
        let mut receive = || target.c.try_receive().expect("the server replies");
        let restored = receive();
        let replies = LINES.map(|(line, _)| (line, receive()));
        let reply = |line: &str| &replies.iter().find(|it| it.0 == line).expect("a line").1;
        assert_eq!(
            reply("LOCK.NODE").number("failed"),
            0,
            "an internal error: RESTORE got {restored:?}, then {replies:?}"
        );
        for ((line, reply), (_, is_served)) in replies.iter().zip(LINES) {
            let is_refused = is_served && reply.is_error();
            assert!(!is_refused && !is_internal(reply), "{line} got {reply:?}");
        }
        assert!(
            !is_wrongly_cut || restored.is_error(),
            "accepted {fields:?}"
        );
        if restored.is_error() {
            // The server's own words for a payload that the module refuses: it got that far.
            assert_eq!(restored.error(), "ERR Bad data format");
            assert_eq!(
                *reply("TYPE victim"),
                Value::Status("none".into()),
                "an error changes nothing"
            );
        } else if is_lasting(&saved) {
            assert_eq!(
                *reply("TYPE victim"),
                Value::Status("redislock".into()),
                "a lock was restored"
            );
            for line in ["LOCK.INFO victim", "DUMP victim"] {
                assert_ne!(*reply(line), Value::Null, "{line}: a restored lock is held");
            }
        }
        let [_, fence] = reply("LOCK.ACQUIRE victim * 1000").items() else {
            panic!("a free lock was not granted");
        };
        granted(fence);
        assert_eq!(*reply("DEL victim"), Value::Integer(1));
        assert_ne!(
            *reply("LOCK.INFO bystander me"),
            Value::Null,
            "the bystander is still held"
        );
        ACCEPTED.count(!restored.is_error());
        WRONGLY_CUT.count(is_wrongly_cut);
        assert!(target.server.is_alive());
    });
});

/// Whether a saved lock is still held when LOCK.INFO and DUMP run.
fn is_lasting(saved: &[u8]) -> bool {
    let now = LeaseTime(1 << 40);
    let lock = load(saved, now).ok();
    lock.is_some_and(|lock| lock.holds().any(|hold| hold.left(now) > Micros(60_000_000)))
}

/// A reply of a module that has failed.
fn is_internal(reply: &Value) -> bool {
    matches!(reply, Value::Error(text) if text.starts_with("LOCKFAILED"))
}
