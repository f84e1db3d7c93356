//! A deterministic simulation: the real client ([`redislock_client`]) against the real lock
//! ([`redislock_core`]) in one process, with simulated time, network, machines and disks.
//!
//! Everything that happens follows from a seed: the deployment, what the clients do, which faults
//! occur (`plan.rs`), how long each packet takes (`network.rs`), and which of the tasks that
//! can run runs next (`executor.rs`). Time is that of a Tokio runtime that is paused: it jumps to
//! the next timer when nothing can run, in whole milliseconds. `history.rs` has the checks.

mod clock;
mod command;
mod executor;
mod history;
mod network;
mod node;
mod plan;
mod reduce;
mod register;
mod resp;
mod stream;
mod workload;
mod world;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use redislock_testkit::history::Entry;
use tokio::time::{Instant, Sleep, sleep_until};

use clock::{MILLI, Time};
use executor::Executor;
pub use history::{Check, Counts, Violation};
pub use node::Memory;
pub use plan::{FLAWS, Fault, Plan, Planted};
pub use reduce::reduce;
use world::{Shared, World, poll_world};

/// The result of a simulation.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The first promise that was broken.
    pub violation: Option<Violation>,
    /// What was done.
    pub counts: Counts,
    /// The same for every run of a plan.
    pub digest: u64,
    /// How many events there were in the network and at the nodes.
    pub events: u64,
    /// What happened, if that was asked for: milliseconds and text. It ends soon after the
    /// violation.
    pub trace: Vec<(u64, String)>,
    /// The results that the clients saw, in true time, for other checkers.
    pub journal: Vec<Entry>,
}

/// Runs a plan.
pub fn run(plan: &Plan, tracing: bool) -> std::io::Result<Outcome> {
    // The client's pauses before retries come from the random numbers of this thread.
    fastrand::seed(plan.seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()?;
    let plan = Arc::new(plan.clone());
    // One poll runs all tasks, so Tokio's budget for a single task must not apply.
    Ok(runtime.block_on(tokio::task::unconstrained(simulate(plan, tracing))))
}

async fn simulate(plan: Arc<Plan>, tracing: bool) -> Outcome {
    let end = Instant::now() + Duration::from_micros(plan::LENGTH);
    let world = Shared::new(World::new(plan, tracing));
    let mut executor = Executor::new(world.clone());
    executor.spawn(None, Box::pin(drive(world.clone())));
    let mut end = Box::pin(sleep_until(end));
    poll_fn(|cx| match (executor.run(cx), end.as_mut().poll(cx)) {
        (Poll::Pending, Poll::Pending) => Poll::Pending,
        _ => Poll::Ready(()),
    })
    .await;
    let mut last = world.lock();
    last.check_journal();
    if last.history.violation.is_none() {
        last.check_end();
    }
    let outcome = Outcome {
        violation: last.history.violation.clone(),
        counts: last.history.counts,
        digest: last.digest,
        events: last.count,
        trace: trace_of(&mut last),
        journal: std::mem::take(&mut last.history.journal),
    };
    drop(last);
    drop(executor);
    outcome
}

/// How long a trace continues after the violation.
const AFTERMATH: Time = 100 * MILLI;

fn trace_of(world: &mut World) -> Vec<(u64, String)> {
    let mut trace = world.history.trace.take().unwrap_or_default();
    if let Some(violation) = &world.history.violation {
        trace.retain(|(at, _)| *at <= violation.shown + AFTERMATH);
    }
    trace
        .into_iter()
        .map(|(at, text)| (at / MILLI, text))
        .collect()
}

/// Runs the events that are due, and sleeps until the next one.
async fn drive(world: Shared) {
    let mut timer: Option<Pin<Box<Sleep>>> = None;
    poll_fn(|cx| {
        let next = match poll_world(&world, cx) {
            Poll::Pending => {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Poll::Ready(next) => next,
        };
        let Some(next) = next else {
            return Poll::Pending;
        };
        let timer = timer.get_or_insert_with(|| Box::pin(sleep_until(next)));
        if timer.deadline() != next {
            timer.as_mut().reset(next);
        }
        if timer.as_mut().poll(cx).is_ready() {
            cx.waker().wake_by_ref();
        }
        Poll::<()>::Pending
    })
    .await;
}
