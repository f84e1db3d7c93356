//! What the program can do.

pub mod chaos;
pub mod simulate;
