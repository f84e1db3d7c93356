//! The demonstration on the page of `redlock serve`: the page asks the masters itself, and shows
//! what only the demonstration knows (workers, resource, log) from a file of notes.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use redislock_testkit::process::end_with_this_process;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::Outcome;
use crate::frame::{Frame, Line, Style, clock};
use crate::scenario::Scenario;

/// Where the page is, if nobody else is there.
const USUAL: &str = "127.0.0.1:9937";
const ANY: &str = "127.0.0.1:0";
/// How often the page asks the masters.
const INTERVAL: &str = "200ms";
/// The newest lines of the log.
const LOG: usize = 12;

/// The page, ended when dropped.
pub struct Web {
    child: Child,
    notes: PathBuf,
    pub url: String,
}

impl Web {
    /// Starts `redlock serve` for these masters.
    pub async fn start(redlock: &Path, urls: &[String], folder: &Path) -> Outcome<Self> {
        let notes = folder.join("notes");
        let failed = |error| format!("cannot start {}: {error}", redlock.display());
        std::fs::write(&notes, "").map_err(failed)?;
        for listen in [USUAL, ANY] {
            let mut command = Command::new(redlock);
            command
                .args([
                    "serve",
                    "--listen",
                    listen,
                    "--interval",
                    INTERVAL,
                    "--notes",
                ])
                .arg(&notes)
                .env("REDLOCK_NODES", urls.join(","))
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::piped());
            end_with_this_process(&mut command);
            let mut child = command.spawn().map_err(failed)?;
            let lines = child.stderr.take().ok_or("the page has no output")?;
            let lines = tokio::process::ChildStderr::from_std(lines).map_err(failed)?;
            let mut web = Self {
                child,
                notes: notes.clone(),
                url: String::new(),
            };
            let mut lines = BufReader::new(lines).lines();
            if let Some(url) = told_url(&mut lines).await {
                web.url = url;
                tokio::spawn(drain(lines));
                return Ok(web);
            }
        }
        Err(format!("{} serve does not start", redlock.display()))
    }

    /// Shows what the demonstration knows now.
    pub fn show(&self, scenario: &Scenario) {
        let unfinished = self.notes.with_extension("new");
        // The page shows the last notes until the next ones are written.
        let written = std::fs::write(&unfinished, notes(scenario));
        let _ = written.and_then(|()| std::fs::rename(&unfinished, &self.notes));
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

type Output = Lines<BufReader<tokio::process::ChildStderr>>;

/// The address that the page is served at; none if it ends instead.
async fn told_url(lines: &mut Output) -> Option<String> {
    while let Ok(Some(line)) = lines.next_line().await {
        if let Some((_, url)) = line.split_once("serving ") {
            return Some(url.to_owned());
        }
    }
    None
}

/// Messages about masters that come and go are on the screen anyway.
async fn drain(mut lines: Output) {
    while let Ok(Some(_)) = lines.next_line().await {}
}

fn notes(scenario: &Scenario) -> String {
    let mut text = String::from("# Workers\n");
    let [workers, resource] = Frame::parts(scenario);
    workers.iter().for_each(|line| push(&mut text, line));
    text.push_str("# Resource, which refuses old fences\n");
    resource.iter().for_each(|line| push(&mut text, line));
    let refused = scenario
        .events
        .iter()
        .filter(|one| one.style == Style::Alarm);
    for event in refused {
        text.push_str(&format!("! {}  {}\n", clock(event.at).trim(), event.text));
    }
    text.push_str("# Log, newest first\n");
    for event in scenario.events.iter().rev().take(LOG) {
        push(
            &mut text,
            &vec![(event.style, format!("{}  {}", clock(event.at), event.text))],
        );
    }
    text
}

/// Important lines are marked.
fn push(text: &mut String, line: &Line) {
    if line
        .iter()
        .any(|(style, _)| matches!(style, Style::Alarm | Style::Bad))
    {
        text.push_str("! ");
    }
    let pieces = line.iter().map(|(_, piece)| piece.as_str());
    text.push_str(pieces.collect::<String>().trim_end());
    text.push('\n');
}

/// The Enter key; without a terminal, nobody can press it.
pub struct Enter(Option<UnboundedReceiver<()>>);

impl Enter {
    pub fn new() -> Self {
        if !std::io::stdin().is_terminal() {
            return Self(None);
        }
        let (send, pressed) = unbounded_channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            while let Ok(1..) = std::io::stdin().read_line(&mut line) {
                if send.send(()).is_err() {
                    return;
                }
            }
        });
        Self(Some(pressed))
    }

    /// Whether somebody can press it.
    pub fn is_there(&self) -> bool {
        self.0.is_some()
    }

    /// Waits until it is pressed.
    pub async fn pressed(&mut self) {
        match &mut self.0 {
            Some(pressed) => drop(pressed.recv().await),
            None => std::future::pending().await,
        }
    }
}
