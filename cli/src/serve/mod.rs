//! `redlock serve`: one live page about all nodes and locks, and the same as JSON. `data.rs` says
//! what is shown, `feed.rs` sends it to open pages, `notes.rs` reads texts of the operator, this
//! file serves. It only reads: nothing here changes a lock.

pub mod data;
mod feed;
mod notes;

use std::sync::Arc;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::json;

use crate::args::Serve;
use crate::exit::Failure;
use crate::exporter;
use crate::http::gate::{Token, guarded};
use crate::http::{Server, TlsFiles, is_loopback};
use crate::output::Output;
use crate::signals::Signals;
use crate::watch::Watch;

use self::data::Topic;
use self::feed::Feed;
use self::notes::Notes;

const HTML: &str = include_str!("page/index.html");
const SCRIPT: &str = include_str!("page/app.js");
const STYLE: &str = include_str!("page/app.css");
const ICON: &str = include_str!("page/icon.svg");
const JSON: &str = "application/json";

/// Serves until a signal ends it.
pub async fn serve(args: Serve, output: &Output) -> Result<u8, Failure> {
    let tls = tls(&args)?;
    if !is_loopback(&args.listen).await? && (tls.is_none() || args.token_file.is_none()) {
        return Err(Failure::usage(format!(
            "{} can be reached from other hosts: that needs --token-file, --tls-cert and --tls-key",
            args.listen
        )));
    }
    let secure = tls.is_some();
    let token = args.token_file.as_deref();
    let token = token.map(|file| Token::read(file, secure)).transpose()?;
    let mut signals = Signals::listen()?;
    let server = Server::bind(&args.listen, tls.as_ref()).await?;
    let metrics = exporter::routes(args.place.clone(), output.json)?;
    let watch = Watch::start(args.place, args.interval).await?;
    let feed = Feed::start(watch, Notes::new(args.notes));
    let url = server.url();
    output.message(
        &format!("serving {url}/"),
        json!({ "event": "serving", "address": server.address.to_string(), "url": url }),
    );
    let routes = guarded(routes(feed).merge(metrics), token);
    server.serve(routes, &mut signals).await?;
    Ok(0)
}

fn tls(args: &Serve) -> Result<Option<TlsFiles>, Failure> {
    match (&args.tls_cert, &args.tls_key) {
        (None, None) => Ok(None),
        (Some(certificate), Some(key)) => Ok(Some(TlsFiles {
            certificate: certificate.clone(),
            key: key.clone(),
        })),
        _ => Err(Failure::usage("--tls-cert and --tls-key belong together")),
    }
}

fn routes(feed: Arc<Feed>) -> Router {
    let text = |kind: &'static str, text: &'static str| {
        get(move || async move { ([(CONTENT_TYPE, kind)], text) })
    };
    Router::new()
        .route("/", text("text/html; charset=utf-8", HTML))
        .route("/app.js", text("text/javascript; charset=utf-8", SCRIPT))
        .route("/app.css", text("text/css; charset=utf-8", STYLE))
        .route("/icon.svg", text("image/svg+xml", ICON))
        .route("/api/locks", get(locks))
        .route("/api/nodes", get(nodes))
        .route("/events", get(events))
        .with_state(feed)
}

async fn locks(State(feed): State<Arc<Feed>>, RawQuery(query): RawQuery) -> Response {
    reply(Topic::parse(query.as_deref()).map(|topic| feed.locks(&topic)))
}

async fn nodes(State(feed): State<Arc<Feed>>) -> Response {
    reply(Ok(feed.nodes()))
}

async fn events(State(feed): State<Arc<Feed>>, RawQuery(query): RawQuery) -> Response {
    let topic = match Topic::parse(query.as_deref()) {
        Ok(topic) => topic,
        Err(problem) => return wrong(problem),
    };
    match Feed::subscribe(&feed, topic) {
        Some(body) => ([(CONTENT_TYPE, "text/event-stream")], body).into_response(),
        None => {
            let text = format!("{} pages are open already: close one\n", feed::PAGES);
            (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
        }
    }
}

fn reply(value: Result<serde_json::Value, &'static str>) -> Response {
    match value {
        Ok(value) => ([(CONTENT_TYPE, JSON)], format!("{value}\n")).into_response(),
        Err(problem) => wrong(problem),
    }
}

fn wrong(problem: &'static str) -> Response {
    let body = format!("{}\n", json!({ "error": problem }));
    (StatusCode::BAD_REQUEST, [(CONTENT_TYPE, JSON)], body).into_response()
}
