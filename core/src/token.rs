//! The owner's secret, and the key that is locked.

use std::hash::{Hash, Hasher};

/// The longest token, in bytes.
pub const MAX_TOKEN: usize = 256;

/// The longest owner label, in bytes.
pub const MAX_OWNER: usize = 256;

/// Tokens up to this length need no allocation of their own. A UUID's text has 36 bytes.
const INLINE: usize = 38;

/// A token: 1 to 256 bytes, any bytes. Shown to nobody: `Debug` says how long it is and no more.
#[derive(Clone)]
pub struct Token(Bytes);

#[derive(Clone)]
enum Bytes {
    Inline { len: u8, bytes: [u8; INLINE] },
    Heap(Box<[u8]>),
}

impl Token {
    /// A token of these bytes, if there may be one: neither empty, nor too long, nor the single `*` that asks the
    /// server for a token.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() || bytes.len() > MAX_TOKEN || bytes == b"*" {
            return None;
        }
        let mut inline = [0; INLINE];
        Some(Self(match inline.get_mut(..bytes.len()) {
            Some(room) => {
                room.copy_from_slice(bytes);
                Bytes::Inline {
                    len: bytes.len() as u8,
                    bytes: inline,
                }
            }
            None => Bytes::Heap(bytes.into()),
        }))
    }

    /// The secret itself. For comparing, saving and replicating, never for showing.
    #[must_use]
    pub fn secret(&self) -> &[u8] {
        match &self.0 {
            Bytes::Inline { len, bytes } => bytes.get(..usize::from(*len)).unwrap_or(bytes),
            Bytes::Heap(bytes) => bytes,
        }
    }

    /// How many bytes the token takes outside of itself.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        match &self.0 {
            Bytes::Inline { .. } => 0,
            Bytes::Heap(bytes) => bytes.len(),
        }
    }
}

/// In constant time for tokens of one length: how long it takes tells nothing about the bytes.
impl PartialEq for Token {
    fn eq(&self, other: &Self) -> bool {
        let (a, b) = (self.secret(), other.secret());
        a.len() == b.len() && a.iter().zip(b).fold(0, |differ, (x, y)| differ | (x ^ y)) == 0
    }
}

impl Eq for Token {}

impl PartialOrd for Token {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Token {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.secret().cmp(other.secret())
    }
}

impl Hash for Token {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.secret().hash(state);
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Token({} bytes)", self.secret().len())
    }
}

/// A key of the keyspace: the database's number and the name, in one allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Box<[u8]>);

const DB: usize = size_of::<u32>();

impl Key {
    /// The key `name` of database `db`.
    #[must_use]
    pub fn new(db: u32, name: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(DB + name.len());
        bytes.extend_from_slice(&db.to_le_bytes());
        bytes.extend_from_slice(name);
        Self(bytes.into_boxed_slice())
    }

    /// The database's number.
    #[must_use]
    pub fn db(&self) -> u32 {
        self.0.first_chunk().map_or(0, |db| u32::from_le_bytes(*db))
    }

    /// The name in it.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        self.0.get(DB..).unwrap_or_default()
    }

    /// The same name in another database.
    #[must_use]
    pub fn in_db(&self, db: u32) -> Self {
        Self::new(db, self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_1_to_256_bytes_and_is_not_a_star() {
        for bad in [&b""[..], b"*", &[7; 257]] {
            assert!(Token::new(bad).is_none());
        }
        for len in [1, 2, 37, 38, 39, 255, 256] {
            let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
            assert_eq!(Token::new(&bytes).map(|t| t.secret().to_vec()), Some(bytes));
        }
        assert!(Token::new(b"**").is_some());
    }

    #[test]
    fn tokens_differ_by_any_byte_and_by_length() {
        let token = |b: &[u8]| Token::new(b);
        assert_eq!(token(b"a\0b"), token(b"a\0b"));
        assert_ne!(token(b"a\0b"), token(b"a\0c"));
        assert_ne!(token(b"a"), token(b"a\0"));
        assert_ne!(token(&[1; 100]), token(&[1; 101]));
    }

    #[test]
    fn debug_output_keeps_the_secret() {
        assert_eq!(
            format!("{:?}", Token::new(b"hunter2")),
            "Some(Token(7 bytes))"
        );
    }

    #[test]
    fn a_key_is_its_database_and_its_name() {
        let key = Key::new(3, b"a\0b");
        assert_eq!((key.db(), key.name()), (3, &b"a\0b"[..]));
        assert_eq!(key.in_db(9), Key::new(9, b"a\0b"));
        assert_eq!(Key::new(0, b"").name(), b"");
    }
}
