//! The client behind the driver protocol of the conformance suite (clients/README.md).

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redislock_client::{Error, Guard, Owner, Redlock, Released, Reports, Verdict, redis};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio_util::sync::CancellationToken;

/// What the runner opened and asked for, by the names that it gave.
#[derive(Default)]
struct Opened {
    /// A server that cannot serve is an error of the acquire, as it is in the other libraries.
    clients: HashMap<String, Result<Redlock, Error>>,
    plain: HashMap<String, redis::Client>,
    guards: HashMap<String, Hold>,
    owners: HashMap<String, Owner>,
    cancels: HashMap<u64, CancellationToken>,
}

/// A guard until it is released.
type Hold = Arc<tokio::sync::Mutex<Option<Guard>>>;
type Shared = Arc<Mutex<Opened>>;

/// Why there is no result.
enum Failure {
    Skip(&'static str),
    Cancelled,
    Library(Error),
    Other(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Library(error)
    }
}

#[tokio::main]
async fn main() {
    let opened = Shared::default();
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let ask: Value = serde_json::from_str(&line).expect("the runner writes JSON");
        if ask["op"] == "acquire" {
            let id = ask["id"].as_u64().expect("an id");
            opened
                .lock()
                .unwrap()
                .cancels
                .insert(id, CancellationToken::new());
        }
        let opened = opened.clone();
        tokio::spawn(async move {
            let mut answer = match work(&opened, &ask).await {
                Ok(result) => json!({ "ok": result }),
                Err(Failure::Skip(why)) => json!({ "skip": why }),
                Err(failure) => json!({ "error": told(failure) }),
            };
            answer["id"] = ask["id"].clone();
            println!("{answer}");
        });
    }
}

fn told(failure: Failure) -> Value {
    let error = match failure {
        Failure::Library(error) => error,
        Failure::Cancelled => return json!({ "kind": "cancelled", "message": "dropped" }),
        Failure::Skip(text) => return json!({ "kind": "skip", "message": text }),
        Failure::Other(text) => return json!({ "kind": "other", "message": text }),
    };
    let message = error.to_string();
    let mut told = json!({ "kind": kind(&error), "message": message });
    if let Error::NoQuorum { nodes, .. } = &error
        && let Some(after) = quarantine(nodes)
    {
        told["kind"] = json!("quarantined");
        told["retry_after"] = json!(after.as_secs_f64() * 1000.0);
    }
    told
}

fn kind(error: &Error) -> &'static str {
    match error {
        Error::Busy { .. } => "busy",
        Error::NoQuorum { .. } => "unavailable",
        Error::Lost { .. } => "lost",
        Error::Refused { .. } | Error::Misconfigured { .. } => "misconfigured",
        Error::Invalid(_) => "invalid",
        Error::Command(error) if error.is_io_error() || error.is_timeout() => "unavailable",
        Error::Command(_) => "misconfigured",
        _ => "other",
    }
}

fn quarantine(nodes: &Reports) -> Option<Duration> {
    nodes.iter().find_map(|report| match report.verdict {
        Verdict::Quarantined { retry_in } => Some(retry_in.unwrap_or_default()),
        _ => None,
    })
}

async fn work(opened: &Shared, ask: &Value) -> Result<Value, Failure> {
    let text = |field: &str| ask[field].as_str().unwrap_or_default().to_owned();
    match ask["op"].as_str().unwrap_or_default() {
        "open" => open(opened, ask).await,
        "acquire" => acquire(opened, ask).await,
        "cancel" => {
            let id = ask["acquire"].as_u64().expect("an id");
            opened.lock().unwrap().cancels[&id].cancel();
            Ok(json!({}))
        }
        "command" => {
            let client = opened.lock().unwrap().plain[&text("client")].clone();
            let mut connection = client
                .get_multiplexed_async_connection()
                .await
                .map_err(other)?;
            let reply: redis::Value = command(ask)
                .query_async(&mut connection)
                .await
                .map_err(other)?;
            Ok(json!({ "reply": plain(reply) }))
        }
        "close" => {
            let client = opened.lock().unwrap().clients[&text("client")].clone()?;
            client.close(Duration::from_secs(2)).await;
            Ok(json!({}))
        }
        "run" => Err(Failure::Skip("run() drops its work at the loss")),
        _ => held(opened, ask).await,
    }
}

fn other(error: redis::RedisError) -> Failure {
    Failure::Other(error.to_string())
}

/// What is asked of a lock that was granted.
async fn held(opened: &Shared, ask: &Value) -> Result<Value, Failure> {
    let name = ask["held"].as_str().unwrap_or_default();
    let hold = opened.lock().unwrap().guards[name].clone();
    let mut slot = hold.lock().await;
    let op = ask["op"].as_str().unwrap_or_default();
    let Some(guard) = slot.as_ref() else {
        return Ok(match op {
            "release" => json!({ "held": false }),
            _ => json!({ "valid_for": 0, "lost": true }),
        });
    };
    let milliseconds = |left: Duration| left.as_secs_f64() * 1000.0;
    match op {
        "state" => {
            let lost = guard.lost_token().is_cancelled() || !guard.is_valid();
            let left = if lost {
                Duration::ZERO
            } else {
                guard.valid_until().remaining()
            };
            Ok(json!({ "valid_for": milliseconds(left), "lost": lost }))
        }
        "await_lost" => {
            let (lost, held) = (guard.lost(), guard.held());
            drop(slot);
            lost.await;
            Ok(json!({ "valid_for": milliseconds(held.valid_until().remaining()) }))
        }
        "guard" => {
            let reply: redis::Value = guard.command(&command(ask)).await?;
            Ok(json!({ "reply": plain(reply) }))
        }
        "release" => {
            let released = slot.take().expect("a guard").release().await;
            Ok(json!({ "held": matches!(released, Released::WasHeld | Released::StillHeld) }))
        }
        _ => Err(Failure::Skip("not in this language")),
    }
}

fn command(ask: &Value) -> redis::Cmd {
    let mut words = ask["command"].as_array().into_iter().flatten();
    let mut command = redis::cmd(words.next().and_then(Value::as_str).unwrap_or_default());
    for word in words {
        command.arg(word.as_str().unwrap_or_default());
    }
    command
}

fn plain(reply: redis::Value) -> Value {
    match reply {
        redis::Value::Int(number) => json!(number),
        redis::Value::Okay => json!("OK"),
        redis::Value::SimpleString(text) => json!(text),
        redis::Value::BulkString(bytes) => json!(String::from_utf8_lossy(&bytes)),
        _ => Value::Null,
    }
}

async fn open(opened: &Shared, ask: &Value) -> Result<Value, Failure> {
    let urls: Vec<String> = ask["addresses"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|address| {
            let login = match (ask["username"].as_str(), ask["password"].as_str()) {
                (Some(name), Some(password)) => format!("{name}:{password}@"),
                _ => String::new(),
            };
            let host = address[0].as_str().unwrap_or_default();
            format!("redis://{login}{host}:{}", address[1])
        })
        .collect();
    let builder = match ask["mode"].as_str() {
        Some("sentinel") => {
            Redlock::builder().sentinel(ask["master"].as_str().unwrap_or_default(), &urls)
        }
        Some("cluster") => Redlock::builder().cluster(&urls),
        _ => Redlock::builder().nodes(&urls),
    };
    let builder = match ask["answer"].as_u64() {
        Some(ms) => builder.node_timeout(Duration::from_millis(ms)),
        None => builder,
    };
    let client = builder.connect().await;
    let plain = redis::Client::open(urls[0].as_str()).map_err(other)?;
    let name = ask["client"].as_str().unwrap_or_default().to_owned();
    let mut opened = opened.lock().unwrap();
    opened.plain.insert(name.clone(), plain);
    opened.clients.insert(name, client);
    Ok(json!({}))
}

async fn acquire(opened: &Shared, ask: &Value) -> Result<Value, Failure> {
    let text = |field: &str| ask[field].as_str().unwrap_or_default().to_owned();
    let (client, cancel) = {
        let opened = opened.lock().unwrap();
        let id = ask["id"].as_u64().expect("an id");
        (
            opened.clients[&text("client")].clone(),
            opened.cancels[&id].clone(),
        )
    };
    let milliseconds = |value: &Value| match value.as_i64() {
        Some(ms) if ms >= 0 => Ok(Duration::from_millis(ms.unsigned_abs())),
        _ => Err(Failure::Skip("the compiler refuses this")),
    };
    if ask["renew_every"]
        .as_u64()
        .is_some_and(|every| Some(every) >= ask["ttl"].as_u64())
    {
        return Err(Failure::Skip("the interval of renewal cannot be chosen"));
    }
    let client = client?;
    let mut lock = match &ask["name"] {
        Value::String(name) if name.is_empty() => {
            return Err(Failure::Skip("a name may be empty"));
        }
        Value::String(name) => client.lock(name),
        Value::Array(names) => {
            client.lock_all(names.iter().map(|name| name.as_str().unwrap_or_default()))
        }
        _ => return Err(Failure::Skip("the compiler refuses this")),
    };
    lock = lock.ttl(milliseconds(&ask["ttl"])?);
    if ask["wait"].as_f64().is_some_and(|wait| wait > 1e12) {
        return Err(Failure::Skip("a wait may be as long as a Duration"));
    }
    if !ask["wait"].is_null() {
        lock = lock.wait(milliseconds(&ask["wait"])?);
    }
    if ask["shared"] == true {
        lock = lock.shared();
    }
    if let Some(limit) = ask["limit"].as_u64() {
        lock = lock.limit(u32::try_from(limit).expect("a limit"));
    }
    if ask["renew"] == false {
        lock = lock.renew(false);
    }
    if let Some(name) = ask["owner"].as_str() {
        let mut opened = opened.lock().unwrap();
        lock = lock.owner(opened.owners.entry(name.to_owned()).or_default());
    }
    let guard = tokio::select! {
        biased;
        () = cancel.cancelled() => return Err(Failure::Cancelled),
        guard = lock.acquire() => guard?,
    };
    let fence = guard.fence();
    let hold = Arc::new(tokio::sync::Mutex::new(Some(guard)));
    opened.lock().unwrap().guards.insert(text("held"), hold);
    Ok(json!({ "fence": fence }))
}
