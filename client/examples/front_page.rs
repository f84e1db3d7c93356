//! The program of the front page: take a lock on the nodes given as arguments, work under it,
//! release it.
//!
//! `cargo run --example front_page -- redis://127.0.0.1:6379`

use std::time::Duration;

use redislock_client::{Error, Owner, Redlock, Released};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let mut urls: Vec<String> = std::env::args().skip(1).collect();
    if urls.is_empty() {
        urls.push("redis://127.0.0.1:6379".to_owned());
    }
    let client = Redlock::connect(urls).await?;
    let guard = client
        .lock("nightly-report")
        .owner(&Owner::named("host-7"))
        .ttl(Duration::from_secs(10))
        .wait(Duration::from_secs(30))
        .acquire()
        .await?;

    tokio::select! {
        () = work(guard.fence()) => println!("done under fence {}", guard.fence()),
        loss = guard.lost() => println!("stopped: the lock is lost ({loss:?})"),
    }

    if guard.release().await == Released::WasLost {
        println!("the lock was lost before the work was over");
    }
    Ok(())
}

/// The work that only one process may do at a time; pass the fence to the resource.
async fn work(_fence: u64) {
    tokio::time::sleep(Duration::from_millis(50)).await;
}
