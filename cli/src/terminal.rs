//! Who has the terminal: the process group of the command needs it to read from it, and gives it
//! back when it stops or ends.

use std::fs::File;
use std::io::IsTerminal;

use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Pid, getpgrp, getppid, getsid, tcgetpgrp, tcsetpgrp};

/// The controlling terminal.
pub struct Terminal(File);

impl Terminal {
    /// The terminal of this session, if it has one.
    pub fn open() -> Option<Self> {
        let terminal = File::options().read(true).write(true).open("/dev/tty");
        // Taking the terminal back happens in the background, where SIGTTOU would stop this
        // process.
        let mut stop = SigSet::empty();
        stop.add(Signal::SIGTTOU);
        stop.thread_block().ok()?;
        terminal.ok().map(Self)
    }

    /// Whether this group is in the foreground.
    pub fn is_with(&self, group: Pid) -> bool {
        tcgetpgrp(&self.0) == Ok(group)
    }

    /// Whether this process is in the foreground.
    pub fn is_ours(&self) -> bool {
        self.is_with(getpgrp())
    }

    /// Gives the terminal to the group, if this process has it.
    pub fn give(&self, group: Pid) {
        if self.is_ours() {
            // Fails if the group has ended: then it does not need the terminal.
            let _ = tcsetpgrp(&self.0, group);
        }
    }

    /// Takes the terminal back from the group; false if the group did not have it.
    pub fn take_back(&self, group: Pid) -> bool {
        self.is_with(group) && tcsetpgrp(&self.0, getpgrp()).is_ok()
    }
}

/// A command whose input and output are the terminal gets it at once. In a pipeline another program
/// may need it, such as a pager: there the command gets it when it reads from it.
pub fn is_input_and_output() -> bool {
    std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
}

/// Whether there is a shell that would continue this process after a stop.
pub fn has_job_control() -> bool {
    let (parent, session) = (getppid(), getsid(None));
    let in_our_group = nix::unistd::getpgid(Some(parent)) == Ok(getpgrp());
    session.is_ok() && getsid(Some(parent)) == session && !(in_our_group && Ok(parent) == session)
}
