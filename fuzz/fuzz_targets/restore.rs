//! Any bytes behind RESTORE on a live server: an error that changes nothing, or a lock that every
//! command handles. The checksum and the id of the type are made right, so that the bytes reach
//! the module.
#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use redislock_core::wire::strings;
use redislock_testkit::{Connection, Server, Value, encode, granted};

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

impl Target {
    fn start() -> Self {
        let server = Server::options()
            .config("sanitize-dump-payload yes")
            .start();
        let mut c = server.connect();
        granted(&c.call("LOCK.ACQUIRE bystander me 86400000 OWNER label"));
        let dump = c.call("DUMP bystander").bytes().to_vec();
        Self { server, c, dump }
    }

    /// The type, the bytes as the strings that they are saved as, the end; version and checksum.
    fn payload(&self, bytes: &[u8]) -> Vec<u8> {
        let mut payload = self.dump[..10].to_vec();
        let (first, second) = strings(bytes);
        put_string(first, &mut payload);
        if !second.is_empty() {
            put_string(second, &mut payload);
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

const LINES: [&str; 13] = [
    "TYPE victim",
    "LOCK.INFO victim",
    "LOCK.INFO victim me",
    "DUMP victim",
    "LOCK.EXTEND victim me 1000",
    "LOCK.ACQUIRE victim me 1000",
    "LOCK.ACQUIRE victim you 1000 SHARED",
    "LOCK.RELEASE victim me",
    "MEMORY USAGE victim",
    "LOCK.FORCE victim",
    "LOCK.ACQUIRE victim * 1000",
    "DEL victim",
    "LOCK.INFO bystander me",
];

fuzz_target!(|bytes: &[u8]| {
    TARGET.with_borrow_mut(|target| {
        let target = target.get_or_insert_with(Target::start);
        let payload = target.payload(bytes);
        let mut sent = encode(&[b"RESTORE", &b"victim"[..], b"0", &payload]);
        for line in LINES {
            sent.extend(encode(&line.split(' ').collect::<Vec<_>>()));
        }
        target.c.try_send_raw(&sent).expect("the server is there");
        let replies: Vec<Value> = (0..=LINES.len())
            .map(|_| target.c.try_receive().expect("the server replies"))
            .collect();
        if replies[0].is_error() {
            assert_eq!(
                replies[1],
                Value::Status("none".into()),
                "an error changes nothing"
            );
        } else {
            assert_eq!(replies[1], Value::Status("redislock".into()));
            assert!(
                !replies[4].is_error(),
                "a lock can be saved: {:?}",
                replies[4]
            );
        }
        assert_ne!(replies[13], Value::Null, "the bystander is still held");
        assert!(target.server.is_alive());
    });
});
