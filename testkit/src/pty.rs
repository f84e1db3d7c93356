//! A terminal to type into.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::PATIENCE;
use crate::process::spawn;

/// A session with its own terminal, ended when dropped.
pub struct Pty {
    keyboard: File,
    screen: Arc<Mutex<Vec<u8>>>,
    child: Child,
}

impl Pty {
    /// Starts the command as the leader of a session, with the terminal as its input, output and
    /// error.
    pub fn start(mut command: Command) -> Pty {
        let (keyboard, line) = open();
        let stream = || Stdio::from(line.try_clone().expect("a file"));
        command.stdin(stream()).stdout(stream()).stderr(stream());
        command.env("TERM", "xterm");
        let lead = || {
            rustix::process::setsid()?;
            rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
            Ok(())
        };
        // SAFETY: setsid and ioctl are async-signal-safe, nothing is allocated.
        unsafe { command.pre_exec(lead) };
        let child = spawn(command);
        drop(line);
        let screen = Arc::new(Mutex::new(Vec::new()));
        let mut output = keyboard.try_clone().expect("a file");
        let shown = Arc::clone(&screen);
        std::thread::spawn(move || {
            let mut some = [0; 4096];
            // Reading fails when the last process on the other side is gone.
            while let Ok(count @ 1..) = output.read(&mut some) {
                let mut shown = shown.lock().expect("a screen");
                shown.extend_from_slice(&some[..count]);
            }
        });
        Pty {
            keyboard,
            screen,
            child,
        }
    }

    /// Types this text.
    pub fn type_in(&mut self, text: &str) {
        self.keyboard
            .write_all(text.as_bytes())
            .expect("a terminal");
    }

    /// All that was written to the screen so far.
    pub fn screen(&self) -> String {
        String::from_utf8_lossy(&self.screen.lock().expect("a reader that works")).into_owned()
    }

    /// Waits until the text is on the screen.
    #[track_caller]
    pub fn shows(&self, text: &str) {
        let start = Instant::now();
        while !self.screen().contains(text) {
            assert!(
                start.elapsed() < PATIENCE,
                "{text:?} is not on the screen: {:?}",
                self.screen()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for the end of the session's leader.
    #[track_caller]
    pub fn end(&mut self) -> Option<i32> {
        let mut status = None;
        let start = Instant::now();
        while status.is_none() {
            status = self.child.try_wait().expect("a child of ours");
            assert!(
                start.elapsed() < PATIENCE,
                "it did not end: {}",
                self.screen()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        status.and_then(|status| status.code())
    }
}

/// The two ends of a new terminal.
fn open() -> (File, File) {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let keyboard = openpt(flags).expect("a terminal");
    grantpt(&keyboard).expect("a terminal of ours");
    unlockpt(&keyboard).expect("a terminal of ours");
    let name = ptsname(&keyboard, Vec::new()).expect("a terminal's name");
    let name = name.to_str().expect("an ASCII name");
    let line = File::options().read(true).write(true).open(name);
    (File::from(keyboard), line.expect("a terminal"))
}

impl Drop for Pty {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
