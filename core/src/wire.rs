//! The saved form of a lock: in RDB files, in DUMP payloads, in the AOF and for replicas.
//!
//! A *change* describes how a lock has changed: its mode, its limit, and the holds that are new or
//! different (with a count) or gone (count 0). A *whole* change contains all holds of the lock. The
//! saved form of a lock is a marker byte and a whole change; a lock with one exclusive holder has
//! shorter forms (`one.rs`), one of which RDB files have as two strings (`strings.rs`). Times are
//! saved as remaining or elapsed time, never as a reading of a clock. Numbers are LEB128, and byte
//! strings start with their length.
//!
//! Every field is checked when it is read: the result is always a lock that the commands could have
//! made.

mod one;
mod strings;

pub use strings::{is_first_of_two, join, strings};

use one::PlainHold;

use crate::fence::MAX_FENCE;
use crate::lock::{Hold, Lock, Mode};
use crate::time::{LeaseTime, Micros, Millis};
use crate::token::{MAX_OWNER, Token};

/// The version of the saved form in RDB files and DUMP payloads. Version 1 had no form for one
/// holder. Version 2 had none for a plain hold, so every lock was one string.
pub const RDB_VERSION: u8 = 3;

/// The versions that can be loaded.
pub const RDB_VERSIONS: std::ops::RangeInclusive<u8> = 1..=RDB_VERSION;

/// The first byte of a saved lock: a whole change follows.
const WHOLE_CHANGE: u8 = 1;
/// The first byte of a saved lock: one exclusive hold follows.
const ONE_HOLD: u8 = 2;
/// The first byte of a saved lock: one exclusive hold follows, with only the fields that nearly all
/// have.
const PLAIN_HOLD: u8 = 3;

/// The version of an effect, in the AOF and for replicas.
pub const EFFECT_VERSION: u8 = 1;

/// The longest lease and the longest cap that any configuration allows.
pub const MAX_TTL: Millis = Millis(604_800_000);

/// The most holders, and the largest semaphore, that any configuration allows.
pub const MAX_HOLDERS: u32 = 1_000_000;

const SHARED: u8 = 1;
const WHOLE: u8 = 2;

/// The bytes are not a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// A change of a lock, as read from bytes.
#[derive(Clone, Debug)]
pub struct Change {
    whole: bool,
    mode: Mode,
    put: Vec<Hold>,
    gone: Vec<Token>,
}

impl Change {
    /// Nobody holds the lock any more.
    #[must_use]
    pub fn to_free() -> Self {
        Self {
            whole: true,
            mode: Mode::Exclusive,
            put: Vec::new(),
            gone: Vec::new(),
        }
    }

    /// The highest fence in it.
    #[must_use]
    pub fn highest_fence(&self) -> u64 {
        self.put.iter().map(|hold| hold.fence).max().unwrap_or(0)
    }

    /// Whether the lock is shared after this change.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        matches!(self.mode, Mode::Shared { .. })
    }

    /// The owners whose holds it sets.
    pub fn put(&self) -> impl Iterator<Item = &Token> {
        self.put.iter().map(|hold| &hold.token)
    }

    /// The holders of `lock` whose holds it may end. It sets some of them again.
    pub fn ended<'a>(&'a self, lock: &'a Lock) -> impl Iterator<Item = &'a Token> {
        let all = self.replaces(lock).then(|| lock.holds());
        let all = all.into_iter().flatten().map(|hold| &hold.token);
        all.chain(&self.gone)
    }

    /// Whether the holders of `lock` are as many afterwards as a command could have admitted. A
    /// lock with more could be saved, and not loaded.
    #[must_use]
    pub fn fits(&self, lock: &Lock) -> bool {
        let Mode::Shared { limit } = self.mode else {
            return true;
        };
        let is_there = |token: &&Token| lock.hold(token).is_some();
        let kept = if self.replaces(lock) {
            0
        } else {
            lock.holders() - self.put().chain(&self.gone).filter(is_there).count()
        };
        kept + self.put.len() <= limit.unwrap_or(MAX_HOLDERS) as usize
    }

    /// Whether it replaces `lock` entirely.
    pub(crate) fn replaces(&self, lock: &Lock) -> bool {
        self.whole || lock.mode() != self.mode
    }

    /// Applies the change to `lock`. Applying it twice has the same result as applying it once.
    pub fn apply(self, lock: &mut Lock) {
        if self.replaces(lock) {
            *lock = Lock::Free;
        }
        for token in &self.gone {
            lock.take(token);
        }
        for hold in self.put {
            lock.grant(hold, self.mode);
        }
    }
}

/// The header of an effect, which an RDB file stores outside of the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The fence counter.
    pub fence: u64,
    /// The longest lease that may exist, for the quarantine.
    pub quarantine: Millis,
}

/// Writes a header.
pub fn put_header(header: Header, out: &mut Vec<u8>) {
    put_number(header.fence, out);
    put_number(header.quarantine.0, out);
}

/// Begins an effect: its version and its header. The changes follow.
pub fn begin_effect(header: Header, out: &mut Vec<u8>) {
    out.push(EFFECT_VERSION);
    put_header(header, out);
}

/// Writes the whole of `lock`.
pub fn save(lock: &Lock, now: LeaseTime, out: &mut Vec<u8>) {
    if let Lock::Exclusive(hold) = lock {
        one::put(hold, now, out);
    } else {
        out.push(WHOLE_CHANGE);
        put_whole(lock, now, out);
    }
}

/// Reads what [`save`] wrote.
///
/// # Errors
/// When the bytes are not a lock that somebody holds.
pub fn load(bytes: &[u8], now: LeaseTime) -> Result<Lock, Malformed> {
    let mut reader = Reader(bytes);
    let lock = match reader.byte()? {
        PLAIN_HOLD => Lock::Exclusive(PlainHold::read(&mut reader, now)?.into_hold()),
        ONE_HOLD => Lock::Exclusive(one::read(&mut reader, now)?),
        WHOLE_CHANGE => {
            let change = reader.change(now)?;
            if !change.whole || change.put.is_empty() {
                return Err(Malformed);
            }
            let mut lock = Lock::Free;
            change.apply(&mut lock);
            lock
        }
        _ => return Err(Malformed),
    };
    if reader.0.is_empty() {
        Ok(lock)
    } else {
        Err(Malformed)
    }
}

/// The only hold in the saved form of a lock, if it is a plain one. None also if it is malformed:
/// then [`load`] refuses it.
pub(crate) fn plain_hold(bytes: &[u8], now: LeaseTime) -> Option<PlainHold<'_>> {
    let (&form, hold) = bytes.split_first()?;
    let mut reader = Reader(hold);
    let hold = PlainHold::read(&mut reader, now).ok()?;
    (form == PLAIN_HOLD && reader.0.is_empty()).then_some(hold)
}

/// Writes a whole change: the current state of `lock`.
pub fn put_whole(lock: &Lock, now: LeaseTime, out: &mut Vec<u8>) {
    match lock {
        Lock::Free => out.extend([WHOLE, 0, 0]),
        Lock::Exclusive(hold) => {
            out.extend([WHOLE, 0, 1]);
            put_hold(hold, now, out);
        }
        Lock::Shared(_) => {
            let holds = lock.holds_in_order();
            put_mode(lock, WHOLE, holds.len(), out);
            for hold in holds {
                put_hold(hold, now, out);
            }
        }
    }
}

/// Writes a change of only these holds; the others stay as they are.
pub fn put_part(lock: &Lock, changed: &[Token], now: LeaseTime, out: &mut Vec<u8>) {
    put_mode(lock, 0, changed.len(), out);
    for token in changed {
        match lock.hold(token) {
            Some(hold) => put_hold(hold, now, out),
            None => {
                put_bytes(token.secret(), out);
                put_number(0, out);
            }
        }
    }
}

/// Writes what is equal on two nodes: everything but the times.
pub fn put_identity(lock: &Lock, out: &mut Vec<u8>) {
    let holds = lock.holds_in_order();
    put_mode(lock, WHOLE, holds.len(), out);
    for hold in holds {
        put_bytes(hold.token.secret(), out);
        put_number(hold.count().into(), out);
        put_number(hold.fence, out);
        put_number(hold.max_hold().map_or(0, |cap| cap.0), out);
        put_bytes(hold.owner(), out);
    }
}

/// Writes how a lock is held, and how many holds follow.
fn put_mode(lock: &Lock, whole: u8, holds: usize, out: &mut Vec<u8>) {
    let (shared, limit) = match lock.mode() {
        Mode::Exclusive => (0, None),
        Mode::Shared { limit } => (SHARED, limit),
    };
    out.push(shared | whole);
    put_number(limit.map_or(0, u64::from), out);
    put_number(holds as u64, out);
}

fn put_hold(hold: &Hold, now: LeaseTime, out: &mut Vec<u8>) {
    put_bytes(hold.token.secret(), out);
    put_number(hold.count().into(), out);
    put_number(hold.fence, out);
    put_number(hold.left(now).0, out);
    put_number(now.since(hold.granted).0, out);
    put_number(hold.max_hold().map_or(0, |cap| cap.0), out);
    put_bytes(hold.owner(), out);
}

/// Writes a number.
pub fn put_number(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn put_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    put_number(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

/// Reads the saved form, one field at a time.
#[derive(Debug)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// The next byte.
    ///
    /// # Errors
    /// At the end.
    pub fn byte(&mut self) -> Result<u8, Malformed> {
        let (&first, rest) = self.0.split_first().ok_or(Malformed)?;
        self.0 = rest;
        Ok(first)
    }

    /// The next number, at most `max`.
    ///
    /// # Errors
    /// When it is larger, or missing.
    pub fn number(&mut self, max: u64) -> Result<u64, Malformed> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return Err(Malformed);
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return if number <= max {
                    Ok(number)
                } else {
                    Err(Malformed)
                };
            }
        }
        Err(Malformed)
    }

    /// Reads what [`put_header`] wrote.
    ///
    /// # Errors
    /// When a number is missing or above what any node can have.
    pub fn header(&mut self) -> Result<Header, Malformed> {
        Ok(Header {
            fence: self.number(MAX_FENCE)?,
            quarantine: Millis(self.number(MAX_TTL.0)?),
        })
    }

    /// Reads what [`begin_effect`] wrote.
    ///
    /// # Errors
    /// When the version is unknown, or the header is malformed.
    pub fn effect_header(&mut self) -> Result<Header, Malformed> {
        if self.byte()? != EFFECT_VERSION {
            return Err(Malformed);
        }
        self.header()
    }

    fn chunk<const LEN: usize>(&mut self) -> Result<&'a [u8; LEN], Malformed> {
        let (chunk, rest) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = rest;
        Ok(chunk)
    }

    fn bytes(&mut self, max: usize) -> Result<&'a [u8], Malformed> {
        let len = self.number(max as u64)? as usize;
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(Malformed)?;
        self.0 = rest;
        Ok(bytes)
    }

    /// The next change.
    ///
    /// # Errors
    /// When it could not have been made by a command.
    pub fn change(&mut self, now: LeaseTime) -> Result<Change, Malformed> {
        let flags = self.byte()?;
        if flags & !(SHARED | WHOLE) != 0 {
            return Err(Malformed);
        }
        let whole = flags & WHOLE != 0;
        let limit = self.number(MAX_HOLDERS.into())? as u32;
        let limit = Some(limit).filter(|limit| *limit != 0);
        let holds = self.number(MAX_HOLDERS.into())? as usize;
        let mode = if flags & SHARED != 0 {
            Mode::Shared { limit }
        } else {
            Mode::Exclusive
        };
        let too_many = match mode {
            Mode::Exclusive => !whole || limit.is_some() || holds > 1,
            Mode::Shared { limit } => whole && limit.is_some_and(|limit| holds > limit as usize),
        };
        if too_many {
            return Err(Malformed);
        }
        let mut change = Change {
            whole,
            mode,
            put: Vec::new(),
            gone: Vec::new(),
        };
        for _ in 0..holds {
            let token = Token::new(self.bytes(crate::token::MAX_TOKEN)?).ok_or(Malformed)?;
            match self.number(u32::MAX.into())? as u32 {
                0 if whole => return Err(Malformed),
                0 => change.gone.push(token),
                count => change.put.push(self.hold(token, count, now)?),
            }
        }
        let mut tokens: Vec<_> = change
            .put
            .iter()
            .map(|hold| &hold.token)
            .chain(&change.gone)
            .collect();
        tokens.sort_unstable();
        if tokens.windows(2).any(|pair| pair.first() == pair.last()) {
            return Err(Malformed);
        }
        Ok(change)
    }

    fn hold(&mut self, token: Token, count: u32, now: LeaseTime) -> Result<Hold, Malformed> {
        let fence = self.number(MAX_FENCE)?;
        let left = Micros(self.number(MAX_TTL.to_micros().0)?);
        let age = Micros(self.number(MAX_FENCE)?);
        let max_hold = Some(self.number(MAX_TTL.0)?).filter(|cap| *cap != 0);
        let owner = self.bytes(MAX_OWNER)?;
        if fence == 0 {
            return Err(Malformed);
        }
        // A clock that started after the grant cannot represent its time: the age is kept as far as
        // possible.
        let granted = now.minus(age);
        let mut hold = Hold::restored(token, fence, now.plus(left), granted, count);
        hold.set_saved_extra(owner, max_hold.map(Millis));
        Ok(hold)
    }
}
