//! The section `INFO lock`.

use std::ffi::{CStr, c_int};

use redis_module::raw;
use redislock_core::quarantine::Reason;
use redislock_core::time::Micros;

use crate::clock;
use crate::config;
use crate::edge::{self, edge};
use crate::ffi::{self, Ctx, api};
use crate::node;
use crate::server::{self, Refusal};

/// Registers the sections.
pub fn register(ctx: Ctx) {
    // SAFETY: a valid context, during load.
    unsafe {
        api!(RedisModule_RegisterInfoFunc(
            ctx.raw(),
            Some(edge!(
                show as fn(info: *mut raw::RedisModuleInfoCtx, for_crash_report: c_int)
            ))
        ));
    }
}

fn show(info: *mut raw::RedisModuleInfoCtx, for_crash_report: c_int) {
    // A crash may have happened in the middle of a change, so the table is not used then.
    if for_crash_report != 0 {
        return;
    }
    let section = |name: &CStr| {
        // SAFETY: the context of this callback and a C string.
        unsafe {
            api!(RedisModule_InfoAddSection(info, name.as_ptr())) == raw::REDISMODULE_OK as c_int
        }
    };
    let number = |name: &CStr, value: u64| {
        // SAFETY: the context of this callback and a C string.
        unsafe {
            api!(RedisModule_InfoAddFieldULongLong(
                info,
                name.as_ptr(),
                value
            ))
        };
    };
    // This comes first and does not use the table: after a failure, the rest may be missing.
    let in_state = section(c"state");
    if in_state {
        number(c"failed", edge::has_failed().into());
    }
    if node::is_lent() {
        // Another module runs INFO in the middle of a decision.
        return;
    }
    let refusal = in_state.then(|| ffi::detached().and_then(server::refusal));
    let now = clock::mono();
    node::with(|node| {
        let table = &node.table;
        if in_state {
            let pause = table.pause(now);
            let left = pause.map_or(Micros::ZERO, |(left, _)| left);
            let (reason, code) = pause.map_or((c"none", 0), |(_, reason)| name_and_code(reason));
            number(c"locks", table.locks() as u64);
            number(c"waiters", table.waiters() as u64);
            number(c"fence", table.fence());
            number(c"quarantine_ms", left.to_millis().0);
            // SAFETY: the context of this callback and two C strings.
            unsafe {
                api!(RedisModule_InfoAddFieldCString(
                    info,
                    c"quarantine_reason".as_ptr(),
                    reason.as_ptr()
                ))
            };
            number(c"longest_expiry_slice_us", node.slices.longest.0);
            number(c"longest_expiry_slice_cpu_us", node.slices.longest_cpu.0);
            number(c"most_expiry_slice_page_faults", node.slices.most_faults);
            let standing = table.replication.as_ref();
            let standing = standing.map(|lease| lease.standing(now));
            let held = standing.and_then(|standing| standing.since);
            let age = standing.and_then(|standing| standing.evidence_age);
            let needed = standing.map_or(0, |standing| standing.needed);
            let counted = standing.map_or(0, |standing| standing.counted);
            number(c"replicas_needed", needed as u64);
            number(c"replicas_counted", counted as u64);
            number(
                c"replicas_held_ms",
                held.map_or(0, |since| now.since(since).to_millis().0),
            );
            number(
                c"replicas_evidence_ms",
                age.map_or(0, |age| age.to_millis().0),
            );
            number(c"quarantine_reason_code", code);
            number(c"max_waiters", config::MAX_WAITERS.get());
            number(c"refusal_code", Refusal::name_and_code(refusal.flatten()).1);
        }
        if section(c"stats") {
            let counters = table.counters;
            number(c"grants", counters.grants);
            number(c"reentries", counters.reentries);
            number(c"denials", counters.denials);
            number(c"releases", counters.releases);
            number(c"expiries", counters.expiries);
            number(c"extends", counters.extends);
            number(c"forced", counters.forced);
            number(c"deadlocks", counters.deadlocks);
            number(c"quarantined", counters.quarantined);
            number(c"evicted", counters.evicted);
            number(c"removed", counters.removed);
            number(c"expiry_slices", node.slices.count);
            number(c"expiry_slices_cpu_us", node.slices.cpu.0);
            number(c"long_expiry_slices", node.slices.long);
        }
        if section(c"latency") {
            number(c"wait_count", table.wait_times.total());
            number(c"wait_p50_us", table.wait_times.percentile(500).0);
            number(c"wait_p99_us", table.wait_times.percentile(990).0);
            number(c"wait_p999_us", table.wait_times.percentile(999).0);
            number(c"hold_count", table.hold_times.total());
            number(c"hold_p50_us", table.hold_times.percentile(500).0);
            number(c"hold_p99_us", table.hold_times.percentile(990).0);
            number(c"hold_p999_us", table.hold_times.percentile(999).0);
        }
    });
}

/// The name of a reason, and its number for monitoring that reads only numbers. Both are documented
/// and must not change.
fn name_and_code(reason: Reason) -> (&'static CStr, u64) {
    match reason {
        Reason::Start => (c"start", 1),
        Reason::Promotion => (c"promotion", 2),
        Reason::Flush => (c"flush", 3),
        Reason::Standstill => (c"standstill", 4),
        Reason::Settings => (c"settings", 5),
        Reason::Replicas => (c"replicas", 6),
    }
}
