//! The options after the fixed arguments: in any order, in upper or lower case, each at most once.

use redislock_core::fence::MAX_FENCE;
use redislock_core::lock::Mode;
use redislock_core::time::{Micros, Millis};
use redislock_core::token::{MAX_OWNER, Token};
use redislock_core::wire::{MAX_HOLDERS, MAX_TTL};

use crate::config;
use crate::ffi::{Arg, Args};
use crate::reply::Failure;

/// What may follow the fixed arguments of a request for locks.
#[derive(Default)]
pub struct Options<'a> {
    pub shared: bool,
    pub limit: Option<u32>,
    pub block: Option<Millis>,
    pub once: bool,
    pub fence: Option<u64>,
    pub max_hold: Option<Millis>,
    pub ephemeral: bool,
    pub owner: Option<&'a [u8]>,
}

/// The longest wait, ms: a century, so that no clock overflows.
const MAX_BLOCK: i64 = 100 * 366 * 86_400_000;

impl<'a> Options<'a> {
    /// Reads the arguments from `at` on. `args` has the command's name at 0, so positions are as
    /// users count them.
    pub fn parse(args: Args<'a>, mut at: usize) -> Result<Self, Failure> {
        let mut options = Self::default();
        let mut seen: u16 = 0;
        while let Some(name) = args.get(at) {
            let name = name.bytes();
            let known = KNOWN
                .iter()
                .find(|(known, _)| name.eq_ignore_ascii_case(known.as_bytes()));
            let Some((name, option)) = known else {
                return Err(unknown(at));
            };
            let bit = 1 << (*option as u16);
            if seen & bit != 0 {
                return Err(Failure::Made(format!("ERR option {name} is given twice")));
            }
            seen |= bit;
            at += 1;
            let mut value = || {
                let value = args
                    .get(at)
                    .ok_or_else(|| Failure::Made(format!("ERR option {name} needs a value")));
                at += 1;
                value
            };
            match option {
                Name::Shared => options.shared = true,
                Name::Limit => {
                    let limit = number(value()?, name, 1, MAX_HOLDERS.into())?;
                    options.limit = Some(limit as u32);
                }
                Name::Block => {
                    options.block = Some(Millis(number(value()?, name, 0, MAX_BLOCK)?));
                }
                Name::Once => options.once = true,
                Name::Fence => options.fence = Some(fence(value()?)?),
                Name::MaxHold => {
                    let cap = number(value()?, name, 1, MAX_TTL.0 as i64)?;
                    options.max_hold = Some(Millis(cap));
                }
                Name::Ephemeral => options.ephemeral = true,
                Name::Owner => {
                    let owner = value()?.bytes();
                    if owner.len() > MAX_OWNER {
                        return Err("ERR OWNER may have at most 256 bytes".into());
                    }
                    options.owner = Some(owner);
                }
            }
        }
        if options.limit.is_some() && !options.shared {
            return Err("ERR LIMIT requires SHARED".into());
        }
        Ok(options)
    }

    pub fn mode(&self) -> Mode {
        if self.shared {
            Mode::Shared { limit: self.limit }
        } else {
            Mode::Exclusive
        }
    }
}

/// All options.
#[derive(Clone, Copy)]
enum Name {
    Shared,
    Limit,
    Block,
    Once,
    Fence,
    MaxHold,
    Ephemeral,
    Owner,
}

const KNOWN: [(&str, Name); 8] = [
    ("SHARED", Name::Shared),
    ("LIMIT", Name::Limit),
    ("BLOCK", Name::Block),
    ("ONCE", Name::Once),
    ("FENCE", Name::Fence),
    ("MAXHOLD", Name::MaxHold),
    ("EPHEMERAL", Name::Ephemeral),
    ("OWNER", Name::Owner),
];

/// The error for an argument that is not an option. The error names its position, not its bytes.
pub fn unknown(at: usize) -> Failure {
    Failure::Made(format!(
        "ERR unknown option at argument {at}, see LOCK.HELP"
    ))
}

/// The value of FENCE.
pub fn fence(arg: Arg<'_>) -> Result<u64, Failure> {
    number(arg, "FENCE", 0, MAX_FENCE as i64)
}

/// A number in a range.
pub fn number(arg: Arg<'_>, name: &str, min: i64, max: i64) -> Result<u64, Failure> {
    match arg.number() {
        Some(number) if (min..=max).contains(&number) => Ok(number as u64),
        _ => Err(Failure::Made(format!(
            "ERR {name} must be an integer from {min} to {max}"
        ))),
    }
}

/// The token of a request. `*` is not a token.
pub fn token(arg: Arg<'_>) -> Result<Token, Failure> {
    token_of(arg.bytes())
}

/// [`token`] for a caller that has the bytes.
pub fn token_of(bytes: &[u8]) -> Result<Token, Failure> {
    Token::new(bytes).ok_or(Failure::Text(
        "ERR a token has 1 to 256 bytes and is not a single *",
    ))
}

/// The lease that a request asks for. It is never shortened: a lease that is too long is an error.
pub fn ttl(arg: Arg<'_>) -> Result<Micros, Failure> {
    let ttl = Millis(number(arg, "ttl-ms", 1, MAX_TTL.0 as i64)?);
    let (longest, option) = config::longest_lease();
    if ttl > longest {
        return Err(Failure::Made(format!(
            "LOCKLIMIT ttl-ms is above {option}, which is {} ms",
            longest.0
        )));
    }
    Ok(ttl.to_micros())
}
