//! Makes a failing plan smaller, as long as it fails in the same way.

use super::plan::Plan;
use super::{Outcome, run};

/// The smallest plan that was found, and its result, with its trace.
///
/// It leaves out faults, first many at once and then single ones, then workers, locks and
/// other features of the plan, and shortens the faults that are left.
pub fn reduce(plan: &Plan) -> std::io::Result<(Plan, Outcome)> {
    let wanted = run(plan, false)?.violation.map(|violation| violation.check);
    let mut best = plan.clone();
    let fails = |plan: &Plan| -> std::io::Result<bool> {
        let check = run(plan, false)?.violation.map(|violation| violation.check);
        Ok(check.is_some() && check == wanted)
    };
    let mut part = best.faults.len();
    while part > 0 {
        let mut from = 0;
        while from < best.faults.len() {
            let mut smaller = best.clone();
            let to = (from + part).min(smaller.faults.len());
            smaller.faults.drain(from..to);
            if fails(&smaller)? {
                best = smaller;
            } else {
                from += part;
            }
        }
        part /= 2;
    }
    let simpler: [fn(&mut Plan); 7] = [
        |plan| plan.workers = 1,
        |plan| plan.locks = 1,
        |plan| plan.shared = false,
        |plan| plan.lossy = 0,
        |plan| plan.delayed_writes = 0,
        |plan| plan.wild_clocks = false,
        |plan| plan.drift = 0,
    ];
    for simplify in simpler {
        let mut smaller = best.clone();
        simplify(&mut smaller);
        if fails(&smaller)? {
            best = smaller;
        }
    }
    for at in 0..best.faults.len() {
        let mut smaller = best.clone();
        smaller.faults[at].length /= 2;
        if fails(&smaller)? {
            best = smaller;
        }
    }
    let outcome = run(&best, true)?;
    Ok((best, outcome))
}
