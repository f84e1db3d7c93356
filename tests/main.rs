//! End-to-end tests: every sentence of the contract, against real servers that a guard starts and
//! stops.

mod acl;
mod acquire;
mod arguments;
mod caps;
mod cluster;
mod command_metadata;
mod compatibility;
mod configuration;
mod crash;
#[cfg(target_os = "linux")]
mod disk;
mod effort;
mod ephemeral;
mod events;
mod expiry;
mod extend;
mod failures;
mod fences;
mod force;
mod guarded;
mod handover;
mod hostile;
mod info;
mod interruptions;
mod key_ttl;
mod leaving;
mod legacy_strings;
mod listening;
mod metrics;
mod modules;
mod moving;
mod multi;
mod node;
mod observability;
#[cfg(target_os = "linux")]
mod older;
mod operations;
#[cfg(target_os = "linux")]
mod partition;
mod payloads;
mod persistence;
mod proof;
mod quarantine;
mod races;
mod refusals;
mod release;
mod removals;
mod replication;
#[cfg(target_os = "linux")]
mod replication_lease;
mod resharding;
mod saved_forms;
mod sentinel;
mod settings;
mod shared;
#[cfg(target_os = "linux")]
mod soak;
#[cfg(target_os = "linux")]
mod stalls;
mod structure;
#[cfg(target_os = "linux")]
mod suspended;
mod transactions;
mod transcripts;
mod upgrade;
mod waiting;
