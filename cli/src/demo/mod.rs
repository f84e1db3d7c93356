//! The demonstration: five real masters, real worker processes that contend for one lock over a
//! fenced resource, real faults. Which faults happen when is scripted; their effects are not.

mod frame;
mod master;
mod resource;
mod scenario;
mod svg;
mod view;
mod worker;

use std::path::Path;
use std::time::Duration;

use redislock_client::{Observer, Redlock};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::args::Demo;
use crate::command_path;
use crate::demo::master::Master;
use crate::demo::resource::Message;
use crate::demo::scenario::{Observed, Scenario};
use crate::demo::view::View;
use crate::demo::worker::Worker;
use crate::exit::{Failure, LOST};
use crate::output::Output;
use crate::signals::Signals;

pub use crate::demo::worker::work;

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

/// Runs the demonstration to its end, or to the first signal. Nothing is left running.
pub async fn demo(args: Demo, output: &Output) -> Result<u8, Failure> {
    let mut signals = Signals::listen()?;
    if !args.module.is_file() {
        let text = format!(
            "no module {}: run make build, or give --module FILE",
            args.module.display()
        );
        return Err(Failure::usage(text));
    }
    let ended = tokio::select! {
        ended = play(&args, output) => ended,
        signal = signals.end() => Err(Failure::signalled(signal)),
    };
    let scenario = ended?;
    let text = scenario.summary().join("\n");
    output.result(&format!("\n{text}\n"), &scenario.figures())?;
    if let (Some(file), Some(frame)) = (&args.picture, &scenario.highlight) {
        let written = std::fs::write(file, svg::draw(frame));
        written.map_err(|error| Failure::io("cannot write the picture", &error))?;
    }
    if !scenario.succeeded() {
        return Err(Failure::new(
            LOST,
            "the demonstration failed: see the summary",
        ));
    }
    Ok(0)
}

/// Everything that this starts ends when it returns or is dropped.
async fn play(args: &Demo, output: &Output) -> Result<Scenario, Failure> {
    let folder = tempfile::tempdir()
        .map_err(|error| Failure::io("cannot create a temporary directory", &error))?;
    let server = match &args.server {
        Some(server) => command_path::find(server.as_os_str()),
        None => command_path::find("redis-server".as_ref())
            .or_else(|_| command_path::find("valkey-server".as_ref())),
    };
    let no_server = |_| Failure::usage("no server: install Redis or Valkey, or give --server FILE");
    let server = server.map_err(no_server)?;
    let mut masters = Vec::new();
    for place in 0..MASTERS {
        masters.push(Master::start(&server, &args.module, folder.path(), place).await?);
    }
    let urls: Vec<String> = masters.iter().map(Master::url).collect();
    let socket = folder.path().join("resource");
    let (send, mut messages) = unbounded_channel();
    resource::open(&socket, send)?;
    let (tell, mut observed) = unbounded_channel();
    let observer = Redlock::builder().nodes(&urls).observe();
    tokio::spawn(observe(observer.map_err(Failure::connecting)?, tell));
    let mut workers = Vec::new();
    for name in WORKERS {
        workers.push(Worker::start(name, &urls, &socket)?);
    }
    let mut scenario = Scenario::new(masters, workers);
    let mut view = View::new(output);
    run_script(&mut scenario, &mut view, &mut messages, &mut observed).await?;
    scenario.stop_all().await;
    view.draw(&scenario);
    Ok(scenario)
}

async fn run_script(
    scenario: &mut Scenario,
    view: &mut View<'_>,
    messages: &mut UnboundedReceiver<Message>,
    observed: &mut UnboundedReceiver<Observed>,
) -> Result<(), Failure> {
    let mut tick = tokio::time::interval(TICK);
    while !scenario.is_over() {
        tokio::select! {
            biased;
            Some(message) = messages.recv() => scenario.handle(message),
            Some(seen) = observed.recv() => scenario.observed = seen,
            _ = tick.tick() => {
                scenario.advance()?;
                view.draw(scenario);
            }
        }
    }
    Ok(())
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

/// Children end with this process, and do not get what is typed.
fn bound(command: &mut std::process::Command) {
    std::os::unix::process::CommandExt::process_group(command, 0);
    crate::process_group::die_with_tool(command);
}

fn log_of(folder: &Path, place: usize) -> std::path::PathBuf {
    folder.join(format!("{}.log", place + 1))
}
