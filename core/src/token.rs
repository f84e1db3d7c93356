//! The owner's secret, and the key that is locked.

use crate::bytes::Bytes;

/// The longest token, in bytes.
pub const MAX_TOKEN: usize = 256;

/// The longest owner label, in bytes.
pub const MAX_OWNER: usize = 256;

/// A token: 1 to 256 bytes, any bytes, compared in constant time. It is never shown: `Debug` prints
/// only its length. A UUID's text, 36 bytes, needs no allocation.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(Bytes<38>);

impl Token {
    /// A token with these bytes. None if they are empty, too long, or the single `*` that asks the
    /// server for a token.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() || bytes.len() > MAX_TOKEN || bytes == b"*" {
            return None;
        }
        Some(Self(Bytes::of([bytes])))
    }

    /// The token with the text of a UUID.
    #[inline]
    #[must_use]
    pub fn of_uuid(text: &[u8; 36]) -> Self {
        Self(Bytes::of_array(text))
    }

    /// The lowest token.
    #[must_use]
    pub fn smallest() -> Self {
        Self(Bytes::of([&[0]]))
    }

    /// The secret itself, to compare, save and replicate. Never show it.
    #[must_use]
    pub fn secret(&self) -> &[u8] {
        self.0.get()
    }

    /// How many bytes the token allocates.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.0.heap_bytes()
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Token({} bytes)", self.secret().len())
    }
}

/// A key of the keyspace: the number of the database, and the name. A name of up to 26 bytes needs
/// no allocation.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Bytes<30>);

const DB: usize = size_of::<u32>();

impl Key {
    /// The key `name` of database `db`.
    #[inline]
    #[must_use]
    pub fn new(db: u32, name: &[u8]) -> Self {
        Self(Bytes::of([&db.to_le_bytes(), name]))
    }

    /// The database's number.
    #[must_use]
    pub fn db(&self) -> u32 {
        let db = self.0.get().first_chunk();
        db.map_or(0, |db| u32::from_le_bytes(*db))
    }

    /// The name in it.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        self.0.get().get(DB..).unwrap_or_default()
    }

    /// How many bytes the key allocates.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.0.heap_bytes()
    }

    /// This key in another database.
    #[must_use]
    pub fn into_db(mut self, db: u32) -> Self {
        if let Some(own) = self.0.get_mut().first_chunk_mut() {
            *own = db.to_le_bytes();
        }
        self
    }

    /// The same name in another database.
    #[must_use]
    pub fn in_db(&self, db: u32) -> Self {
        Self::new(db, self.name())
    }
}

impl Default for Key {
    fn default() -> Self {
        Self::new(0, &[])
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.db(), self.name().escape_ascii())
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
