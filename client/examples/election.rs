//! Two candidates for one office: each leads once, an observer tells who.
//!
//! `cargo run --example election -- redis://127.0.0.1:6379`

use std::time::Duration;

use redislock_client::{Election, Error, Redlock};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let mut urls: Vec<String> = std::env::args().skip(1).collect();
    if urls.is_empty() {
        urls.push("redis://127.0.0.1:6379".to_owned());
    }
    let client = Redlock::connect(urls).await?;
    let election = client.election("scheduler").ttl(Duration::from_secs(5));

    let observer = tokio::spawn(tell(election.clone()));
    let (ann, bob) = tokio::join!(lead_once(&election, "ann"), lead_once(&election, "bob"),);
    observer.abort();
    ann.and(bob)
}

/// Waits to be elected, works until it is done or another one could be elected, and resigns.
async fn lead_once(election: &Election, name: &str) -> Result<(), Error> {
    let leadership = election.clone().candidate(name).campaign().await?;
    println!("{name} was elected for term {}", leadership.term());
    tokio::select! {
        () = work(leadership.term()) => {}
        _ = leadership.lost() => println!("the office is lost"),
    }
    leadership.resign().await;
    Ok(())
}

/// Whatever only the leader may do; the term goes along, so that a deposed leader can be refused.
async fn work(_term: u64) {
    tokio::time::sleep(Duration::from_millis(500)).await;
}

async fn tell(election: Election) {
    let mut observation = election.observe(Duration::from_millis(50));
    loop {
        match observation.next().await {
            Ok(Some(leader)) => {
                let name = leader.candidate.unwrap_or_default();
                println!("{name} leads in term {}", leader.term);
            }
            Ok(None) => println!("nobody leads"),
            Err(error) => println!("nobody knows: {error}"),
        }
    }
}
