//! The owner's secret: whoever shows it owns the hold, so it is shown to nobody but the nodes.

use std::fmt;

use redis::{RedisWrite, ToRedisArgs};
use uuid::Uuid;

/// 122 random bits, made for every attempt and never used again.
#[derive(Clone, Copy)]
pub(crate) struct Token([u8; 32]);

impl Token {
    /// A fresh token from the operating system's randomness.
    pub(crate) fn fresh() -> Self {
        let mut text = [0; 32];
        random().simple().encode_lower(&mut text);
        Self(text)
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl ToRedisArgs for Token {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        out.write_arg(&self.0);
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Token(…)")
    }
}

fn random() -> Uuid {
    #[cfg(feature = "simulation")]
    if let Some(host) = crate::simulation::host() {
        return uuid::Builder::from_random_bytes(host.random()).into_uuid();
    }
    Uuid::new_v4()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_never_shown() {
        let token = Token::fresh();
        let text = String::from_utf8(token.0.to_vec()).unwrap();
        assert!(!format!("{token:?}").contains(&text));
    }

    #[test]
    fn every_token_is_another() {
        assert_ne!(Token::fresh().0, Token::fresh().0);
    }
}
