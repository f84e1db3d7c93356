//! Faults with seeds. [`simulation`] runs the real client against the real core in one process.

#![forbid(unsafe_code)]

pub mod simulation;
