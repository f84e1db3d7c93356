//! Random numbers that can be repeated: the seed is printed, and the same seed makes the same run.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

/// A generator of random numbers (xorshift64).
pub struct Random(u64);

impl Random {
    /// A new seed, which is printed.
    pub fn seeded() -> Random {
        let seed = RandomState::new().hash_one(0) | 1;
        eprintln!("seed {seed}");
        Random(seed)
    }

    /// A number below the bound.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    /// A position in a list of this length.
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// Any byte.
    pub fn byte(&mut self) -> u8 {
        self.below(256) as u8
    }
}
