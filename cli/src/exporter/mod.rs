//! `redlock exporter`: the metrics of all nodes over HTTP. `sample.rs` asks the nodes, `page.rs`
//! writes what they said as OpenMetrics text, this file serves it.

mod fields;
mod page;
mod sample;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use redislock_client::Moment;
use serde_json::json;
use tokio::sync::Mutex;

use crate::args::{Exporter, Where};
use crate::exit::Failure;
use crate::http::Server;
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
    let routes = routes(args.place, output.json)?.route("/", get(|| async { INDEX }));
    let mut signals = Signals::listen()?;
    let server = Server::bind(&args.listen, None).await?;
    let address = server.address;
    output.message(
        &format!("serving http://{address}/metrics"),
        json!({ "event": "serving", "address": address.to_string() }),
    );
    server.serve(routes, &mut signals).await?;
    Ok(0)
}

/// `/metrics` and `/healthz`.
pub fn routes(place: Where, json: bool) -> Result<Router, Failure> {
    let pages = Arc::new(Mutex::new(Pages {
        collector: Collector::new(place, json)?,
        text: String::new(),
        begun: None,
    }));
    let routes = Router::new().route("/healthz", get(|| async { "ok\n" }));
    Ok(routes.route("/metrics", get(metrics)).with_state(pages))
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
