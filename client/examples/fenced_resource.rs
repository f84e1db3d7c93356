//! A resource that fences: the only protection against a holder that was paused, lost the lock, and
//! does not know.
//!
//! The resource here is an account book. A writer first *registers* its fence, then reads,
//! computes, and writes with the same fence. Registering before reading matters: what the writer
//! read is then newer than anything an earlier holder can still write, as the resource refuses
//! lower fences from that moment on.
//!
//! The program plays the accident: the first holder pauses (here: without renewal) until its lease
//! is over, a second holder does its work, then the first wakes up and writes. The write is
//! refused.
//!
//! `cargo run --example fenced_resource -- redis://127.0.0.1:6379`

use std::sync::Mutex;
use std::time::Duration;

use redislock_client::{Error, Redlock};

/// A request with a lower fence than the highest one registered comes too late.
#[derive(Debug, PartialEq, Eq)]
struct TooLate {
    registered: u64,
}

#[derive(Default)]
struct Account {
    book: Mutex<Book>,
}

#[derive(Default)]
struct Book {
    registered: u64,
    balance: i64,
}

impl Account {
    /// Registers the fence and reads, in one step.
    fn read(&self, fence: u64) -> Result<i64, TooLate> {
        let mut book = self.book.lock().unwrap();
        if fence < book.registered {
            return Err(TooLate {
                registered: book.registered,
            });
        }
        book.registered = fence;
        Ok(book.balance)
    }

    /// Writes, unless a later holder has registered meanwhile.
    fn write(&self, fence: u64, balance: i64) -> Result<(), TooLate> {
        let mut book = self.book.lock().unwrap();
        if fence < book.registered {
            return Err(TooLate {
                registered: book.registered,
            });
        }
        book.balance = balance;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let mut urls: Vec<String> = std::env::args().skip(1).collect();
    if urls.is_empty() {
        urls.push("redis://127.0.0.1:6379".to_owned());
    }
    let client = Redlock::connect(urls).await?;
    let account = Account::default();
    let lock = client.lock("account").ttl(Duration::from_millis(500));

    // The first holder reads, and is paused: nobody renews its lease.
    let paused = lock.clone().renew(false).acquire().await?;
    let stale = account
        .read(paused.fence())
        .expect("nobody was here before");

    // The second one waits until that lease is over, and adds 100.
    let second = lock.acquire().await?;
    let balance = account.read(second.fence()).expect("its fence is higher");
    account
        .write(second.fence(), balance + 100)
        .expect("its fence is higher");
    println!("fence {} wrote 100", second.fence());
    second.release().await;

    // The first one wakes up, believes that it holds the lock, and would overwrite what the second
    // one did.
    let refused = account
        .write(paused.fence(), stale + 1)
        .expect_err("the resource knows a higher fence");
    println!(
        "fence {} was refused, {} is registered",
        paused.fence(),
        refused.registered
    );
    assert_eq!(
        account.book.lock().unwrap().balance,
        100,
        "no update was lost"
    );
    Ok(())
}
