//! The commands of a simulated server: the LOCK commands, which the real core decides, and those of
//! the server that the client sends. Everything else is refused.

use redislock_core::fence::FenceError;
use redislock_core::lock::{Mode, Refusal, Terms};
use redislock_core::queue::WaiterId;
use redislock_core::table::{Answer, Denial, Extended, Granted, Verdict};
use redislock_core::time::{Micros, Millis, Wait};
use redislock_core::token::{Key, Token};

use super::clock::Time;
use super::network::ConnectionId;
use super::node::{Memory, Node};
use super::resp::Reply;

/// The result of a command.
#[derive(Debug)]
pub enum Done {
    Reply(Reply),
    /// It waits; its reply is an array if it names several locks.
    Waits(WaiterId, bool),
}

/// Why a command is refused: the text of the error.
type Refused = String;

/// Runs one command.
pub fn run(node: &mut Node, connection: ConnectionId, args: &[Vec<u8>], time: Time) -> Done {
    let args = Args { args, at: 1 };
    let name = args.args.first().map(|name| name.to_ascii_uppercase());
    let done = match name.as_deref().unwrap_or_default() {
        b"LOCK.ACQUIRE" => acquire(node, connection, args, false, time),
        b"LOCK.MACQUIRE" => acquire(node, connection, args, true, time),
        b"LOCK.RELEASE" => release(node, args, false, time).map(Done::Reply),
        b"LOCK.MRELEASE" => release(node, args, true, time).map(Done::Reply),
        b"LOCK.EXTEND" => extend(node, connection, args, false, time).map(Done::Reply),
        b"LOCK.MEXTEND" => extend(node, connection, args, true, time).map(Done::Reply),
        b"LOCK.NODE" => Ok(Done::Reply(about_node(node, time))),
        b"LOCK.INFO" => about_lock(node, args, time).map(Done::Reply),
        b"HELLO" => Ok(Done::Reply(hello(node, connection, args))),
        b"CLIENT" | b"AUTH" | b"SELECT" | b"PING" => Ok(Done::Reply(Reply::Ok)),
        _ => Err("ERR unknown command".to_owned()),
    };
    done.unwrap_or_else(|refused| Done::Reply(Reply::Error(refused)))
}

/// The arguments behind the name, read from left to right.
struct Args<'a> {
    args: &'a [Vec<u8>],
    at: usize,
}

impl<'a> Args<'a> {
    fn next(&mut self) -> Result<&'a [u8], Refused> {
        let arg = self.args.get(self.at);
        self.at += 1;
        arg.map(Vec::as_slice)
            .ok_or_else(|| "ERR wrong number of arguments".to_owned())
    }

    fn is_empty(&self) -> bool {
        self.at >= self.args.len()
    }

    fn number(&mut self) -> Result<u64, Refused> {
        let text = std::str::from_utf8(self.next()?).ok();
        let number = text.and_then(|text| text.parse().ok());
        number.ok_or_else(|| "ERR value is not an integer or out of range".to_owned())
    }

    /// One key, or a count and this many keys.
    fn keys(&mut self, several: bool) -> Result<Vec<Key>, Refused> {
        let count = if several { self.number()? } else { 1 };
        (0..count).map(|_| Ok(Key::new(0, self.next()?))).collect()
    }

    fn token(&mut self) -> Result<Token, Refused> {
        Token::new(self.next()?).ok_or_else(|| "ERR no token".to_owned())
    }

    fn ttl(&mut self, node: &Node) -> Result<Micros, Refused> {
        let millis = self.number()?;
        if millis == 0 || millis > longest_lease(node) {
            return Err("LOCKLIMIT ttl-ms is above lock.max-ttl".to_owned());
        }
        Ok(Millis(millis).to_micros())
    }
}

/// The longest lease that may be requested, ms.
fn longest_lease(node: &Node) -> u64 {
    match node.setup.quarantine {
        0 => node.setup.max_ttl,
        quarantine => node.setup.max_ttl.min(quarantine),
    }
}

fn acquire(
    node: &mut Node,
    connection: ConnectionId,
    mut args: Args<'_>,
    several: bool,
    time: Time,
) -> Result<Done, Refused> {
    let keys = args.keys(several)?;
    let mut terms = Terms {
        connection: Some(connection.name()),
        ..Terms::exclusive(args.token()?, args.ttl(node)?)
    };
    let (mut block, mut shared, mut limit) = (None, false, None);
    while !args.is_empty() {
        match args.next()? {
            b"ONCE" => terms.once = true,
            b"SHARED" => shared = true,
            b"EPHEMERAL" => terms.ephemeral = true,
            b"FENCE" => terms.fence = Some(args.number()?),
            b"BLOCK" => block = Some(args.number()?),
            b"LIMIT" => limit = u32::try_from(args.number()?).ok(),
            b"MAXHOLD" => terms.max_hold = Some(Millis(args.number()?)),
            b"OWNER" => terms.owner = Some(Box::from(args.next()?)),
            _ => return Err("ERR unknown option".to_owned()),
        }
    }
    if shared {
        terms.mode = Mode::Shared { limit };
    }
    let now = node.now(time);
    let wait = match block {
        None => Wait::No,
        Some(0) => Wait::Forever,
        Some(millis) => Wait::Until(now.mono.plus(Millis(millis).to_micros())),
    };
    let wanted: Vec<_> = keys.iter().map(|key| node.keys.wanted(key)).collect();
    let verdict = node
        .table
        .acquire(&wanted, &terms, wait, now, &mut node.keys);
    Ok(match verdict {
        Verdict::Granted(fences) => Done::Reply(granted(&fences, several)),
        Verdict::Busy => Done::Reply(Reply::Null),
        Verdict::Waits(id) => Done::Waits(id, several),
        Verdict::Denied(denial) => return Err(denied(denial)),
    })
}

fn release(
    node: &mut Node,
    mut args: Args<'_>,
    several: bool,
    time: Time,
) -> Result<Reply, Refused> {
    let keys = args.keys(several)?;
    let token = args.token()?;
    let all = !args.is_empty() && args.next()? == b"ALL";
    let now = node.now(time);
    let mut replies = keys.iter().map(|key| {
        let wanted = node.keys.wanted(key);
        match node
            .table
            .release(&wanted, &token, all, now, &mut node.keys)
        {
            0 => Reply::Null,
            taken => Reply::Number(taken.into()),
        }
    });
    Ok(one_or_all(&mut replies, several))
}

fn extend(
    node: &mut Node,
    connection: ConnectionId,
    mut args: Args<'_>,
    several: bool,
    time: Time,
) -> Result<Reply, Refused> {
    let keys = args.keys(several)?;
    let (token, ttl) = (args.token()?, args.ttl(node)?);
    let fence = if args.is_empty() {
        None
    } else if args.next()? == b"FENCE" {
        Some(args.number()?)
    } else {
        return Err("ERR unknown option".to_owned());
    };
    let (now, name) = (node.now(time), Some(connection.name()));
    let mut replies = Vec::with_capacity(keys.len());
    for key in &keys {
        let (lock, keyspace) = (node.keys.get(key), &mut node.keys);
        let extended = node
            .table
            .extend(lock, &token, ttl, fence, name, now, keyspace);
        replies.push(match extended {
            Extended::To(fence) => Reply::Number(fence),
            Extended::NotHeld => Reply::Null,
            Extended::Denied(denial @ Denial::Quarantined(..)) => return Err(denied(denial)),
            Extended::Denied(denial) => Reply::Error(denied(denial)),
        });
    }
    Ok(one_or_all(&mut replies.into_iter(), several))
}

fn one_or_all(replies: &mut dyn Iterator<Item = Reply>, several: bool) -> Reply {
    if several {
        Reply::Array(replies.collect())
    } else {
        replies.next().unwrap_or(Reply::Null)
    }
}

fn granted(fences: &Granted, several: bool) -> Reply {
    one_or_all(
        &mut fences.iter().map(|fence| Reply::Number(*fence)),
        several,
    )
}

/// The reply to a request that waited.
pub fn answer(answer: &Answer, several: bool) -> Reply {
    match answer {
        Answer::Granted(fences) => granted(fences, several),
        Answer::Nothing => Reply::Null,
        Answer::Denied(denial) => Reply::Error(denied(*denial)),
        Answer::Unblocked => Reply::Error("UNBLOCKED ask again".to_owned()),
    }
}

/// The errors of the module, with their codes and what the client reads in them.
fn denied(denial: Denial) -> String {
    match denial {
        Denial::Refused(Refusal::Upgrade | Refusal::UnlikeLimit) => "LOCKMODE".to_owned(),
        Denial::Refused(Refusal::TooManyHolders) | Denial::OverCap(_) | Denial::TooManyWaiters => {
            "LOCKLIMIT".to_owned()
        }
        Denial::Fence(FenceError::TooFarAhead | FenceError::Exhausted) => "LOCKFENCE".to_owned(),
        Denial::Deadlock => "DEADLOCK".to_owned(),
        Denial::Quarantined(left, _) => {
            format!(
                "QUARANTINE no lock is granted, retry in {} ms",
                left.to_millis().0
            )
        }
        Denial::WrongType => "WRONGTYPE".to_owned(),
    }
}

fn hello(node: &mut Node, connection: ConnectionId, mut args: Args<'_>) -> Reply {
    let resp3 = args.number() == Ok(3);
    if let Some(session) = node.session(connection) {
        session.resp3 = resp3;
    }
    Reply::Map(vec![("proto", Reply::Number(if resp3 { 3 } else { 2 }))])
}

fn about_node(node: &Node, time: Time) -> Reply {
    let (table, now) = (&node.table, node.now(time));
    let left = table
        .pause(now.mono)
        .map_or(0, |(left, _)| left.to_millis().0);
    let durable = node.setup.memory == Memory::Durable;
    Reply::Map(vec![
        ("version", Reply::Text(env!("CARGO_PKG_VERSION").to_owned())),
        ("incarnation", Reply::Text(node.incarnation())),
        ("role", Reply::Text("master".to_owned())),
        ("quarantine", Reply::Number(left)),
        ("durable", Reply::Number(durable.into())),
        ("fence", Reply::Number(table.fence())),
        ("locks", Reply::Number(table.locks() as u64)),
        ("waiters", Reply::Number(table.waiters() as u64)),
        ("max-ttl", Reply::Number(longest_lease(node))),
        ("time", Reply::Number(now.wall.0)),
    ])
}

fn about_lock(node: &Node, mut args: Args<'_>, time: Time) -> Result<Reply, Refused> {
    let key = Key::new(0, args.next()?);
    let mono = node.now(time).mono;
    let now = node.table.lease_now(mono);
    let lock = node.keys.get(&key).and_then(|id| node.table.as_seen(id));
    let holds = lock
        .as_deref()
        .map(|lock| lock.holds_in_order())
        .unwrap_or_default();
    let waiting = node.table.waiting_for(&key);
    let holders: Vec<_> = holds
        .into_iter()
        .filter(|hold| hold.end > now)
        .map(|hold| {
            Reply::Map(vec![
                (
                    "owner",
                    Reply::Text(String::from_utf8_lossy(hold.owner()).into_owned()),
                ),
                ("fingerprint", Reply::Text("00000000".to_owned())),
                ("holds", Reply::Number(hold.count().into())),
                ("fence", Reply::Number(hold.fence)),
                ("ttl", Reply::Number(hold.left(now).to_millis().0)),
                (
                    "age",
                    Reply::Number(now.since(hold.granted).whole_millis().0),
                ),
            ])
        })
        .collect();
    if holders.is_empty() && waiting.is_none() {
        return Ok(Reply::Null);
    }
    let (waiters, since) = waiting.unwrap_or((0, mono));
    Ok(Reply::Map(vec![
        ("mode", Reply::Text("exclusive".to_owned())),
        ("limit", Reply::Number(0)),
        ("waiters", Reply::Number(waiters as u64)),
        (
            "oldest-wait",
            Reply::Number(mono.since(since).whole_millis().0),
        ),
        ("holders", Reply::Array(holders)),
    ]))
}
