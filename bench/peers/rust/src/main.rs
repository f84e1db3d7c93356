//! Workers that compete for one lock: redislock-peers PEER PORTS WORKERS SECONDS (protocol:
//! ../run.py).

use std::process::ExitCode;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use redislock_client::Redlock;
use redislock_client::redis::{self, Script, aio::MultiplexedConnection};
use rslock::LockManager;
use serde::Serialize;
use tokio::task::JoinSet;
use uuid::Uuid;

const KEY: &str = "bench";
const TTL: Duration = Duration::from_secs(30);
/// Built once: this computes its SHA-1.
static RELEASE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "if redis.call('GET',KEYS[1])==ARGV[1] then return redis.call('DEL',KEYS[1]) end return 0",
    )
});

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// A lock and its connections, which all workers share.
enum Peer {
    Ours(Redlock),
    Rslock(LockManager),
    Polling(MultiplexedConnection),
}

impl Peer {
    async fn connect(name: &str, ports: &str) -> Outcome<Self> {
        let ports = ports.split(',');
        let urls: Vec<_> = ports
            .map(|port| format!("redis://127.0.0.1:{port}"))
            .collect();
        Ok(match name {
            "rslock" => Self::Rslock(LockManager::new(urls)),
            "SET NX on redis-rs" => {
                let client = redis::Client::open(urls[0].as_str())?;
                Self::Polling(client.get_multiplexed_async_connection().await?)
            }
            _ => Self::Ours(Redlock::connect(urls).await?),
        })
    }

    /// Runs the work under the lock.
    async fn run(&self, work: impl FnOnce()) -> Outcome<()> {
        match self {
            Self::Ours(client) => {
                let guard = client.lock(KEY).ttl(TTL).acquire().await?;
                work();
                guard.release().await;
            }
            Self::Rslock(manager) => {
                let guard = manager.acquire(KEY, TTL).await?;
                work();
                guard.release().await;
            }
            Self::Polling(connection) => polled(connection.clone(), work).await?,
        }
        Ok(())
    }
}

/// A lock that polls, as many programs write it by hand.
async fn polled(mut connection: MultiplexedConnection, work: impl FnOnce()) -> Outcome<()> {
    let token = Uuid::new_v4().to_string();
    let mut set = redis::cmd("SET");
    set.arg(KEY).arg(&token).arg("NX").arg("PX");
    set.arg(TTL.as_millis() as u64);
    while set
        .query_async::<Option<String>>(&mut connection)
        .await?
        .is_none()
    {
        let random = Uuid::new_v4().as_u128() as u64 % 50;
        tokio::time::sleep(Duration::from_millis(50 + random)).await;
    }
    work();
    let _: u64 = RELEASE
        .key(KEY)
        .arg(token)
        .invoke_async(&mut connection)
        .await?;
    Ok(())
}

/// What one period of work came to.
#[derive(Serialize)]
struct Tally {
    grants: Vec<u64>,
    waits: Vec<u64>,
    handovers: u64,
    #[serde(skip)]
    last: Option<usize>,
}

impl Tally {
    fn add(&mut self, worker: usize, asked: Instant, end: Instant) {
        let now = Instant::now();
        self.waits
            .push(now.duration_since(asked).as_micros() as u64);
        if now < end {
            self.grants[worker] += 1;
            self.handovers += u64::from(self.last != Some(worker));
            self.last = Some(worker);
        }
    }
}

async fn measure(peer: &Arc<Peer>, workers: usize, seconds: u64) -> Outcome<String> {
    let tally = Arc::new(Mutex::new(Tally {
        grants: vec![0; workers],
        waits: Vec::new(),
        handovers: 0,
        last: None,
    }));
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut team = JoinSet::new();
    for worker in 0..workers {
        let (peer, tally) = (Arc::clone(peer), Arc::clone(&tally));
        team.spawn(async move {
            loop {
                let asked = Instant::now();
                if asked >= end {
                    return Ok(());
                }
                let granted = || {
                    let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
                    tally.add(worker, asked, end);
                };
                peer.run(granted).await?;
            }
        });
    }
    team.join_all()
        .await
        .into_iter()
        .collect::<Outcome<Vec<()>>>()?;
    let tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(serde_json::to_string(&*tally)?)
}

async fn compete() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [peer, ports, workers, seconds] = words.as_slice() else {
        return Err("usage: redislock-peers PEER PORTS WORKERS SECONDS".into());
    };
    let (workers, seconds) = (workers.parse()?, seconds.parse()?);
    let peer = Arc::new(Peer::connect(peer, ports).await?);
    measure(&peer, workers, 1).await?;
    println!("ready");
    // Nothing else has to be done meanwhile.
    std::io::stdin().read_line(&mut String::new())?;
    println!("{}", measure(&peer, workers, seconds).await?);
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    match compete().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
