//! The temporary directories of the servers, which must not stay when a signal ends this process: a
//! dump of ten million locks is large.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::Outcome;

/// Waits for the end of its input, which the kernel closes with the process. The servers die then,
/// but one of them may still make a file.
const SCRIPT: &str = "cat >/dev/null; rm -rf \"$1\" 2>/dev/null || { sleep 1; rm -rf \"$1\"; }";

/// A directory for all others, and a program that removes it when this is dropped or the process
/// ends, however that happens.
pub struct Sweeper {
    child: Child,
}

impl Sweeper {
    /// To be called before the process has other threads: it changes the environment.
    pub fn start() -> Outcome<Self> {
        let folder = Self::folder();
        DirBuilder::new().mode(0o700).create(&folder)?;
        // A group of its own: a signal from the terminal is not for it.
        let child = Command::new("sh")
            .args(["-c", SCRIPT, "sh"])
            .arg(&folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn();
        let child = child.inspect_err(|_| drop(fs::remove_dir(&folder)))?;
        // SAFETY: no other thread reads the environment yet.
        unsafe { std::env::set_var("TMPDIR", &folder) };
        Ok(Self { child })
    }

    fn folder() -> PathBuf {
        let name = format!("redislock-bench.{}", std::process::id());
        std::env::temp_dir().join(name)
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // If it cannot be waited for, it still removes the directory.
        let _ = self.child.wait();
    }
}
