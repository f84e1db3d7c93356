//! Who has the terminal: the command's process group must have it to read from it, and gives it back when it stops or ends.

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
        // Whoever takes the terminal back does so from the background, which SIGTTOU would stop.
        let mut stop = SigSet::empty();
        stop.add(Signal::SIGTTOU);
        stop.thread_block().ok()?;
        terminal.ok().map(Self)
    }

    /// Whether this group is in the foreground.
    pub fn is_with(&self, group: Pid) -> bool {
        tcgetpgrp(&self.0) == Ok(group)
    }

    /// Whether we are in the foreground.
    pub fn is_ours(&self) -> bool {
        self.is_with(getpgrp())
    }

    /// Gives the terminal to the group, if it is ours to give.
    pub fn give(&self, group: Pid) {
        if self.is_ours() {
            // Fails when the group has ended meanwhile: then nobody needs it.
            let _ = tcsetpgrp(&self.0, group);
        }
    }

    /// Takes the terminal back from the group; false if the group did not have it.
    pub fn take_back(&self, group: Pid) -> bool {
        self.is_with(group) && tcsetpgrp(&self.0, getpgrp()).is_ok()
    }
}

/// A command that talks to nobody but the terminal gets it at once. In a pipeline others may need it (a pager, say): there
/// the command gets it when it asks for it.
pub fn is_all_there_is() -> bool {
    std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
}

/// Whether a shell is there that would continue us after a stop.
pub fn somebody_would_continue_us() -> bool {
    let (parent, session) = (getppid(), getsid(None));
    let in_our_group = nix::unistd::getpgid(Some(parent)) == Ok(getpgrp());
    session.is_ok() && getsid(Some(parent)) == session && !(in_our_group && Ok(parent) == session)
}
