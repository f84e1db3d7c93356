//! The saved forms of a lock with one exclusive holder, which most locks are.
//!
//! They are short because the cost of saving a value depends on its length: of a string of more
//! than 20 bytes, Redis 7.0 needs about 30 instructions for each byte to find that it cannot be
//! compressed. So fields that most holds do not have are left out, and a UUID takes 16 bytes, not
//! 36.
//!
//! Both have three numbers of fixed size: the fence, highest byte first; the remaining time of the
//! lease and the time since the grant, lowest byte first. The form of a plain hold is these numbers
//! and a UUID. The form of any other hold is flags, the numbers, then the fields that the flags
//! name, in their order, and the token.

use super::{MAX_TTL, Malformed, ONE_HOLD, PLAIN_HOLD, Reader, put_bytes, put_number};
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

/// Fence, remaining time and elapsed time. They are written and read together, which saves 130
/// instructions to load a lock and as many to save it, compared with single fields.
const NUMBERS: usize = FENCE + LEFT + FENCE;

/// A plain hold without its UUID: the first byte and the numbers.
pub(super) const HEAD: usize = 1 + NUMBERS;
/// The saved form of a plain hold.
pub(super) const PLAIN: usize = HEAD + size_of::<Uuid>();

type Uuid = [u8; 16];

/// Writes the first byte of the form, and a hold.
pub(super) fn put(hold: &Hold, now: LeaseTime, out: &mut Vec<u8>) {
    let (count, max_hold, owner) = (hold.count(), hold.max_hold(), hold.owner());
    let has_extra = max_hold.is_some() || !owner.is_empty();
    let uuid = uuid_of(hold.token.secret());
    let flag = |flag, is_set| if is_set { flag } else { 0 };
    let flags = flag(COUNT, count != 1) | flag(EXTRA, has_extra) | flag(UUID, uuid.is_some());
    let [_, fence @ ..] = hold.fence.to_be_bytes();
    let left = hold.left(now).0.to_le_bytes();
    let age = now.since(hold.granted).0.to_le_bytes();
    let mut numbers = [0; NUMBERS];
    numbers[..7].copy_from_slice(&fence);
    numbers[7..12].copy_from_slice(&left[..LEFT]);
    numbers[12..].copy_from_slice(&age[..FENCE]);
    if let (UUID, Some(uuid)) = (flags, uuid) {
        let mut plain = [PLAIN_HOLD; PLAIN];
        plain[1..HEAD].copy_from_slice(&numbers);
        plain[HEAD..].copy_from_slice(&uuid);
        return out.extend_from_slice(&plain);
    }
    out.extend_from_slice(&[ONE_HOLD, flags]);
    out.extend_from_slice(&numbers);
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

/// The numbers that every hold has, checked.
struct Numbers {
    fence: u64,
    end: LeaseTime,
    granted: LeaseTime,
}

impl Numbers {
    #[inline]
    fn read(numbers: &[u8; NUMBERS], now: LeaseTime) -> Result<Self, Malformed> {
        // Each is read with its neighbours, which are cut off.
        let fence = eight::<0>(numbers).swap_bytes() >> 8;
        let left = Micros(eight::<7>(numbers) << 24 >> 24);
        let age = Micros(eight::<11>(numbers) >> 8);
        let is_fence = fence != 0 && fence <= MAX_FENCE;
        if !is_fence || left > MAX_TTL.to_micros() || age.0 > MAX_FENCE {
            return Err(Malformed);
        }
        Ok(Self {
            fence,
            end: now.plus(left),
            // A clock that started after the grant cannot represent its time: the age is kept as
            // far as possible.
            granted: now.minus(age),
        })
    }
}

/// Reads what [`put`] wrote of a hold that is not plain. Version 2 wrote plain holds like this too.
pub(super) fn read(reader: &mut Reader<'_>, now: LeaseTime) -> Result<Hold, Malformed> {
    let flags = reader.byte()?;
    if flags & !(COUNT | EXTRA | UUID) != 0 {
        return Err(Malformed);
    }
    let numbers = Numbers::read(reader.chunk()?, now)?;
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
        Token::of_uuid(&text_of(reader.chunk()?))
    } else {
        Token::new(reader.bytes(MAX_TOKEN)?).ok_or(Malformed)?
    };
    if count == 0 {
        return Err(Malformed);
    }
    let mut hold = Hold::restored(token, numbers.fence, numbers.end, numbers.granted, count);
    hold.set_saved_extra(owner, max_hold);
    Ok(hold)
}

/// A saved hold that was not re-entered, has no cap and no label, and whose token is a UUID: nearly
/// all are like this. It was checked, and is not copied until it is stored.
pub struct PlainHold<'a> {
    numbers: Numbers,
    uuid: &'a Uuid,
}

impl<'a> PlainHold<'a> {
    /// Reads what [`put`] wrote of a plain hold, behind the first byte.
    #[inline]
    pub(super) fn read(reader: &mut Reader<'a>, now: LeaseTime) -> Result<Self, Malformed> {
        Ok(Self {
            numbers: Numbers::read(reader.chunk()?, now)?,
            uuid: reader.chunk()?,
        })
    }

    /// Its fence.
    #[inline]
    pub fn fence(&self) -> u64 {
        self.numbers.fence
    }

    /// When its lease ends.
    #[inline]
    pub fn end(&self) -> LeaseTime {
        self.numbers.end
    }

    /// The hold itself.
    #[inline]
    pub fn into_hold(self) -> Hold {
        let token = Token::of_uuid(&text_of(self.uuid));
        let Numbers {
            fence,
            end,
            granted,
        } = self.numbers;
        Hold::restored(token, fence, end, granted, 1)
    }
}

/// The number in eight bytes from this place on, lowest byte first.
fn eight<const AT: usize>(numbers: &[u8; NUMBERS]) -> u64 {
    let mut bytes = [0; size_of::<u64>()];
    bytes.copy_from_slice(&numbers[AT..AT + size_of::<u64>()]);
    u64::from_le_bytes(bytes)
}

/// Bytes of the text of a UUID, with its hyphens.
const TEXT: usize = 36;

/// The UUID of a token, if the token is its text in lower case with hyphens, which is the only form
/// that can be restored.
///
/// All digits are read in the same way, so that the compiler can process 16 at a time: 60
/// instructions. uuid 1.29 needs 250, including the check for upper case.
fn uuid_of(token: &[u8]) -> Option<Uuid> {
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
fn text_of(uuid: &Uuid) -> [u8; TEXT] {
    let mut text = [b'-'; TEXT];
    for (place, byte) in PLACES.into_iter().zip(uuid) {
        let digits = DIGITS.get(usize::from(*byte)).copied().unwrap_or_default();
        text[place..place + 2].copy_from_slice(&digits);
    }
    text
}
