//! A real terminal with a screen that can be read: tmux.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::wait_until;

/// A terminal in which an interactive shell runs, ended when dropped.
pub struct Tmux {
    socket: PathBuf,
    _folder: tempfile::TempDir,
}

impl Tmux {
    /// Starts a shell with these variables on a screen of this size; none, with a line that says
    /// so, if tmux is not installed. Where it must be (`CI=true`), that is an error.
    pub fn start(variables: &[(&str, &str)], width: u16, height: u16) -> Option<Tmux> {
        if Command::new("tmux").arg("-V").output().is_err() {
            let must = std::env::var("CI").is_ok_and(|value| value == "true");
            assert!(!must, "tmux is not installed: scripts/setup.sh test");
            eprintln!("tmux is not installed: this is not tested");
            return None;
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        let tmux = Tmux {
            socket: folder.path().join("socket"),
            _folder: folder,
        };
        let (width, height) = (width.to_string(), height.to_string());
        let mut words = vec![
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-x",
            &width,
            "-y",
            &height,
        ];
        let variables: Vec<String> = variables
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        for variable in &variables {
            words.extend(["-e", variable]);
        }
        // The shell of tmux itself has set its own prompt.
        words.push("exec env ENV= 'PS1=ready> ' sh -i");
        tmux.run(&words);
        tmux.shows("ready>");
        Some(tmux)
    }

    fn run(&self, words: &[&str]) -> String {
        let ended = Command::new("tmux")
            .arg("-S")
            .arg(&self.socket)
            .args(words)
            .env("LC_ALL", "C.UTF-8")
            .env_remove("TMUX")
            .stdin(Stdio::null())
            .output()
            .expect("tmux");
        let error = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "tmux {words:?}: {error}");
        String::from_utf8_lossy(&ended.stdout).into_owned()
    }

    /// Presses keys, named as tmux names them: `Enter`, `Down`, `C-c`, `q`.
    pub fn press(&self, keys: &[&str]) {
        let words: Vec<&str> = ["send-keys"]
            .into_iter()
            .chain(keys.iter().copied())
            .collect();
        self.run(&words);
    }

    /// Types a text.
    pub fn type_in(&self, text: &str) {
        self.run(&["send-keys", "-l", text]);
    }

    /// What the screen shows.
    pub fn screen(&self) -> String {
        self.run(&["capture-pane", "-p"])
    }

    /// The same with its colors, as escape sequences.
    pub fn colored_screen(&self) -> String {
        self.run(&["capture-pane", "-p", "-e"])
    }

    /// One of tmux's variables, such as `alternate_on`.
    pub fn variable(&self, name: &str) -> String {
        let value = self.run(&["display-message", "-p", &format!("#{{{name}}}")]);
        value.trim().to_owned()
    }

    /// Changes the size of the screen.
    pub fn resize(&self, width: u16, height: u16) {
        let (width, height) = (width.to_string(), height.to_string());
        self.run(&["resize-window", "-x", &width, "-y", &height]);
    }

    /// Waits until the screen shows a text.
    #[track_caller]
    pub fn shows(&self, text: &str) {
        self.wait(&format!("{text:?} is on the screen"), |screen| {
            screen.contains(text)
        });
    }

    /// Waits until the screen is as it should be.
    #[track_caller]
    pub fn wait(&self, what: &str, is_right: impl Fn(&str) -> bool) {
        let mut screen = String::new();
        let waited = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            wait_until(what, || {
                screen = self.screen();
                is_right(&screen)
            });
        }));
        assert!(waited.is_ok(), "{what}; the screen:\n{screen}");
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let _ = Command::new("tmux")
            .arg("-S")
            .arg(&self.socket)
            .arg("kill-server")
            .output();
    }
}
