//! One instance of a service leads, the others stand by.
//!
//! `cargo run --example leader -- NAME redis://127.0.0.1:6379`

use std::time::Duration;

use redislock_client::{Error, Redlock};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().expect("usage: leader NAME URL...");
    let client = Redlock::connect(arguments).await?;
    let election = client
        .election("{scheduler}")
        .candidate(&name)
        .ttl(Duration::from_secs(5));
    loop {
        let leadership = election.campaign().await?;
        println!("{name} leads in term {}", leadership.term());
        let stopped = tokio::select! {
            () = lead(leadership.term()) => false,
            _ = tokio::signal::ctrl_c() => true,
            loss = leadership.lost() => {
                println!("{name} does not lead: {loss:?}");
                false
            }
        };
        leadership.resign().await;
        if stopped {
            return Ok(());
        }
    }
}

/// The work of the leader. Send the term along, so that a replaced leader can be refused.
async fn lead(_term: u64) {
    std::future::pending().await
}
