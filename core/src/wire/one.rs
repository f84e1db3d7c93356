//! The saved form of a lock with one exclusive holder, which most locks are.
//!
//! It is short because the cost of saving a value depends on its length: Redis 7.0 needs about 30
//! instructions for each byte to find that it cannot be compressed. So fields that most holds do
//! not have are left out, and a UUID takes 16 bytes instead of 36.
//!
//! The form is: flags, then three numbers of fixed size: the fence, highest byte first; the
//! remaining time of the lease and the time since the grant, lowest byte first. Then the fields
//! that the flags name, in their order, and the token.

use super::{MAX_TTL, Malformed, Reader, put_bytes, put_number};
use crate::fence::MAX_FENCE;
use crate::lock::Hold;
use crate::time::{LeaseTime, Micros, Millis};
use crate::token::{MAX_OWNER, MAX_TOKEN, Token};

/// The hold was re-entered: its count follows.
const COUNT: u8 = 1;
/// A cap, or 0, and a label follow.
const EXTRA: u8 = 2;
/// The token is the text of a UUID: its 16 bytes follow.
const UUID: u8 = 4;

/// Bytes of a fence, and of the time since a grant.
const FENCE: usize = 7;
const _: () = assert!(MAX_FENCE < 1 << (8 * FENCE));
/// Bytes of the remaining time of a lease.
const LEFT: usize = 5;
const _: () = assert!(MAX_TTL.0 * 1000 < 1 << (8 * LEFT));

/// Flags, fence, remaining time and elapsed time. They are written and read together, which saves
/// 130 instructions to load a lock and as many to save it, compared with single fields.
const START: usize = 1 + FENCE + LEFT + FENCE;

/// Writes a hold.
pub(super) fn put(hold: &Hold, now: LeaseTime, out: &mut Vec<u8>) {
    let (count, max_hold, owner) = (hold.count(), hold.max_hold(), hold.owner());
    let has_extra = max_hold.is_some() || !owner.is_empty();
    let uuid = uuid_of(hold.token.secret());
    let flag = |flag, is_set| if is_set { flag } else { 0 };
    let flags = flag(COUNT, count != 1) | flag(EXTRA, has_extra) | flag(UUID, uuid.is_some());
    // Together with the flags of most holds, it is a number of eight bytes that tools can find.
    let [_, fence @ ..] = hold.fence.to_be_bytes();
    let left = hold.left(now).0.to_le_bytes();
    let age = now.since(hold.granted).0.to_le_bytes();
    let mut start = [flags; START];
    start[1..8].copy_from_slice(&fence);
    start[8..13].copy_from_slice(&left[..LEFT]);
    start[13..].copy_from_slice(&age[..FENCE]);
    out.extend_from_slice(&start);
    if count != 1 {
        put_number(count.into(), out);
    }
    if has_extra {
        put_number(max_hold.map_or(0, |cap| cap.0), out);
        put_bytes(owner, out);
    }
    match uuid {
        Some(uuid) => out.extend_from_slice(&uuid),
        None => put_bytes(hold.token.secret(), out),
    }
}

/// The fields that every hold has, checked.
struct Start {
    flags: u8,
    fence: u64,
    end: LeaseTime,
    granted: LeaseTime,
}

impl Start {
    #[inline]
    fn read(start: &[u8; START], now: LeaseTime) -> Result<Self, Malformed> {
        let [flags, ..] = *start;
        // Each is read with its neighbours, which are cut off.
        let fence = eight::<0>(start).swap_bytes() << 8 >> 8;
        let left = Micros(eight::<8>(start) << 24 >> 24);
        let age = Micros(eight::<12>(start) >> 8);
        let is_known = flags & !(COUNT | EXTRA | UUID) == 0;
        let is_fence = fence != 0 && fence <= MAX_FENCE;
        if !is_known || !is_fence || left > MAX_TTL.to_micros() || age.0 > MAX_FENCE {
            return Err(Malformed);
        }
        Ok(Self {
            flags,
            fence,
            end: now.plus(left),
            // A clock that started after the grant cannot represent its time: the age is kept as
            // far as possible.
            granted: now.minus(age),
        })
    }
}

/// Reads what [`put`] wrote.
pub(super) fn read(reader: &mut Reader<'_>, now: LeaseTime) -> Result<Hold, Malformed> {
    let start = Start::read(reader.chunk()?, now)?;
    let count = if start.flags & COUNT != 0 {
        reader.number(u32::MAX.into())? as u32
    } else {
        1
    };
    let (max_hold, owner) = if start.flags & EXTRA != 0 {
        let cap = Some(reader.number(MAX_TTL.0)?).filter(|cap| *cap != 0);
        (cap.map(Millis), reader.bytes(MAX_OWNER)?)
    } else {
        (None, &[][..])
    };
    let token = if start.flags & UUID != 0 {
        Token::of_uuid(&text_of(reader.chunk()?))
    } else {
        Token::new(reader.bytes(MAX_TOKEN)?).ok_or(Malformed)?
    };
    if count == 0 {
        return Err(Malformed);
    }
    let mut hold = Hold::restored(token, start.fence, start.end, start.granted, count);
    hold.set_saved_extra(owner, max_hold);
    Ok(hold)
}

/// A saved hold that was not re-entered, has no cap and no label, and whose token is a UUID: nearly
/// all are like this. It was checked, and is not copied until it is stored.
pub struct PlainHold<'a> {
    start: Start,
    uuid: &'a [u8; 16],
}

impl<'a> PlainHold<'a> {
    /// The hold in these bytes; none if it has other fields, or is malformed.
    #[inline]
    pub(super) fn read(bytes: &'a [u8], now: LeaseTime) -> Option<Self> {
        let (start, uuid) = bytes.split_first_chunk()?;
        let uuid = uuid.try_into().ok()?;
        let start = Start::read(start, now).ok()?;
        (start.flags == UUID).then_some(Self { start, uuid })
    }

    /// Its fence.
    #[inline]
    pub fn fence(&self) -> u64 {
        self.start.fence
    }

    /// When its lease ends.
    #[inline]
    pub fn end(&self) -> LeaseTime {
        self.start.end
    }

    /// The hold itself.
    #[inline]
    pub fn into_hold(self) -> Hold {
        let token = Token::of_uuid(&text_of(self.uuid));
        let Start {
            fence,
            end,
            granted,
            ..
        } = self.start;
        Hold::restored(token, fence, end, granted, 1)
    }
}

/// The number in eight bytes from this place on, lowest byte first.
fn eight<const AT: usize>(start: &[u8; START]) -> u64 {
    let mut bytes = [0; size_of::<u64>()];
    bytes.copy_from_slice(&start[AT..AT + size_of::<u64>()]);
    u64::from_le_bytes(bytes)
}

/// Bytes of the text of a UUID, with its hyphens.
const TEXT: usize = 36;

/// The UUID of a token, if the token is its text in lower case with hyphens, which is the only form
/// that can be restored.
///
/// All digits are read in the same way, so that the compiler can process 16 at a time: 60
/// instructions. uuid 1.29 needs 250, including the check for upper case.
fn uuid_of(token: &[u8]) -> Option<[u8; 16]> {
    let text: &[u8; TEXT] = token.try_into().ok()?;
    let mut digits = [0; 32];
    digits[..8].copy_from_slice(&text[..8]);
    digits[8..12].copy_from_slice(&text[9..13]);
    digits[12..16].copy_from_slice(&text[14..18]);
    digits[16..20].copy_from_slice(&text[19..23]);
    digits[20..].copy_from_slice(&text[24..]);
    let mut is_uuid = [text[8], text[13], text[18], text[23]] == [b'-'; 4];
    for digit in &mut digits {
        let (decimal, letter) = (digit.wrapping_sub(b'0'), digit.wrapping_sub(b'a'));
        is_uuid &= (decimal < 10) | (letter < 6);
        *digit = if decimal < 10 {
            decimal
        } else {
            letter.wrapping_add(10)
        };
    }
    let mut uuid = [0; 16];
    for (byte, [high, low]) in uuid.iter_mut().zip(digits.as_chunks().0) {
        *byte = high << 4 | low & 0xf;
    }
    is_uuid.then_some(uuid)
}

/// Where the two digits of each byte are in the text of a UUID.
const PLACES: [usize; 16] = [0, 2, 4, 6, 9, 11, 14, 16, 19, 21, 24, 26, 28, 30, 32, 34];

/// The two digits of every byte.
const DIGITS: [[u8; 2]; 256] = {
    let digit = *b"0123456789abcdef";
    let mut digits = [[0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        digits[byte] = [digit[byte >> 4], digit[byte & 0xf]];
        byte += 1;
    }
    digits
};

/// The text of a UUID. With a table of all bytes, it takes three instructions for each byte.
#[inline]
fn text_of(uuid: &[u8; 16]) -> [u8; TEXT] {
    let mut text = [b'-'; TEXT];
    for (place, byte) in PLACES.into_iter().zip(uuid) {
        let digits = DIGITS.get(usize::from(*byte)).copied().unwrap_or_default();
        text[place..place + 2].copy_from_slice(&digits);
    }
    text
}
