//! Input made to harm: payloads with any byte changed, random bytes to every command, forged
//! effects.

use redislock_testkit::lock::{all_locks, arrange};
use redislock_testkit::{Connection, Random, Server, Value, encode, granted};

/// CRC-64/Jones, as the server puts it at the end of a DUMP.
fn crc64(bytes: &[u8]) -> u64 {
    let mut crc = 0u64;
    for byte in bytes {
        crc ^= u64::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 {
                (crc >> 1) ^ 0x95ac_9329_ac4b_c9b5
            } else {
                crc >> 1
            };
        }
    }
    crc
}

/// The value part of a DUMP: without the RDB version and the checksum behind it.
fn value_of(dump: &[u8]) -> &[u8] {
    &dump[..dump.len() - 10]
}

/// Puts version and checksum behind a value.
fn payload(value: &[u8], dump: &[u8]) -> Vec<u8> {
    let mut payload = value.to_vec();
    payload.extend_from_slice(&dump[dump.len() - 10..dump.len() - 8]);
    let crc = crc64(&payload);
    payload.extend_from_slice(&crc.to_le_bytes());
    payload
}

/// A type byte and a module's id of nine bytes come first; from there on it is the module's own.
const OURS: usize = 10;

struct Target {
    server: Server,
    c: Connection,
}

impl Target {
    fn start() -> Target {
        // Without the check of payloads, other types that a changed byte may name could harm the
        // server itself.
        let server = Server::options()
            .config("sanitize-dump-payload yes")
            .start();
        let mut c = server.connect();
        granted(&c.call("LOCK.ACQUIRE bystander me 86400000 OWNER label"));
        Target { server, c }
    }

    /// An error and nothing changed, or a lock that all commands handle.
    fn feed(&mut self, value: &[u8], dump: &[u8]) {
        let shown = || value.escape_ascii().to_string();
        let payload = payload(value, dump);
        let mut bytes = encode(&[b"RESTORE", &b"victim"[..], b"0", &payload]);
        let lines = [
            "TYPE victim",
            "LOCK.INFO victim",
            "LOCK.INFO victim me",
            "DUMP victim",
            "LOCK.EXTEND victim me 1000",
            "LOCK.ACQUIRE victim me 1000",
            "LOCK.ACQUIRE victim you 1000 SHARED",
            "LOCK.RELEASE victim me",
            "MEMORY USAGE victim",
            "DEBUG DIGEST-VALUE victim",
            "LOCK.FORCE victim",
            "LOCK.ACQUIRE victim * 1000",
            "DEL victim",
            "EXISTS victim",
            "LOCK.INFO bystander me",
        ];
        for line in lines {
            bytes.extend_from_slice(&encode(&line.split(' ').collect::<Vec<_>>()));
        }
        if self.c.try_send_raw(&bytes).is_err() {
            panic!("the server is gone after {}", shown());
        }
        let mut replies = Vec::new();
        for line in ["RESTORE"].iter().chain(&lines) {
            match self.c.try_receive() {
                Ok(reply) => replies.push(reply),
                Err(error) => panic!("{line}: {error} after {}", shown()),
            }
        }
        if replies[0].is_error() {
            assert_eq!(replies[1], Value::Status("none".into()), "{}", shown());
        } else if replies[1] == Value::Status("redislock".into()) && replies[2] != Value::Null {
            assert!(!replies[2].is_error(), "{:?} of {}", replies[2], shown());
            let forced = matches!(replies[11], Value::Integer(1..) | Value::Null);
            assert!(forced, "{:?} of {}", replies[11], shown());
        }
        assert_eq!(replies[14], Value::Integer(0));
        assert_ne!(replies[15], Value::Null, "{}", shown());
    }

    fn end(mut self) {
        assert_eq!(self.c.call("LOCK.RELEASE bystander me"), Value::Integer(1));
        self.c.ok("FLUSHALL");
        assert_eq!(self.c.call("LOCK.NODE").number("locks"), 0);
        assert!(self.server.is_alive());
    }
}

/// The dumps of locks of several shapes.
fn dumps() -> Vec<Vec<u8>> {
    let server = Server::start();
    let mut c = server.connect();
    arrange(&mut c);
    ["plain", "uuid", "labelled", "capped", "shared", "semaphore"]
        .iter()
        .map(|key| c.call(&format!("DUMP {key}")).bytes().to_vec())
        .collect()
}

#[test]
fn the_checksum_of_these_tests_is_the_servers() {
    for dump in dumps() {
        assert_eq!(payload(value_of(&dump), &dump), dump);
        assert!(dump.len() > OURS);
    }
}

#[test]
fn a_payload_with_any_byte_changed_is_refused_or_a_valid_lock() {
    let mut target = Target::start();
    for dump in dumps() {
        let value = value_of(&dump);
        target.feed(value, &dump);
        for position in 1..value.len() {
            let old = value[position];
            let changes = [
                0,
                1,
                0x3f,
                0x40,
                0x7f,
                0x80,
                0xbf,
                0xc0,
                0xff,
                old ^ 1,
                old ^ 0x80,
                old.wrapping_add(1),
                old.wrapping_sub(1),
            ];
            for new in changes {
                if new != old {
                    let mut changed = value.to_vec();
                    changed[position] = new;
                    target.feed(&changed, &dump);
                }
            }
        }
    }
    target.end();
}

#[test]
fn a_payload_cut_short_or_made_longer_is_refused_or_a_valid_lock() {
    let mut target = Target::start();
    for dump in dumps() {
        let value = value_of(&dump);
        for length in 1..value.len() {
            target.feed(&value[..length], &dump);
        }
        for position in OURS..=value.len() {
            for byte in [0, 1, 0xff] {
                let mut longer = value.to_vec();
                longer.insert(position, byte);
                target.feed(&longer, &dump);
            }
            if position < value.len() {
                let mut shorter = value.to_vec();
                shorter.remove(position);
                target.feed(&shorter, &dump);
            }
        }
    }
    target.end();
}

#[test]
fn random_bytes_in_a_payload_are_refused_or_a_valid_lock() {
    let mut target = Target::start();
    let mut random = Random::seeded();
    for dump in dumps() {
        for _ in 0..300 {
            let mut value = value_of(&dump).to_vec();
            for _ in 0..=random.below(4) {
                let position = OURS + random.index(value.len() - OURS);
                value[position] = random.byte();
            }
            target.feed(&value, &dump);
        }
    }
    target.end();
}

#[test]
fn random_arguments_to_every_command_leave_the_server_alive() {
    let mut server = Server::start();
    let mut c = server.connect();
    c.ok("CLIENT NO-EVICT on");
    let mut random = Random::seeded();
    let commands = c.call("COMMAND LIST FILTERBY MODULE lock");
    let commands: Vec<Vec<u8>> = commands
        .items()
        .iter()
        .map(|name| name.bytes().to_vec())
        .collect();
    assert!(commands.len() >= 8, "{commands:?}");
    for _ in 0..300 {
        let mut bytes = Vec::new();
        let mut sent = Vec::new();
        for _ in 0..50 {
            let mut args = vec![commands[random.index(commands.len())].clone()];
            for _ in 0..random.below(8) {
                args.push(any_argument(&mut random));
            }
            // A wait without end would stop this one connection.
            if !args.iter().any(|arg| arg.eq_ignore_ascii_case(b"BLOCK")) {
                bytes.extend_from_slice(&encode(&args));
                sent.push(args);
            }
        }
        c.send_raw(&bytes);
        for args in sent {
            match c.try_receive() {
                Ok(Value::Error(error)) => {
                    assert!(error.is_ascii() && error.len() < 200, "{error}");
                }
                Ok(_) => {}
                Err(error) => {
                    let shown: Vec<String> = args
                        .iter()
                        .map(|arg| arg.escape_ascii().to_string())
                        .collect();
                    panic!("{error} at {shown:?}");
                }
            }
        }
    }
    assert!(server.is_alive());
    c.ok("FLUSHALL");
    granted(&c.call("LOCK.ACQUIRE job me 1000"));
}

fn any_argument(random: &mut Random) -> Vec<u8> {
    const WORDS: [&str; 22] = [
        "job",
        "me",
        "you",
        "*",
        "1",
        "1000",
        "0",
        "-1",
        "86400000",
        "ONCE",
        "FENCE",
        "MAXHOLD",
        "OWNER",
        "ALL",
        "SHARED",
        "LIMIT",
        "EPHEMERAL",
        "2",
        "9007199254740991",
        "18446744073709551615",
        "%s%n",
        "",
    ];
    match random.below(4) {
        0 => (0..random.below(20)).map(|_| random.byte()).collect(),
        1 if random.below(20) == 0 => vec![random.byte(); 100_000],
        _ => WORDS[random.index(WORDS.len())].as_bytes().to_vec(),
    }
}

#[test]
fn the_internal_command_is_refused_wherever_it_comes_from() {
    let master = Server::start();
    let replica = Server::options().replica_of(&master).start();
    let mut m = master.connect();
    granted(&m.call("LOCK.ACQUIRE job me 600000"));
    let before = all_locks(&mut m);
    let dump = m.call("DUMP job").bytes().to_vec();
    // The first two are well formed: the job is free, and a counter without a key.
    let effects = [
        &b"\x01\x01\0\x02\0\0"[..],
        b"\x01\x01\0",
        &dump,
        b"",
        b"\0",
        b"\x01",
    ];
    for server in [&master, &replica] {
        let mut c = server.connect();
        for effect in effects.into_iter().chain([&[0xff; 300][..]]) {
            assert!(c.call_args(&[b"LOCK._APPLY", effect, b"job"]).is_error());
            assert!(c.call_args(&[b"LOCK._APPLY", effect]).is_error());
            c.ok("MULTI");
            c.call_args(&[b"LOCK._APPLY", effect, b"job"]);
            let exec = c.call("EXEC");
            let refused = exec.is_error() || exec.items().iter().all(Value::is_error);
            assert!(refused, "{exec:?}");
            let script = "return redis.call('LOCK._APPLY', ARGV[1], KEYS[1])";
            assert!(
                c.call_args(&[b"EVAL", script.as_bytes(), b"1", b"job", effect])
                    .is_error()
            );
        }
    }
    assert_eq!(all_locks(&mut m), before);
}

#[test]
fn a_forged_effect_in_the_aof_does_not_crash_the_server() {
    let mut random = Random::seeded();
    let mut server = Server::options().appendonly("always").start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE job me 600000"));
    granted(&c.call("LOCK.ACQUIRE room one 600000 SHARED LIMIT 3"));
    server.kill();
    let aof = server.growing_aof();
    let mut forged = std::fs::read(&aof).expect("the AOF");
    for length in 0..200 {
        let mut effect: Vec<u8> = (0..length).map(|_| random.byte()).collect();
        // One of a newer version is refused before the server is up: compatibility.rs.
        effect
            .first_mut()
            .into_iter()
            .for_each(|version| *version = 1);
        forged.extend_from_slice(&encode(&[b"LOCK._APPLY", &effect[..], b"job"]));
        forged.extend_from_slice(&encode(&[b"LOCK._APPLY", &effect[..]]));
    }
    std::fs::write(&aof, forged).expect("the AOF is forged");
    server.start_again();
    let mut c = server.connect();
    c.ok("LOCK.INFO job");
    assert_ne!(c.call("LOCK.INFO room one"), Value::Null);
    assert_eq!(server.log().matches("the AOF is damaged").count(), 1);
}

/// What it saved then could not be loaded.
#[test]
fn a_forged_effect_cannot_put_more_holders_into_a_semaphore_than_it_has_permits() {
    let mut server = Server::options().appendonly("always").start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE room one 600000 SHARED LIMIT 2"));
    granted(&c.call("LOCK.ACQUIRE room two 600000 SHARED LIMIT 2"));
    server.kill();
    let aof = server.growing_aof();
    let mut forged = std::fs::read(&aof).expect("the AOF");
    // The effect that adds the second holder, once more for a third one.
    let effect = rfind(&forged, b"*3\r\n");
    let mut third = forged[effect..].to_vec();
    let token = rfind(&third, b"\x03two");
    third[token..token + 4].copy_from_slice(b"\x03six");
    forged.extend_from_slice(&third);
    std::fs::write(&aof, forged).expect("the AOF is forged");
    server.start_again();
    let mut c = server.connect();
    let holders = |c: &mut Connection| c.call("LOCK.INFO room").field("holders").items().len();
    assert_eq!(holders(&mut c), 2);
    assert_eq!(server.log().matches("the AOF is damaged").count(), 1);
    c.ok("DEBUG RELOAD");
    assert_eq!(holders(&mut c), 2);
}

/// Where these bytes are for the last time.
fn rfind(bytes: &[u8], wanted: &[u8]) -> usize {
    let mut windows = bytes.windows(wanted.len());
    windows
        .rposition(|window| window == wanted)
        .expect("the bytes")
}

#[test]
fn format_characters_reach_neither_log_nor_reply() {
    let mut server = Server::start();
    let mut c = server.connect();
    for line in [
        "LOCK.ACQUIRE %s%n%s%n %s%n%s%n 1000 OWNER %s%n%x",
        "LOCK.ACQUIRE %s%n%s%n %s%n%s%n %s%n",
        "LOCK.ACQUIRE job me 1000 %s%n%s%n",
        "LOCK.INFO %s%n%s%n",
        "LOCK._APPLY %s%n%s%n %s%n",
        // It is logged with the key and the label.
        "LOCK.FORCE %s%n%s%n",
    ] {
        let reply = c.call(line);
        assert!(!matches!(reply, Value::Error(error) if error.contains('%')));
    }
    assert!(server.log().contains("\"%s%n%s%n\""), "as it came");
    assert!(server.log().contains("\"%s%n%x\""), "as it came");
    assert!(server.is_alive());
}
