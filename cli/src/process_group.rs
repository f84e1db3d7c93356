//! The command as a process group that does not outlive the tool.

use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use rustix::process::{WaitOptions, waitpid};

/// A command in its own process group.
pub struct Group {
    pub leader: Pid,
}

/// What happened to the command.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    Exited(i32),
    /// By the signal of this number: real-time signals have no names.
    Killed(i32),
    Stopped(Signal),
}

impl Group {
    /// Starts the command as the leader of a new process group.
    pub fn start(mut command: Command) -> std::io::Result<Self> {
        command.process_group(0);
        die_with_tool(&mut command);
        let child = command.spawn()?;
        let leader = i32::try_from(child.id()).map(Pid::from_raw);
        // Not waited for through `child`, which would not report stops.
        leader
            .map(|leader| Self { leader })
            .map_err(std::io::Error::other)
    }

    /// What has happened since the last call.
    pub fn poll(&self) -> Option<Change> {
        let flags = WaitOptions::NOHANG | WaitOptions::UNTRACED;
        let leader = rustix::process::Pid::from_raw(self.leader.as_raw());
        let status = match waitpid(leader, flags) {
            Ok(changed) => changed?.1,
            // There is no such child: it has ended, and its status is unknown.
            Err(rustix::io::Errno::CHILD) => return Some(Change::Exited(i32::from(u8::MAX))),
            Err(_) => return None,
        };
        let stopped = |signal| Change::Stopped(Signal::try_from(signal).unwrap_or(Signal::SIGSTOP));
        let ended = status.exit_status().map(Change::Exited);
        ended
            .or_else(|| status.terminating_signal().map(Change::Killed))
            .or_else(|| status.stopping_signal().map(stopped))
    }

    /// To the whole group, as a terminal does.
    pub fn signal(&self, signal: Signal) {
        // It may have just ended.
        let _ = killpg(self.leader, signal);
    }

    /// To the command alone.
    pub fn signal_leader(&self, signal: Signal) {
        let _ = kill(self.leader, signal);
    }

    /// Whether any process of the group is left.
    pub fn is_alive(&self) -> bool {
        killpg(self.leader, None) != Err(Errno::ESRCH)
    }
}

/// If the tool is killed, nothing renews the lock: the kernel then kills the command, too (on
/// Linux). Must be called on a thread that lives as long as the process: the kernel watches that
/// thread.
#[cfg(any(target_os = "linux", target_os = "android"))]
#[allow(unsafe_code)]
pub fn die_with_tool(command: &mut Command) {
    let tool = nix::unistd::getpid();
    let bind = move || {
        nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
        // The tool may have died before it was set.
        if nix::unistd::getppid() != tool {
            return Err(std::io::ErrorKind::BrokenPipe.into());
        }
        Ok(())
    };
    // SAFETY: between fork and exec only prctl and getppid are called, both async-signal-safe;
    // nothing is allocated or locked, and no error value made here owns memory.
    unsafe { command.pre_exec(bind) };
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub fn die_with_tool(_: &mut Command) {}
