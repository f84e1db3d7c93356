//! The saved form of a lock with one exclusive holder, which most locks are.
//!
//! It is short because most of what a server does to save a value depends on its length: Redis 7.0
//! needs about 30 instructions for each byte to find that it cannot be compressed. So nothing is
//! written that most holds do not have, and a UUID takes 16 bytes instead of 36.
//!
//! Flags, then in as many bytes as the largest may need: the fence, highest byte first; what
//! remains of the lease and what has passed since the grant, lowest byte first. Then what the flags
//! name, in their order, and the token.

use uuid::Uuid;
use uuid::fmt::Hyphenated;

use super::{MAX_TTL, Malformed, Reader, put_bytes, put_number};
use crate::fence::MAX_FENCE;
use crate::lock::Hold;
use crate::time::{LeaseTime, Micros, Millis};
use crate::token::{MAX_OWNER, MAX_TOKEN, Token};

/// The hold was entered again: its count follows.
const COUNT: u8 = 1;
/// A cap, or 0, and a label follow.
const EXTRA: u8 = 2;
/// The token is the text of a UUID: its 16 bytes follow.
const UUID: u8 = 4;

/// Bytes of a fence, and of what has passed since a grant.
const FENCE: usize = 7;
const _: () = assert!(MAX_FENCE < 1 << (8 * FENCE));
/// Bytes of what remains of a lease.
const LEFT: usize = 5;
const _: () = assert!(MAX_TTL.0 * 1000 < 1 << (8 * LEFT));

/// Writes a hold.
pub(super) fn put(hold: &Hold, now: LeaseTime, out: &mut Vec<u8>) {
    let (count, max_hold, owner) = (hold.count(), hold.max_hold(), hold.owner());
    let has_extra = max_hold.is_some() || !owner.is_empty();
    let uuid = uuid_of(hold.token.secret());
    let flag = |flag, is_set| if is_set { flag } else { 0 };
    out.push(flag(COUNT, count != 1) | flag(EXTRA, has_extra) | flag(UUID, uuid.is_some()));
    // Together with the flags of most holds it is the number in eight bytes: tools can find it.
    let [_, fence @ ..] = hold.fence.to_be_bytes();
    out.extend_from_slice(&fence);
    put_fixed::<LEFT>(hold.left(now).0, out);
    put_fixed::<FENCE>(now.since(hold.granted).0, out);
    if count != 1 {
        put_number(count.into(), out);
    }
    if has_extra {
        put_number(max_hold.map_or(0, |cap| cap.0), out);
        put_bytes(owner, out);
    }
    match uuid {
        Some(uuid) => out.extend_from_slice(uuid.as_bytes()),
        None => put_bytes(hold.token.secret(), out),
    }
}

/// Reads what [`put`] wrote.
pub(super) fn read(reader: &mut Reader<'_>, now: LeaseTime) -> Result<Hold, Malformed> {
    let flags = reader.byte()?;
    if flags & !(COUNT | EXTRA | UUID) != 0 {
        return Err(Malformed);
    }
    let fence = fence(reader)?;
    let left = Micros(fixed::<LEFT>(reader, MAX_TTL.to_micros().0)?);
    let age = Micros(fixed::<FENCE>(reader, MAX_FENCE)?);
    let count = if flags & COUNT != 0 {
        reader.number(u32::MAX.into())? as u32
    } else {
        1
    };
    let (max_hold, owner) = if flags & EXTRA != 0 {
        let cap = Some(reader.number(MAX_TTL.0)?).filter(|cap| *cap != 0);
        (cap.map(Millis), reader.bytes(MAX_OWNER)?)
    } else {
        (None, &[][..])
    };
    let token = if flags & UUID != 0 {
        let uuid = reader.chunk()?;
        let mut text = [0; Hyphenated::LENGTH];
        Token::new(
            Uuid::from_bytes(uuid)
                .hyphenated()
                .encode_lower(&mut text)
                .as_bytes(),
        )
    } else {
        Token::new(reader.bytes(MAX_TOKEN)?)
    };
    let token = token.ok_or(Malformed)?;
    if fence == 0 || count == 0 {
        return Err(Malformed);
    }
    // A clock that started after the grant cannot show when it was: the age is kept as far as
    // it can be.
    let mut hold = Hold::restored(token, fence, now.plus(left), now.minus(age), count);
    hold.set_saved_extra(owner, max_hold);
    Ok(hold)
}

/// Writes the `LEN` lower bytes of a number.
fn put_fixed<const LEN: usize>(number: u64, out: &mut Vec<u8>) {
    let bytes = number.to_le_bytes();
    out.extend_from_slice(bytes.get(..LEN).unwrap_or(&bytes));
}

fn fence(reader: &mut Reader<'_>) -> Result<u64, Malformed> {
    let lower: [u8; FENCE] = reader.chunk()?;
    let shift = |fence: u64, byte| fence << 8 | u64::from(byte);
    let fence = lower.into_iter().fold(0, shift);
    if fence <= MAX_FENCE {
        Ok(fence)
    } else {
        Err(Malformed)
    }
}

/// A number of `LEN` bytes that is not above `max`.
fn fixed<const LEN: usize>(reader: &mut Reader<'_>, max: u64) -> Result<u64, Malformed> {
    let mut bytes = [0; size_of::<u64>()];
    let lower: [u8; LEN] = reader.chunk()?;
    bytes
        .iter_mut()
        .zip(lower)
        .for_each(|(byte, lower)| *byte = lower);
    let number = u64::from_le_bytes(bytes);
    if number <= max {
        Ok(number)
    } else {
        Err(Malformed)
    }
}

/// The UUID whose text a token is: in lower case with hyphens, the one text that is made of it
/// again.
fn uuid_of(token: &[u8]) -> Option<Uuid> {
    let may_be = token.len() == Hyphenated::LENGTH && !token.iter().any(u8::is_ascii_uppercase);
    if may_be {
        Uuid::try_parse_ascii(token).ok()
    } else {
        None
    }
}
