//! Sends what was seen to open pages. Pages that show the same share one text. A page that reads
//! slowly gets the newest text and misses those before it, so memory does not grow.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes};
use futures_util::stream;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::data::{self, Topic};
use super::notes::Notes;
use crate::watch::Watch;

/// Pages that may be open at the same time.
pub const PAGES: usize = 256;
/// A page gets a message at least this often, so that it knows that the connection works.
const STILL_HERE: Duration = Duration::from_secs(5);

/// The texts of all open pages.
pub struct Feed {
    watch: Watch,
    notes: Notes,
    topics: Mutex<BTreeMap<Topic, watch::Sender<Bytes>>>,
    room: Arc<Semaphore>,
}

/// One open page.
struct Page {
    news: watch::Receiver<Bytes>,
    begun: bool,
    _permit: OwnedSemaphorePermit,
}

impl Feed {
    pub fn start(watch: Watch, notes: Notes) -> Arc<Self> {
        let feed = Arc::new(Self {
            watch,
            notes,
            topics: Mutex::default(),
            room: Arc::new(Semaphore::new(PAGES)),
        });
        tokio::spawn(Arc::clone(&feed).run());
        feed
    }

    async fn run(self: Arc<Self>) {
        let mut watch = self.watch.clone();
        loop {
            watch.changed().await;
            let topics: Vec<Topic> = self.topics().keys().cloned().collect();
            for topic in topics {
                self.render(&topic);
                // Other clients are served between two texts.
                tokio::task::yield_now().await;
            }
        }
    }

    fn topics(&self) -> std::sync::MutexGuard<'_, BTreeMap<Topic, watch::Sender<Bytes>>> {
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends the text of this topic, or forgets it if no page shows it any more.
    fn render(&self, topic: &Topic) {
        let is_read = |send: &watch::Sender<Bytes>| send.receiver_count() > 0;
        if !self.topics().get(topic).is_some_and(is_read) {
            self.topics().remove(topic);
            return;
        }
        let text = self.text(topic);
        if let Some(send) = self.topics().get(topic) {
            send.send_replace(text);
        }
    }

    fn text(&self, topic: &Topic) -> Bytes {
        let notes = self.notes.read();
        let value = data::page(&mut self.watch.seen(), topic, notes);
        // JSON has no line breaks outside of strings, and none inside.
        Bytes::from(format!("data: {value}\n\n"))
    }

    /// What a page that shows this topic reads; none if too many pages are open.
    pub fn subscribe(feed: &Arc<Self>, topic: Topic) -> Option<Body> {
        let permit = Arc::clone(&feed.room).try_acquire_owned().ok()?;
        let first = feed.text(&topic);
        let mut topics = feed.topics();
        let send = topics.entry(topic);
        let send = send.or_insert_with(|| watch::Sender::new(Bytes::new()));
        send.send_replace(first);
        let page = Page {
            news: send.subscribe(),
            begun: false,
            _permit: permit,
        };
        Some(Body::from_stream(stream::unfold(page, next)))
    }

    pub fn locks(&self, topic: &Topic) -> Value {
        data::locks(&mut self.watch.seen(), topic)
    }

    pub fn nodes(&self) -> Value {
        data::nodes(&self.watch.seen())
    }
}

/// The next text of a page.
async fn next(mut page: Page) -> Option<(Result<Bytes, std::convert::Infallible>, Page)> {
    if page.begun {
        match tokio::time::timeout(STILL_HERE, page.news.changed()).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return None,
            Err(_) => return Some((Ok(Bytes::from_static(b": still here\n\n")), page)),
        }
    }
    page.begun = true;
    let text = page.news.borrow_and_update().clone();
    Some((Ok(text), page))
}
