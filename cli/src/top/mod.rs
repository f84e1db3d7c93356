//! `redlock top`: nodes and locks, live in the terminal. `app.rs` decides what a key does,
//! `draw.rs` draws, `detail.rs` one lock, `screen.rs` has the terminal, `once.rs` prints one frame.

mod app;
mod detail;
mod draw;
mod once;
mod screen;

use std::io::IsTerminal;
use std::sync::Arc;

use nix::sys::signal::Signal;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::args::{Top, Where};
use crate::exit::{Failure, by_signal};
use crate::force::Forced;
use crate::names::shown_key;
use crate::output::{Output, is_dumb};
use crate::signals::Signals;
use crate::terminal::has_job_control;
use crate::watch::Watch;

use self::app::{Action, App};
use self::screen::{Screen, keys};

/// Shows what is seen until the user quits.
pub async fn top(args: Top, output: &Output) -> Result<u8, Failure> {
    if args.once {
        return once::print(args, output).await;
    }
    if !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() || is_dumb() {
        return Err(Failure::usage(
            "redlock top needs a terminal: use --once to print what it would show",
        ));
    }
    let mut signals = Signals::listen()?;
    let mut watch = Watch::start(args.place.clone(), args.interval).await?;
    let mut app = App::new(args.sort, args.filter);
    let failed = |error: std::io::Error| Failure::io("cannot use the terminal", &error);
    let mut screen = Screen::enter().map_err(failed)?;
    let mut keys = keys();
    let (reports, mut results) = unbounded_channel();
    loop {
        let drawn = screen.draw(|frame| draw::draw(frame, &mut app, &mut watch.seen()));
        drawn.map_err(failed)?;
        let action = tokio::select! {
            () = watch.changed() => Action::None,
            message = results.recv() => app.show_message(message.unwrap_or_default()),
            key = keys.recv() => match key {
                Some(event) => app.event(event, &watch.seen()),
                // The terminal is gone.
                None => Action::Quit,
            },
            signal = signals.next() => match signal {
                Signal::SIGTSTP => Action::Suspend,
                Signal::SIGCONT => Action::Redraw,
                Signal::SIGCHLD | Signal::SIGWINCH => Action::None,
                end => return Ok(by_signal(end as i32)),
            },
        };
        match action {
            Action::None => {}
            Action::Quit => return Ok(0),
            Action::Interrupt => return Ok(by_signal(Signal::SIGINT as i32)),
            Action::Redraw => screen.again().map_err(failed)?,
            Action::Suspend if has_job_control() => {
                screen.leave();
                let _ = nix::sys::signal::raise(Signal::SIGSTOP);
                screen.again().map_err(failed)?;
            }
            Action::Suspend => {}
            Action::Force(key) => drop(tokio::spawn(force(
                args.place.clone(),
                key,
                reports.clone(),
            ))),
        }
    }
}

/// Releases a lock on all nodes, and reports the result.
async fn force(place: Where, key: Arc<[u8]>, reports: UnboundedSender<String>) {
    let name = shown_key(&key);
    let text = match place.view().await {
        Ok(view) => Forced::of(&view.force(&key).await).text(&name),
        Err(failure) => failure.text,
    };
    // The user may have quit.
    let _ = reports.send(text);
}
