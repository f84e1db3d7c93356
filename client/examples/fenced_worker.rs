//! A worker that may be paused at any time, and a resource that does not mind.
//!
//! The resource is an account in a Redis of its own (it could be any store that compares and writes
//! in one step). The worker takes the lock, registers its fence, reads the balance, then adds each
//! amount that it reads from its input. Start two of them, stop the one that holds the lock
//! (Ctrl-Z) until its lease is over and the other one has worked, then wake it: what it writes is
//! refused.
//!
//! `cargo run --example fenced_worker -- redis://127.0.0.1:7000 redis://127.0.0.1:6379`: the
//! resource, then the nodes.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redislock_client::Redlock;
use tokio::io::{AsyncBufReadExt, BufReader};

/// Registers the fence and reads, in one step: what was read is then newer than anything that an
/// earlier holder can still write.
const READ: &str = "
    local registered = redis.call('GET', 'account:fence') or '0'
    if tonumber(ARGV[1]) < tonumber(registered) then
        return redis.error_reply('FENCED ' .. registered)
    end
    redis.call('SET', 'account:fence', ARGV[1])
    return tonumber(redis.call('GET', 'account:balance') or '0')";

/// Writes, unless a later holder has registered meanwhile.
const WRITE: &str = "
    local registered = redis.call('GET', 'account:fence') or '0'
    if tonumber(ARGV[1]) < tonumber(registered) then
        return redis.error_reply('FENCED ' .. registered)
    end
    redis.call('SET', 'account:balance', ARGV[2])
    return tonumber(ARGV[2])";

async fn at_the_resource(
    resource: &mut MultiplexedConnection,
    script: &str,
    fence: u64,
    balance: i64,
) -> redis::RedisResult<i64> {
    redis::cmd("EVAL")
        .arg(script)
        .arg(0)
        .arg(fence)
        .arg(balance)
        .query_async(resource)
        .await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut urls = std::env::args().skip(1);
    let resource = urls.next().ok_or("the URL of the resource is missing")?;
    let client = redis::Client::open(resource)?;
    let mut resource = client.get_multiplexed_async_connection().await?;
    let locks = Redlock::builder()
        .nodes(urls)
        .node_timeout(Duration::from_millis(500))
        .connect()
        .await?;

    let lock = locks.lock("account").ttl(Duration::from_secs(2));
    let guard = lock.acquire().await?;
    let left = guard.valid_until().remaining().as_millis();
    println!("holding fence {} for {left} ms", guard.fence());
    let mut balance = at_the_resource(&mut resource, READ, guard.fence(), 0).await?;
    println!("read {balance}");

    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let mut told = false;
    loop {
        let line = tokio::select! {
            line = lines.next_line() => line?,
            // A worker would stop here. This one goes on, to show that the resource does not rely
            // on it.
            _ = guard.lost(), if !told => {
                println!("lost");
                told = true;
                continue;
            }
        };
        let Some(line) = line else {
            break;
        };
        let wanted = balance + line.trim().parse::<i64>()?;
        match at_the_resource(&mut resource, WRITE, guard.fence(), wanted).await {
            Ok(written) => {
                balance = written;
                println!("wrote {balance}");
            }
            Err(error) => println!("refused: {error}"),
        }
    }
    println!("released: {:?}", guard.release().await);
    Ok(())
}
