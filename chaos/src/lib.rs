//! Faults with seeds. [`simulation`] runs the real client against the real core in one process,
//! [`servers`] runs real clients against real servers.

#![forbid(unsafe_code)]

pub mod servers;
pub mod simulation;
