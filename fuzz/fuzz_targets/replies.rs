//! Any bytes as the replies of nodes: the client never panics, never waits without end, and never
//! says that it holds a lock that no majority of the nodes can have granted.
#![no_main]

#[path = "../share.rs"]
mod share;

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::{Rc, Weak};
use std::time::Duration;

use arbitrary::{Arbitrary, Unstructured};
use libfuzzer_sys::fuzz_target;
use redislock_client::Redlock;
use redislock_client::simulation::{self, Flaw, Host, Stream, Task};
use share::Share;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::Instant;

/// Three quarters of the first 2,000, two thirds later.
static ACQUIRED: Share = Share::new("attempts that acquired the lock", 4);

/// What a node says to a request.
#[derive(Debug)]
enum Answer<'a> {
    /// What a node would say.
    Proper {
        fence: u32,
    },
    Null,
    Error {
        code: u8,
        text: &'a [u8],
    },
    /// LOCK.NODE or LOCK.INFO with other fields.
    Map {
        three: bool,
        fields: Vec<(u8, Field<'a>)>,
    },
    Array(Vec<i64>),
    Raw(&'a [u8]),
    Close,
}

#[derive(Arbitrary, Debug)]
enum Field<'a> {
    Number(i64),
    Text(&'a [u8]),
    Empty,
}

const NAMES: [&str; 14] = [
    "version",
    "incarnation",
    "role",
    "quarantine",
    "durable",
    "fence",
    "locks",
    "waiters",
    "max-ttl",
    "time",
    "warnings",
    "failed",
    "mode",
    "holders",
];
const CODES: [&str; 8] = [
    "ERR",
    "QUARANTINE",
    "WRONGTYPE",
    "READONLY",
    "LOCKFENCE",
    "LOCKLIMIT",
    "UNBLOCKED",
    "MOVED",
];

fn has(request: &[u8], word: &str) -> bool {
    request
        .windows(word.len())
        .any(|part| part == word.as_bytes())
}

fn asks_for_lock(request: &[u8]) -> bool {
    let commands = ["LOCK.ACQUIRE", "LOCK.MACQUIRE", "LOCK.EXTEND"];
    commands.iter().any(|command| has(request, command))
}

impl<'a> Answer<'a> {
    /// The first byte selects the kind, so that short inputs can have all of them.
    fn of(input: &'a [u8]) -> Self {
        let (kind, rest) = input.split_first().unwrap_or((&0, &[]));
        let mut left = Unstructured::new(rest);
        match kind % 8 {
            0 | 1 => Self::Proper {
                fence: left.arbitrary().unwrap_or_default(),
            },
            2 => Self::Null,
            3 => Self::Error {
                code: rest.first().copied().unwrap_or_default(),
                text: rest,
            },
            4 => Self::Map {
                three: left.arbitrary().unwrap_or_default(),
                fields: left.arbitrary().unwrap_or_default(),
            },
            5 => Self::Array(left.arbitrary().unwrap_or_default()),
            6 => Self::Raw(rest),
            _ => Self::Close,
        }
    }

    fn bytes(&self, request: &[u8], node: &str) -> Option<Vec<u8>> {
        let has = |word| has(request, word);
        Some(match self {
            Self::Proper { .. } if has("LOCK.NODE") => proper_node(node),
            Self::Proper { .. } if has("HELLO") || has("CLIENT") => b"+OK\r\n".to_vec(),
            Self::Proper { fence } => format!(":{}\r\n", u64::from(*fence) + 1).into_bytes(),
            Self::Null => b"$-1\r\n".to_vec(),
            Self::Error { code, text } => {
                let mut line = format!("-{} ", CODES[usize::from(*code) % 8]).into_bytes();
                line.extend(text.iter().filter(|byte| !b"\r\n".contains(byte)));
                line.extend(b"\r\n");
                line
            }
            Self::Map { three, fields } => map(*three, fields),
            Self::Array(numbers) => {
                let mut all = format!("*{}\r\n", numbers.len());
                numbers
                    .iter()
                    .for_each(|number| all += &format!(":{number}\r\n"));
                all.into_bytes()
            }
            Self::Raw(bytes) => bytes.to_vec(),
            Self::Close => return None,
        })
    }
}

fn map(three: bool, fields: &[(u8, Field<'_>)]) -> Vec<u8> {
    let (sign, count) = if three {
        ('%', fields.len())
    } else {
        ('*', fields.len() * 2)
    };
    let mut all = format!("{sign}{count}\r\n").into_bytes();
    for (name, field) in fields {
        let name = NAMES[usize::from(*name) % NAMES.len()];
        all.extend(format!("${}\r\n{name}\r\n", name.len()).into_bytes());
        match field {
            Field::Number(number) => all.extend(format!(":{number}\r\n").into_bytes()),
            Field::Text(text) => {
                all.extend(format!("${}\r\n", text.len()).into_bytes());
                all.extend(*text);
                all.extend(b"\r\n");
            }
            Field::Empty => all.extend(b"*0\r\n"),
        }
    }
    all
}

fn proper_node(address: &str) -> Vec<u8> {
    let incarnation = format!("${}\r\n{address}", address.len());
    let fields = [
        ("version", "$5\r\n0.2.0"),
        ("incarnation", incarnation.as_str()),
        ("role", "$6\r\nmaster"),
        ("quarantine", ":0"),
        ("durable", ":1"),
        ("fence", ":7"),
        ("locks", ":0"),
        ("waiters", ":0"),
        ("max-ttl", ":604800000"),
        ("time", ":7"),
        ("warnings", "*0"),
        ("failed", ":0"),
        ("replicas-needed", ":0"),
        ("replicas-counted", ":0"),
    ];
    let mut all = format!("*{}\r\n", fields.len() * 2);
    for (name, value) in fields {
        all += &format!("${}\r\n{name}\r\n{value}\r\n", name.len());
    }
    all.into_bytes()
}

/// A machine whose time passes when nothing else happens.
struct Machine {
    began: Instant,
    random: RefCell<u8>,
    /// The answers that are left, the next one last: to the requests with which a connection
    /// begins, and to those about the lock.
    answers: Answers,
    /// The nodes whose reply to a request for the lock can have been a grant.
    granting: Nodes,
    /// Itself, for the tasks that it runs.
    own: Weak<Machine>,
}

type Answers = Rc<RefCell<[Vec<Vec<u8>>; 2]>>;
type Nodes = Rc<RefCell<HashSet<String>>>;

impl Host for Machine {
    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn random(&self) -> [u8; 16] {
        let mut next = self.random.borrow_mut();
        *next = next.wrapping_add(1);
        [*next; 16]
    }

    fn spawn(&self, task: Task<()>) {
        if let Some(own) = self.own.upgrade() {
            spawn_local(async move { on(&own, task).await });
        }
    }

    fn connect(&self, address: &str) -> Task<std::io::Result<Box<dyn Stream>>> {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let answers = Rc::clone(&self.answers);
        let granting = Rc::clone(&self.granting);
        spawn_local(serve(theirs, address.to_owned(), answers, granting));
        Box::pin(async move { Ok(Box::new(ours) as Box<dyn Stream>) })
    }

    fn has(&self, _: Flaw) -> bool {
        false
    }
}

/// Answers each request with what is next, and properly when nothing is left.
async fn serve(mut stream: DuplexStream, node: String, answers: Answers, granting: Nodes) {
    let mut packet = vec![0; 4096];
    // Raw bytes can be part of a reply or several: then any reply may belong to any later request.
    let mut out_of_step = false;
    while let Ok(length @ 1..) = stream.read(&mut packet).await {
        for request in requests(&packet[..length]) {
            let about_lock = usize::from(has(request, "LOCK.") && !has(request, "LOCK.NODE"));
            let next = answers.borrow_mut()[about_lock].pop().unwrap_or_default();
            let next = Answer::of(&next);
            out_of_step |= matches!(next, Answer::Raw(_));
            // For one key, only a number is a grant.
            let can_grant = out_of_step || matches!(next, Answer::Proper { .. });
            if can_grant && asks_for_lock(request) {
                granting.borrow_mut().insert(node.clone());
            }
            match next.bytes(request, &node) {
                Some(bytes) if stream.write_all(&bytes).await.is_ok() => {}
                _ => return,
            }
        }
    }
}

/// The requests of a packet: each begins with the number of its words.
fn requests(packet: &[u8]) -> Vec<&[u8]> {
    let begins = |at: &usize| packet[*at] == b'*' && (*at == 0 || packet[at - 1] == b'\n');
    let starts: Vec<_> = (0..packet.len()).filter(begins).collect();
    let ends = starts.iter().skip(1).copied().chain([packet.len()]);
    starts
        .iter()
        .zip(ends)
        .map(|(start, end)| &packet[*start..end])
        .collect()
}

/// Separates the answers in the input.
const SEPARATOR: u8 = 0xff;

fuzz_target!(|input: &[u8]| {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    let answers = input.split(|byte| *byte == SEPARATOR).take(64);
    let mut answers: Vec<_> = answers.map(<[u8]>::to_vec).collect();
    answers.reverse();
    // Separate, so that an answer about the lock does not need a dozen proper ones before it.
    let begins = |answer: &Vec<u8>| answer.first().is_some_and(|kind| kind & 8 != 0);
    let (begin, lock) = answers.into_iter().partition(begins);
    LocalSet::new().block_on(&runtime, async {
        let machine = Rc::new_cyclic(|own| Machine {
            began: Instant::now(),
            random: RefCell::new(0),
            answers: Rc::new(RefCell::new([begin, lock])),
            granting: Nodes::default(),
            own: Weak::clone(own),
        });
        use_client(machine).await;
    });
});

/// Runs a future on the machine.
async fn on<T>(machine: &Rc<Machine>, future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|context| {
        simulation::on(Rc::clone(machine) as Rc<dyn Host>, || {
            future.as_mut().poll(context)
        })
    })
    .await
}

async fn use_client(machine: Rc<Machine>) {
    let attempt = async {
        let redlock = Redlock::builder()
            .nodes([
                "redis://127.0.0.1:7000",
                "redis://127.0.0.1:7001",
                "redis://127.0.0.1:7002",
            ])
            .connect_lazy()
            .expect("the addresses are fine");
        let lock = redlock.lock("k");
        let acquired = lock.try_acquire().await;
        ACQUIRED.count(acquired.is_ok());
        if let Ok(guard) = acquired {
            assert!(guard.fence() > 0, "a fence that no node can have given");
            let granting = machine.granting.borrow().len();
            assert!(
                granting >= 2,
                "held, but {granting} of 3 nodes can have granted"
            );
            let _ = guard.extend().await;
            let _ = guard.release().await;
        }
    };
    let limit = Duration::from_secs(600);
    let ended = tokio::time::timeout(limit, on(&machine, attempt)).await;
    assert!(ended.is_ok(), "an attempt lasts longer than ten minutes");
}
