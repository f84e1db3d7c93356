//! The demonstration: five real masters, real worker processes that contend for one lock over a
//! fenced resource, real faults. Which faults happen when is scripted; their effects are not.
//! It takes half a minute and stops everything that it has started, also on ctrl-C, and on Linux
//! when it is killed. The exit code is 0 if no update was lost, each fence that the resource
//! accepted was higher than the one before, and the write of the paused holder was refused.
//!
//! `redislock-demo [--picture FILE]` saves the screen at the refused write as an SVG file.
//! `redislock-demo --web REDLOCK` shows it on the page of that `redlock serve`, too.
//! `redislock-demo worker NAME SOCKET URL...` is one of the workers that it starts.

mod frame;
mod holder;
mod resource;
mod scenario;
mod svg;
mod view;
mod web;
mod worker;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use redislock_client::{Observer, Redlock};
use redislock_testkit::Server;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::resource::Message;
use crate::scenario::{Observed, Scenario};
use crate::view::View;
use crate::web::{Enter, Web};
use crate::worker::Worker;

/// The lock that all workers contend for.
const KEY: &str = "demo";
/// Short enough for a pause beyond it to be watched.
const TTL: Duration = Duration::from_millis(1_500);
/// How long a restarted master grants nothing, because it may have lost a lease. Longer than the
/// ttl.
const QUARANTINE: Duration = Duration::from_millis(2_500);
const MASTERS: usize = 5;
const WORKERS: [&str; 4] = ["ada", "ben", "cyd", "dan"];
/// How often the screen is drawn and the script advances.
const TICK: Duration = Duration::from_millis(100);
/// How often the masters are asked.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// What goes wrong is told to a person.
type Outcome<T> = Result<T, String>;

/// Why it ends before its end.
enum Early {
    Failed(String),
    Signal(i32),
}

/// One thread: it starts masters and workers, and the kernel kills them when that thread ends.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(Early::Failed(error)) => {
            eprintln!("demo: {error}");
            ExitCode::FAILURE
        }
        Err(Early::Signal(number)) => ExitCode::from(u8::try_from(128 + number).unwrap_or(u8::MAX)),
    }
}

/// The number of the first signal that should end this process.
async fn next_signal() -> i32 {
    let ends = [
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::hangup(),
    ];
    let (send, mut first) = unbounded_channel();
    for kind in ends {
        let send = send.clone();
        tokio::spawn(async move {
            if let Ok(mut arrivals) = signal(kind) {
                arrivals.recv().await;
                let _ = send.send(kind.as_raw_value());
            }
        });
    }
    drop(send);
    match first.recv().await {
        Some(number) => number,
        // Signals cannot be listened to: they end the process without our help.
        None => std::future::pending().await,
    }
}

async fn run() -> Result<(), Early> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (picture, web) = match words[..] {
        [] => (None, None),
        ["--picture", file] => (Some(file.into()), None),
        ["--web", redlock] => (None, Some(redlock.into())),
        ["worker", name, socket, ref urls @ ..] => {
            let ended = worker::work(name, socket.as_ref(), urls).await;
            return ended.map_err(Early::Failed);
        }
        _ => {
            let usage = "usage: redislock-demo [--picture FILE | --web REDLOCK]";
            return Err(Early::Failed(usage.to_owned()));
        }
    };
    tokio::select! {
        ended = demonstrate(picture, web) => ended.map_err(Early::Failed),
        number = next_signal() => Err(Early::Signal(number)),
    }
}

/// Runs the demonstration to its end.
async fn demonstrate(picture: Option<PathBuf>, web: Option<PathBuf>) -> Outcome<()> {
    let scenario = play(web).await?;
    println!("\n{}", scenario.summary().join("\n"));
    if let (Some(file), Some(frame)) = (&picture, &scenario.highlight) {
        let written = std::fs::write(file, svg::draw(frame));
        written.map_err(|error| format!("cannot write the picture: {error}"))?;
    }
    if scenario.succeeded() {
        Ok(())
    } else {
        Err("the demonstration failed: see the summary".to_owned())
    }
}

/// Everything that this starts ends when it returns or is dropped.
async fn play(web: Option<PathBuf>) -> Outcome<Scenario> {
    let folder = tempfile::tempdir();
    let folder = folder.map_err(|error| format!("cannot create a temporary directory: {error}"))?;
    let masters = start_masters()?;
    let urls: Vec<String> = masters.iter().map(Server::url).collect();
    let mut page = match web {
        Some(redlock) => Some(open_page(&redlock, &urls, folder.path()).await?),
        None => None,
    };
    let socket = folder.path().join("resource");
    let (send, mut messages) = unbounded_channel();
    resource::open(&socket, send)?;
    let (tell, mut observed) = unbounded_channel();
    let observer = Redlock::builder().nodes(&urls).observe();
    let observer = observer.map_err(|error| error.to_string())?;
    tokio::spawn(observe(observer, tell));
    let mut workers = Vec::new();
    for name in WORKERS {
        workers.push(Worker::start(name, &urls, &socket)?);
    }
    let mut scenario = Scenario::new(masters, workers);
    let mut view = View::new();
    let mut stage = Stage {
        scenario: &mut scenario,
        view: &mut view,
        page: page.as_mut(),
    };
    stage.run_script(&mut messages, &mut observed).await?;
    scenario.stop_all().await;
    view.draw(&scenario);
    Ok(scenario)
}

fn start_masters() -> Outcome<Vec<Server>> {
    let quarantine = format!("lock.quarantine {}", QUARANTINE.as_millis());
    let options = Server::options().config(&quarantine);
    let options = options.end_with_this_process();
    (0..MASTERS).map(|_| options.clone().try_start()).collect()
}

/// Serves the page. On a terminal, the user opens it before anything happens.
async fn open_page(redlock: &Path, urls: &[String], folder: &Path) -> Outcome<(Web, Enter)> {
    let web = Web::start(redlock, urls, folder).await?;
    let mut enter = Enter::new();
    println!("The page: {}", web.url);
    if enter.is_there() {
        println!("Open it in a browser, then press Enter here: the demonstration begins.");
        enter.pressed().await;
    }
    Ok((web, enter))
}

/// What the script changes and who sees it.
struct Stage<'a> {
    scenario: &'a mut Scenario,
    view: &'a mut View,
    page: Option<&'a mut (Web, Enter)>,
}

impl Stage<'_> {
    async fn run_script(
        &mut self,
        messages: &mut UnboundedReceiver<Message>,
        observed: &mut UnboundedReceiver<Observed>,
    ) -> Outcome<()> {
        let mut tick = tokio::time::interval(TICK);
        let mut ended = false;
        while !ended {
            tokio::select! {
                biased;
                Some(message) = messages.recv() => self.scenario.handle(message),
                Some(seen) = observed.recv() => self.scenario.observed = seen,
                _ = tick.tick() => {
                    self.scenario.advance()?;
                    self.show();
                    // On the page there is time to look at the end.
                    ended = self.scenario.is_over() && !self.waits_for_enter();
                }
                () = pressed(&mut self.page) => ended = self.scenario.is_over(),
            }
        }
        Ok(())
    }

    fn show(&mut self) {
        if let Some((web, _)) = self.page.as_deref() {
            web.show(self.scenario);
        }
        self.view.draw(self.scenario);
    }

    fn waits_for_enter(&self) -> bool {
        self.page
            .as_deref()
            .is_some_and(|(_, enter)| enter.is_there())
    }
}

async fn pressed(page: &mut Option<&mut (Web, Enter)>) {
    match page {
        Some((_, enter)) => enter.pressed().await,
        None => std::future::pending().await,
    }
}

/// Asks the masters repeatedly for their state.
async fn observe(observer: Observer, tell: UnboundedSender<Observed>) {
    loop {
        let (nodes, lock) = tokio::join!(observer.nodes(), observer.lock(KEY));
        if tell.send(Observed { nodes, lock }).is_err() {
            return;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
