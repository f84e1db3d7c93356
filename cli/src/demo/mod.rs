//! The show: five real masters, real worker processes that contend for one lock over a fenced resource, real faults. What is
//! scripted is which faults happen when; what comes of them is only watched.

mod frame;
mod master;
mod picture;
mod resource;
mod stage;
mod view;
mod worker;

use std::path::Path;
use std::time::Duration;

use redislock_client::{Observer, Redlock};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::args::Demo;
use crate::demo::master::Master;
use crate::demo::resource::Heard;
use crate::demo::stage::{Seen, Stage};
use crate::demo::view::View;
use crate::demo::worker::Worker;
use crate::exit::{Failure, LOST};
use crate::program;
use crate::signals::Signals;
use crate::voice::Voice;

pub use crate::demo::worker::work;

/// The lock that all want.
const KEY: &str = "demo";
/// Short enough for a pause beyond it to be watched.
const TTL: Duration = Duration::from_millis(1_500);
/// What a master that was restarted waits before it grants again: it may have forgotten a lease. Longer than the ttl.
const QUARANTINE: Duration = Duration::from_millis(2_500);
const MASTERS: usize = 5;
const WORKERS: [&str; 4] = ["ada", "ben", "cyd", "dan"];
/// How often the picture is drawn and the script looked at.
const TICK: Duration = Duration::from_millis(100);
/// How often the masters are asked.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Plays the show to its end, or to the first signal. Either way nothing is left running.
pub async fn demo(args: Demo, voice: &Voice) -> Result<u8, Failure> {
    let mut signals = Signals::listen()?;
    if !args.module.is_file() {
        let text = format!(
            "there is no module {}: run make build, or give --module FILE",
            args.module.display()
        );
        return Err(Failure::usage(text));
    }
    let played = tokio::select! {
        played = play(&args, voice) => played,
        signal = signals.end() => Err(Failure::signalled(signal)),
    };
    let stage = played?;
    let text = stage.summary().join("\n");
    voice.result(&format!("\n{text}\n"), &stage.figures())?;
    if let (Some(file), Some(frame)) = (&args.picture, &stage.highlight) {
        let written = std::fs::write(file, picture::svg(frame));
        written.map_err(|error| Failure::io("the picture cannot be written", &error))?;
    }
    match stage.all_is_well() {
        true => Ok(0),
        false => Err(Failure::new(LOST, "the show did not go as it must")),
    }
}

/// Everything that was started here ends when this returns or is dropped.
async fn play(args: &Demo, voice: &Voice) -> Result<Stage, Failure> {
    let folder = tempfile::tempdir().map_err(|error| Failure::io("no temporary folder", &error))?;
    let server = match &args.server {
        Some(server) => program::find(server.as_os_str()),
        None => program::find("redis-server".as_ref())
            .or_else(|_| program::find("valkey-server".as_ref())),
    };
    let no_server = |_| {
        Failure::usage(
            "there is no server to start: install Redis or Valkey, or give --server FILE",
        )
    };
    let server = server.map_err(no_server)?;
    let mut masters = Vec::new();
    for place in 0..MASTERS {
        masters.push(Master::start(&server, &args.module, folder.path(), place).await?);
    }
    let urls: Vec<String> = masters.iter().map(Master::url).collect();
    let socket = folder.path().join("resource");
    let (say, mut heard) = unbounded_channel();
    resource::open(&socket, say)?;
    let (tell, mut seen) = unbounded_channel();
    let observer = Redlock::builder().nodes(&urls).observe();
    tokio::spawn(look(observer.map_err(Failure::connecting)?, tell));
    let mut workers = Vec::new();
    for name in WORKERS {
        workers.push(Worker::start(name, &urls, &socket)?);
    }
    let mut stage = Stage::new(masters, workers);
    let mut view = View::new(voice);
    perform(&mut stage, &mut view, &mut heard, &mut seen).await?;
    stage.say_goodbye().await;
    view.draw(&stage);
    Ok(stage)
}

async fn perform(
    stage: &mut Stage,
    view: &mut View<'_>,
    heard: &mut UnboundedReceiver<Heard>,
    seen: &mut UnboundedReceiver<Seen>,
) -> Result<(), Failure> {
    let mut tick = tokio::time::interval(TICK);
    while !stage.is_over() {
        tokio::select! {
            biased;
            Some(heard) = heard.recv() => stage.hear(heard),
            Some(seen) = seen.recv() => stage.seen = seen,
            _ = tick.tick() => {
                stage.act()?;
                view.draw(stage);
            }
        }
    }
    Ok(())
}

/// Asks the masters, again and again, what they know.
async fn look(observer: Observer, tell: UnboundedSender<Seen>) {
    loop {
        let (nodes, lock) = tokio::join!(observer.nodes(), observer.lock(KEY));
        if tell.send(Seen { nodes, lock }).is_err() {
            return;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Children are started so that they end with us, and do not hear what is typed.
fn bound(command: &mut std::process::Command) {
    std::os::unix::process::CommandExt::process_group(command, 0);
    crate::child::die_with_us(command);
}

fn log_of(folder: &Path, place: usize) -> std::path::PathBuf {
    folder.join(format!("{}.log", place + 1))
}
