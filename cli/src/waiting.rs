//! Getting the lock, and saying for whom one waits and how long: a terminal gets a line that follows what happens, a log
//! gets one line.

use std::time::Duration;

use redislock_client::{Error, Guard, Lock, Moment, Observer};
use serde_json::{Value, json};

use crate::duration::{Patience, shown};
use crate::merged::{Merged, State, millis, visible};
use crate::voice::Voice;

/// Whoever gets the lock within this time says nothing about having waited.
const WORTH_SAYING: Duration = Duration::from_millis(250);
/// How often the line on a terminal is written anew.
const REWRITE_EVERY: Duration = Duration::from_millis(250);
/// How often the nodes are asked for it.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Acquires the lock of this name, which `lock` asks for.
pub async fn acquire(
    lock: Lock,
    key: &str,
    wait: Patience,
    observer: &Observer,
    voice: &Voice,
) -> Result<Guard, Error> {
    let lock = match wait {
        Patience::AtMost(Duration::ZERO) => return lock.try_acquire().await,
        Patience::AtMost(wait) => lock.wait(wait),
        Patience::Forever => lock,
    };
    let since = Moment::now();
    let telling = async {
        tokio::time::sleep(WORTH_SAYING).await;
        tell(key, since, wait, observer, voice).await
    };
    let acquired = tokio::select! {
        biased;
        acquired = lock.acquire() => acquired,
        never = telling => match never {},
    };
    voice.clear();
    acquired
}

async fn tell(
    key: &str,
    since: Moment,
    wait: Patience,
    observer: &Observer,
    voice: &Voice,
) -> std::convert::Infallible {
    let mut said = false;
    loop {
        let seen = Merged::of(&observer.lock(key).await);
        let looked = Moment::now();
        let obstacle = obstacle(observer, &seen).await;
        if !voice.is_live() && !std::mem::replace(&mut said, true) {
            let text = line(key, &obstacle, since, wait);
            voice.say(&text, fields(key, &seen, &obstacle, since, wait));
        }
        // Nobody is asked again where nothing could be rewritten; a job may come to the foreground, though.
        while !voice.is_live() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        while voice.is_live() && Moment::now().since(looked) < LOOK_EVERY {
            voice.rewrite(&line(key, &obstacle, since, wait));
            tokio::time::sleep(REWRITE_EVERY).await;
        }
    }
}

/// For whom or for what one waits.
async fn obstacle(observer: &Observer, seen: &Merged) -> String {
    if seen.state == State::Free {
        let nodes = observer.nodes().await;
        let answered = nodes.iter().filter_map(|node| node.result.as_ref().ok());
        let left: Vec<Duration> = answered
            .map(|node| node.quarantine)
            .filter(|left| !left.is_zero())
            .collect();
        if let Some(longest) = left.iter().max() {
            return format!(
                "nobody holds it, but {} of {} nodes are quarantined for up to {}",
                left.len(),
                nodes.len(),
                shown(*longest)
            );
        }
    }
    match seen.waiters {
        0 | 1 => seen.holder_line(),
        waiters => format!("{}, {waiters} are waiting", seen.holder_line()),
    }
}

fn line(key: &str, obstacle: &str, since: Moment, wait: Patience) -> String {
    let waited = shown(Moment::now().since(since));
    let of = match wait {
        Patience::Forever => String::new(),
        Patience::AtMost(wait) => format!(" of {}", shown(wait)),
    };
    format!(
        "waiting for lock {} ({waited}{of}), {obstacle}",
        visible(key)
    )
}

fn fields(key: &str, seen: &Merged, obstacle: &str, since: Moment, wait: Patience) -> Value {
    let gives_up = match wait {
        Patience::Forever => None,
        Patience::AtMost(wait) => Some(millis((since + wait).remaining())),
    };
    json!({
        "event": "waiting",
        "for": obstacle,
        "waited_ms": millis(Moment::now().since(since)),
        "gives_up_in_ms": gives_up,
        "lock": seen.json(key),
    })
}
