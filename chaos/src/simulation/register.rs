//! The resources that the locks protect: registers that compare fences. A write may be delayed in
//! the network. It arrives whatever its holder does or suffers in the meantime.

use super::clock::Time;
use super::history::{Check, name_of};
use super::plan::Planted;
use super::world::{Event, World};
use redislock_testkit::history::What;

/// It remembers the highest fence that has read or written, and refuses lower ones.
#[derive(Clone, Copy, Debug, Default)]
pub struct Register {
    fence: u64,
    value: u64,
}

/// A write on its way to a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Write {
    /// The holder that has sent it.
    pub claim: usize,
    /// The lock whose register is written.
    pub lock: usize,
    /// What the holder had read: it writes one more.
    pub read: u64,
    /// Whether it was delayed.
    pub delayed: bool,
}

impl World {
    /// The register of a lock, if it accepts the fence of a holder, which it then remembers.
    fn register(&mut self, claim: usize, lock: usize) -> Option<&mut Register> {
        let fence = self.history.claims[claim].fence;
        let compares = self.plan.flaw != Some(Planted::Register);
        if compares && fence < self.history.registers[lock].fence {
            self.fenced_off(claim, lock);
            return None;
        }
        let register = &mut self.history.registers[lock];
        register.fence = fence;
        Some(register)
    }

    /// A register has refused a holder, which must have lost the lock.
    fn fenced_off(&mut self, claim: usize, lock: usize) {
        self.history.counts.fenced_off += 1;
        if self.plan.promises_fences() && self.is_claimed(claim) {
            let problem = format!("claim {claim} is held, and the register of {lock} refuses it");
            self.violated(Check::FenceOrder, problem);
        }
    }

    /// A holder reads the register of a lock. `None`: its fence is too low.
    pub fn read_register(&mut self, claim: usize, lock: usize) -> Option<u64> {
        self.register(claim, lock).map(|register| register.value)
    }

    /// A holder sends a write, which arrives at once or after this time.
    pub fn send_write(&mut self, write: Write, delay: Time) {
        if write.delayed {
            let at = self.now() + delay;
            self.schedule(at, Event::Write(write));
        } else {
            self.write_register(write);
        }
    }

    /// A write arrives at the register of a lock.
    pub fn write_register(&mut self, write: Write) {
        let Write {
            claim,
            lock,
            read,
            delayed,
        } = write;
        let was = self.register(claim, lock).map(|register| {
            let was = register.value;
            register.value = read + 1;
            was
        });
        self.history.counts.writes += u64::from(was.is_some());
        let now = self.now();
        if delayed {
            self.history.note(now, || match was {
                Some(_) => format!("a delayed write of claim {claim} to {lock} is accepted"),
                None => format!("a delayed write of claim {claim} to {lock} is refused"),
            });
        }
        let what = What::Write {
            lock: name_of(lock),
            fence: self.history.claims[claim].fence,
            read,
            was,
            arrived: delayed.then_some(now),
        };
        self.history.write(now, claim, what);
    }
}
