//! Memory of a held lock, beside the same lock as a string with a time to live.

use crate::Outcome;
use crate::locks::Wording;
use crate::measure::{Side, alternate};
use crate::measured::{self, pipeline};
use crate::report::{Row, Target, bytes};

const LOCKS: usize = 200_000;
const PIPELINE: usize = 1_000;
/// The figures hardly vary.
const ROUNDS: usize = 5;

pub fn measure() -> Outcome<Vec<Row>> {
    let found = alternate("memory", ROUNDS, fill)?;
    Ok(vec![Row::ratio(
        "memory of a held lock",
        &found,
        Target::AtMost(1.5),
        bytes,
    )])
}

/// Bytes a lock, on a fresh server: what an earlier round leaves behind would hide what the next
/// one needs.
fn fill(side: Side) -> Outcome<f64> {
    let server = measured::start(&[])?;
    let mut connection = server.try_connect()?;
    let wording = Wording::new(&mut connection)?;
    let acquire = |start: usize| {
        let mut buffer = Vec::new();
        for number in start..start + PIPELINE {
            wording.acquire(side, &mut buffer, number, "600000");
        }
        buffer
    };
    let before = connection
        .try_info("memory")?
        .number::<f64>("used_memory")?;
    for start in (0..LOCKS).step_by(PIPELINE) {
        pipeline(&mut connection, &acquire(start), PIPELINE)?;
    }
    let after = connection
        .try_info("memory")?
        .number::<f64>("used_memory")?;
    Ok((after - before) / LOCKS as f64)
}
