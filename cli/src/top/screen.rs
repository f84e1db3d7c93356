//! The terminal: it is restored, however the program ends.

use std::io::{Stdout, Write, stdout};
use std::mem::ManuallyDrop;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{Event, read};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::{Frame, Terminal};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

static HOOK: Once = Once::new();
/// Whether the program has the terminal: restoring it twice would move the cursor.
static IS_OURS: AtomicBool = AtomicBool::new(false);

/// The whole screen, until it is dropped. The terminal itself is not dropped: its destructor shows
/// the cursor, and panics if the terminal and standard error are gone.
pub struct Screen(ManuallyDrop<Terminal<CrosstermBackend<Stdout>>>);

impl Screen {
    pub fn enter() -> std::io::Result<Self> {
        // Restore the terminal first, so that the user can see the report of a panic.
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                give_back();
                before(panic);
            }));
        });
        take()?;
        let screen = Terminal::new(CrosstermBackend::new(stdout()));
        let screen = screen.map(ManuallyDrop::new).map(Self);
        screen.inspect_err(|_| give_back())
    }

    pub fn draw(&mut self, draw: impl FnOnce(&mut Frame)) -> std::io::Result<()> {
        self.0.draw(draw).map(drop)
    }

    /// Restores the terminal for a while.
    pub fn leave(&self) {
        give_back();
    }

    /// Takes the terminal again, and draws all of it.
    pub fn again(&mut self) -> std::io::Result<()> {
        take()?;
        execute!(stdout(), Clear(ClearType::All))?;
        // A new terminal has no record of what was drawn. Clearing the old one would query the
        // position of the cursor, and the thread that reads the keys would get the answer.
        let new = ManuallyDrop::new(Terminal::new(CrosstermBackend::new(stdout()))?);
        let mut old = std::mem::replace(&mut self.0, new);
        if old.show_cursor().is_ok() {
            drop(ManuallyDrop::into_inner(old));
        }
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

fn take() -> std::io::Result<()> {
    IS_OURS.store(true, Ordering::SeqCst);
    enable_raw_mode()?;
    execute!(stdout(), EnterAlternateScreen).inspect_err(|_| give_back())
}

/// Ignores errors: the terminal may be gone.
fn give_back() {
    if !IS_OURS.swap(false, Ordering::SeqCst) {
        return;
    }
    let _ = execute!(stdout(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
    let _ = stdout().flush();
}

/// What the user types, read by a separate thread, because reading blocks.
pub fn keys() -> UnboundedReceiver<Event> {
    let (send, keys) = unbounded_channel();
    std::thread::spawn(move || {
        while let Ok(event) = read() {
            if send.send(event).is_err() {
                return;
            }
        }
    });
    keys
}
