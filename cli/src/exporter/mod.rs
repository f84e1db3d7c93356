//! `redlock exporter`: the metrics of all nodes over HTTP. `sample.rs` asks the nodes, `page.rs`
//! writes what they said as OpenMetrics text, this file serves it.

mod fields;
mod page;
mod sample;

use std::io::ErrorKind;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use redislock_client::Moment;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::Mutex;

use crate::args::Exporter;
use crate::exit::{Failure, IO};
use crate::output::Output;
use crate::signals::Signals;

use self::sample::Collector;

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const INDEX: &str = "redlock exporter: the metrics are at /metrics\n";

/// The last page. Requests that arrive while it is made share the next one, so that many of them
/// do not make a slow node slower.
struct Pages {
    collector: Collector,
    text: String,
    begun: Option<Moment>,
}

type Shared = Arc<Mutex<Pages>>;

/// Serves until a signal ends it.
pub async fn exporter(args: Exporter, output: &Output) -> Result<u8, Failure> {
    let collector = Collector::new(args.place, output.json)?;
    let mut signals = Signals::listen()?;
    let listener = TcpListener::bind(&args.listen).await;
    let listener = listener.map_err(|error| cannot_listen(&args.listen, &error))?;
    let address = listener.local_addr();
    let address = address.map_err(|error| cannot_listen(&args.listen, &error))?;
    let pages = Arc::new(Mutex::new(Pages {
        collector,
        text: String::new(),
        begun: None,
    }));
    let routes = Router::new()
        .route("/", get(|| async { INDEX }))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/metrics", get(metrics))
        .with_state(pages);
    output.message(
        &format!("serving http://{address}/metrics"),
        json!({ "event": "serving", "address": address.to_string() }),
    );
    tokio::select! {
        served = axum::serve(listener, routes) => {
            served.map_err(|error| cannot_listen(&args.listen, &error))?;
        }
        _ = signals.end() => {}
    }
    Ok(0)
}

async fn metrics(State(pages): State<Shared>) -> impl IntoResponse {
    let arrived = Moment::now();
    let mut pages = pages.lock().await;
    if pages.begun.is_none_or(|begun| begun < arrived) {
        // A client that leaves ends this in the middle: only a whole page counts.
        let begun = Moment::now();
        let sample = pages.collector.collect().await;
        pages.text = page::write(&sample);
        pages.begun = Some(begun);
    }
    ([(CONTENT_TYPE, OPENMETRICS)], pages.text.clone())
}

fn cannot_listen(address: &str, error: &std::io::Error) -> Failure {
    let fix = match error.kind() {
        ErrorKind::AddrInUse => "another program uses this port: choose another one with --listen",
        ErrorKind::PermissionDenied => "ports below 1024 need root: choose a higher one",
        _ => "give an address of this host, as in --listen 127.0.0.1:9936",
    };
    Failure::new(IO, format!("cannot listen on {address} ({error}): {fix}"))
}
