//! Re-entry on the servers themselves. The client library counts re-entries of an owner in its own
//! memory and only extends the lease: it never increases a hold count on a server.

use std::time::{Duration, Instant};

use redislock_client::redis::{Client, RedisResult, cmd};
use redislock_testkit::history::What;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::worker::Reach;

/// In one atomic step, and only if the token holds the lock. The names are in lower case: faults
/// that wait for a request of the client library ignore them.
const SCRIPT: &str = "\
local function holder()
  local reply = redis.call('lock.info', KEYS[1], ARGV[1])
  local fields = {fence = 0, holds = 0, ttl = 0}
  for i = 1, reply and #reply or 0, 2 do fields[reply[i]] = reply[i + 1] end
  return fields
end
local before = holder()
if before.holds == 0 then return false end
local fence = redis.call('lock.acquire', KEYS[1], ARGV[1], ARGV[2]) or 0
local during = holder()
local removed = fence ~= 0 and redis.call('lock.release', KEYS[1], ARGV[1]) or 0
local after = holder()
return {before.fence, fence, during.fence, after.fence,
  before.holds, during.holds, after.holds, removed, before.ttl}";

/// Re-enters a lock on every server on which the token holds it, and releases the re-entry.
/// Returns what they replied, as lines for the journal. Servers that are not reached in time, or
/// refuse, are left out.
pub async fn re_enter(
    reach: &Reach,
    lock: &str,
    token: &[u8],
    ttl: u64,
    patience: Duration,
) -> Vec<What> {
    let mut replies = JoinSet::new();
    for url in servers(reach, patience).await {
        let (lock, token) = (lock.to_owned(), token.to_owned());
        replies.spawn(async move {
            let asked = timeout(patience, ask(&url, &lock, &token, ttl)).await;
            asked.ok()?.ok()?
        });
    }
    replies.join_all().await.into_iter().flatten().collect()
}

/// The addresses of the servers that may have the lock.
async fn servers(reach: &Reach, patience: Duration) -> Vec<String> {
    let (name, sentinels) = match reach {
        Reach::Nodes(urls) | Reach::Cluster(urls) => return urls.clone(),
        Reach::Sentinel(name, sentinels) => (name, sentinels),
    };
    for sentinel in sentinels {
        if let Ok(Ok((host, port))) = timeout(patience, master(sentinel, name)).await {
            return vec![format!("redis://{host}:{port}")];
        }
    }
    Vec::new()
}

async fn master(sentinel: &str, name: &str) -> RedisResult<(String, u16)> {
    let client = Client::open(sentinel)?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    let mut question = cmd("SENTINEL");
    question.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    question.query_async(&mut connection).await
}

/// None if the token does not hold the lock there, or if its lease may have ended in between.
async fn ask(url: &str, lock: &str, token: &[u8], ttl: u64) -> RedisResult<Option<What>> {
    let client = Client::open(url)?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    let mut script = cmd("EVAL");
    script.arg(SCRIPT).arg(1).arg(lock).arg(token).arg(ttl);
    let sent = Instant::now();
    let reply: Option<[u64; 9]> = script.query_async(&mut connection).await?;
    let took = sent.elapsed();
    Ok(
        reply.and_then(|[a, b, c, d, before, during, after, removed, left]| {
            (took < Duration::from_millis(left)).then_some(What::Reentered {
                fences: [a, b, c, d],
                holds: [before, during, after],
                removed,
            })
        }),
    )
}

#[cfg(test)]
mod tests {
    use redislock_testkit::Server;

    use super::*;

    #[tokio::test]
    async fn a_server_counts_the_re_entry_and_its_release() {
        let server = Server::start();
        let fence = server.run::<i64>(&["LOCK.ACQUIRE", "job", "me", "60000"]) as u64;
        let reach = Reach::Nodes(vec![server.url()]);
        let patience = redislock_testkit::PATIENCE;
        let found = re_enter(&reach, "job", b"me", 60_000, patience).await;
        let expected = What::Reentered {
            fences: [fence; 4],
            holds: [1, 2, 1],
            removed: 1,
        };
        assert_eq!(found, [expected]);
        assert_eq!(
            re_enter(&reach, "job", b"other", 60_000, patience).await,
            []
        );
    }
}
