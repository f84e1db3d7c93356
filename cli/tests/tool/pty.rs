//! A terminal to type into.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::tool::{spawn, until};

/// A session with a terminal of its own, ended when dropped.
pub struct Pty {
    keyboard: File,
    screen: Arc<Mutex<Vec<u8>>>,
    child: Child,
}

impl Pty {
    /// Starts the command as the leader of a session, with the terminal as its input, output and
    /// error.
    pub fn start(mut command: Command) -> Self {
        let keyboard =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&keyboard).unwrap();
        unlockpt(&keyboard).unwrap();
        let name = ptsname(&keyboard, Vec::new()).unwrap();
        let line: OwnedFd = File::options()
            .read(true)
            .write(true)
            .open(name.to_str().unwrap())
            .unwrap()
            .into();
        let stream = || Stdio::from(line.try_clone().unwrap());
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
        let keyboard = File::from(keyboard);
        let screen = Arc::new(Mutex::new(Vec::new()));
        let (mut output, shown) = (keyboard.try_clone().unwrap(), Arc::clone(&screen));
        std::thread::spawn(move || {
            let mut some = [0; 4096];
            // Reading fails when the last one on the other side is gone.
            while let Ok(count @ 1..) = output.read(&mut some) {
                shown.lock().unwrap().extend_from_slice(&some[..count]);
            }
        });
        Self {
            keyboard,
            screen,
            child,
        }
    }

    pub fn type_in(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).unwrap();
    }

    pub fn screen(&self) -> String {
        String::from_utf8_lossy(&self.screen.lock().unwrap()).into_owned()
    }

    /// Waits until the text is on the screen.
    #[track_caller]
    pub fn shows(&self, text: &str) {
        until_shown(self, text);
    }

    /// Waits for the end of the session's leader.
    #[track_caller]
    pub fn end(&mut self) -> Option<i32> {
        let mut status = None;
        let start = std::time::Instant::now();
        while status.is_none() {
            status = self.child.try_wait().unwrap();
            assert!(
                start.elapsed() < crate::tool::PATIENCE,
                "it did not end: {}",
                self.screen()
            );
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        status.and_then(|status| status.code())
    }
}

#[track_caller]
fn until_shown(pty: &Pty, text: &str) {
    let start = std::time::Instant::now();
    until("the screen shows it", || {
        let shown = pty.screen().contains(text);
        if !shown && start.elapsed() > crate::tool::PATIENCE / 2 {
            panic!("{text:?} is not on the screen: {:?}", pty.screen());
        }
        shown
    });
}

impl Drop for Pty {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
