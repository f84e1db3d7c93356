//! The saved form of a lock as the strings of a value in an RDB file: two for a plain hold, so that
//! none is compressed, and one for any other lock.
//!
//! Servers try to compress each string of more than 20 bytes. A hold with a random token does not
//! become shorter by it, and the attempt takes 18 of the 29 cache misses of saving a lock. Of a
//! million locks, each took 1.76 µs of CPU time to save as two strings of 20 and 16 bytes, and 2.26
//! µs as one; to load, 0.75 µs and 0.68 µs.

use super::one::{HEAD, PLAIN};
use super::{Malformed, PLAIN_HOLD};

/// Servers do not try to compress a string of this length.
const SHORT: usize = 20;
const _: () = assert!(HEAD <= SHORT && PLAIN - HEAD <= SHORT);

/// Cuts the saved form of a lock into strings; the second one is empty if one is enough.
#[must_use]
pub fn strings(saved: &[u8]) -> (&[u8], &[u8]) {
    let first = if is_first_of_two(saved) {
        HEAD
    } else {
        saved.len()
    };
    saved.split_at_checked(first).unwrap_or((saved, &[]))
}

/// Whether a second string must follow this one, for [`join`].
#[must_use]
pub fn is_first_of_two(string: &[u8]) -> bool {
    string.first() == Some(&PLAIN_HOLD)
}

/// Puts two strings together again.
///
/// # Errors
/// When one of them has another length than in what [`strings`] returned.
pub fn join(first: &[u8], second: &[u8]) -> Result<[u8; PLAIN], Malformed> {
    if first.len() != HEAD || second.len() != PLAIN - HEAD {
        return Err(Malformed);
    }
    let mut saved = [0; PLAIN];
    saved[..HEAD].copy_from_slice(first);
    saved[HEAD..].copy_from_slice(second);
    Ok(saved)
}
