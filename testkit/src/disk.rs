//! A disk that is full on demand.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

use crate::Server;

/// The disk under a server's folder, whose space a test can take away and give back. Drop it
/// before the server.
pub enum Disk {
    /// A tiny tmpfs, mounted over the folder.
    Tiny(PathBuf),
    /// Without the right to mount: a limit on the length of the server's files.
    Limited(u32),
}

impl Disk {
    /// Puts a server that has written nothing yet onto its own disk.
    pub fn under(server: &Server) -> Disk {
        let mut c = server.connect();
        let folder = server.folder().to_owned();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=512k", "tmpfs"])
            .arg(&folder)
            .output()
            .is_ok_and(|output| output.status.success());
        if mounted {
            c.ok(&format!("CONFIG SET dir {}", folder.display()));
            return Disk::Tiny(folder);
        }
        Disk::limited(server)
    }

    /// A limit on the length of the server's files, which needs no rights and leaves nothing.
    pub fn limited(server: &Server) -> Disk {
        Disk::Limited(server.process_id())
    }

    /// Servers that are started from now on get an error when they exceed the limit, not a
    /// signal.
    pub fn ignore_the_signal() {
        // SAFETY: ignoring a signal runs no code of ours.
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    }

    /// Call this after the server was started again.
    pub fn serves(&mut self, server: &Server) {
        if let Disk::Limited(process) = self {
            *process = server.process_id();
        }
    }

    /// From now on nothing more can be written.
    #[track_caller]
    pub fn fill(&self) {
        match self {
            Disk::Tiny(folder) => {
                let mut filler = fs::File::create(folder.join("filler")).expect("a file");
                while filler.write_all(&[0; 4096]).is_ok() {}
            }
            Disk::Limited(process) => assert!(limit(*process, Some(0)), "the limit is not set"),
        }
    }

    /// It has space again.
    #[track_caller]
    pub fn free(&self) {
        match self {
            Disk::Tiny(folder) => fs::remove_file(folder.join("filler")).expect("the filler goes"),
            // If the server has ended, so has its limit.
            Disk::Limited(process) => {
                limit(*process, None);
            }
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Disk::Tiny(folder) = self {
            // Fails only if it is gone already.
            let _ = Command::new("umount").arg("-l").arg(folder).status();
        }
    }
}

/// Sets the limit on the length of a process's files; false if there is no such process.
#[cfg(target_os = "linux")]
fn limit(process: u32, bytes: Option<u64>) -> bool {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};

    let process = i32::try_from(process).ok().and_then(Pid::from_raw);
    let limit = Rlimit {
        current: bytes,
        maximum: None,
    };
    process.is_some() && prlimit(process, Resource::Fsize, limit).is_ok()
}

/// Only Linux lets one process limit another.
#[cfg(not(target_os = "linux"))]
fn limit(_process: u32, _bytes: Option<u64>) -> bool {
    false
}
