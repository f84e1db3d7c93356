//! Which metric each field of `INFO lock` becomes. Fields of newer modules that are not listed here
//! are left out; a test compares the list with a real server.

use self::Kind::{Counter, Gauge};

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Gauge,
    Counter,
}

/// One field.
pub struct Field {
    /// Its name in INFO.
    pub field: &'static str,
    /// The metric, without the suffix `_total` of counters.
    pub metric: &'static str,
    pub kind: Kind,
    /// What one unit of the metric is in units of the field.
    pub divisor: f64,
    pub help: &'static str,
}

const fn field(
    kind: Kind,
    field: &'static str,
    metric: &'static str,
    divisor: f64,
    help: &'static str,
) -> Field {
    Field {
        field,
        metric,
        kind,
        divisor,
        help,
    }
}

const MS: f64 = 1e3;
const US: f64 = 1e6;

pub const FIELDS: [Field; 29] = [
    field(
        Gauge,
        "lock_failed",
        "redislock_failed",
        1.0,
        "1 if an internal error has stopped the module",
    ),
    field(
        Gauge,
        "lock_locks",
        "redislock_locks",
        1.0,
        "Locks that are held",
    ),
    field(
        Gauge,
        "lock_waiters",
        "redislock_waiters",
        1.0,
        "Waiting requests",
    ),
    field(
        Gauge,
        "lock_max_waiters",
        "redislock_max_waiters",
        1.0,
        "The most requests that may wait (lock.max-waiters)",
    ),
    field(
        Gauge,
        "lock_fence",
        "redislock_fence",
        1.0,
        "The fence counter",
    ),
    field(
        Gauge,
        "lock_quarantine_ms",
        "redislock_quarantine_seconds",
        MS,
        "The time until the node grants locks again",
    ),
    field(
        Gauge,
        "lock_longest_expiry_slice_us",
        "redislock_longest_expiry_slice_seconds",
        US,
        "The longest time in which expiring leases kept clients waiting",
    ),
    field(
        Gauge,
        "lock_longest_expiry_slice_cpu_us",
        "redislock_longest_expiry_slice_cpu_seconds",
        US,
        "The most CPU time of one such slice",
    ),
    field(
        Gauge,
        "lock_most_expiry_slice_page_faults",
        "redislock_most_expiry_slice_page_faults",
        1.0,
        "The most page faults of one such slice",
    ),
    field(
        Gauge,
        "lock_replicas_needed",
        "redislock_replicas_needed",
        1.0,
        "Replicas that must confirm that this is the only master",
    ),
    field(
        Gauge,
        "lock_replicas_counted",
        "redislock_replicas_counted",
        1.0,
        "Replicas that confirm it now",
    ),
    field(
        Gauge,
        "lock_replicas_held_ms",
        "redislock_replicas_held_seconds",
        MS,
        "For how long enough replicas have confirmed it",
    ),
    field(
        Gauge,
        "lock_replicas_evidence_ms",
        "redislock_replicas_evidence_seconds",
        MS,
        "The age of the oldest confirmation that is needed",
    ),
    field(Counter, "lock_grants", "redislock_grants", 1.0, "Grants"),
    field(
        Counter,
        "lock_reentries",
        "redislock_reentries",
        1.0,
        "Grants to a client that already held the lock",
    ),
    field(
        Counter,
        "lock_denials",
        "redislock_denials",
        1.0,
        "Requests that did not get the lock",
    ),
    field(
        Counter,
        "lock_releases",
        "redislock_releases",
        1.0,
        "Releases",
    ),
    field(
        Counter,
        "lock_expiries",
        "redislock_expiries",
        1.0,
        "Leases that ended without a release",
    ),
    field(
        Counter,
        "lock_extends",
        "redislock_extends",
        1.0,
        "Extensions of leases",
    ),
    field(
        Counter,
        "lock_forced",
        "redislock_forced",
        1.0,
        "Holds that LOCK.FORCE ended",
    ),
    field(
        Counter,
        "lock_deadlocks",
        "redislock_deadlocks",
        1.0,
        "Requests that were refused because waiting would cause a deadlock",
    ),
    field(
        Counter,
        "lock_quarantined",
        "redislock_quarantined",
        1.0,
        "Requests that a quarantine refused",
    ),
    field(
        Counter,
        "lock_evicted",
        "redislock_evicted",
        1.0,
        "Held locks that the server evicted",
    ),
    field(
        Counter,
        "lock_removed",
        "redislock_removed",
        1.0,
        "Held locks that another command, an eviction or a flush removed",
    ),
    field(
        Counter,
        "lock_expiry_slices",
        "redislock_expiry_slices",
        1.0,
        "Slices of work that no client asked for, such as ending leases",
    ),
    field(
        Counter,
        "lock_expiry_slices_cpu_us",
        "redislock_expiry_slices_cpu_seconds",
        US,
        "The CPU time of all slices of work that no client asked for",
    ),
    field(
        Counter,
        "lock_long_expiry_slices",
        "redislock_long_expiry_slices",
        1.0,
        "Slices of work that no client asked for that took more than 1 ms of CPU time",
    ),
    field(
        Gauge,
        "lock_quarantine_reason_code",
        "redislock_quarantine_reason_code",
        1.0,
        "Why the node is in quarantine, as a number (0: it is not)",
    ),
    field(
        Gauge,
        "lock_refusal_code",
        "redislock_refusal_code",
        1.0,
        "Why the server refuses new locks, as a number (0: it does not)",
    ),
];

/// Distributions: a field for the count, and one for each quantile, in µs.
pub struct Distribution {
    pub count: &'static str,
    pub metric: &'static str,
    pub quantiles: [(&'static str, &'static str); 3],
    pub help: &'static str,
}

pub const DISTRIBUTIONS: [Distribution; 2] = [
    Distribution {
        count: "lock_wait_count",
        metric: "redislock_wait_seconds",
        quantiles: [
            ("0.5", "lock_wait_p50_us"),
            ("0.99", "lock_wait_p99_us"),
            ("0.999", "lock_wait_p999_us"),
        ],
        help: "How long granted requests had waited",
    },
    Distribution {
        count: "lock_hold_count",
        metric: "redislock_hold_seconds",
        quantiles: [
            ("0.5", "lock_hold_p50_us"),
            ("0.99", "lock_hold_p99_us"),
            ("0.999", "lock_hold_p999_us"),
        ],
        help: "How long holds lasted",
    },
];

/// Why a node grants nothing: the values of `lock_quarantine_reason`.
pub const REASONS: [&str; 7] = [
    "none",
    "start",
    "promotion",
    "flush",
    "standstill",
    "settings",
    "replicas",
];
