//! The task that looks after all holds of a client. There is one task for all of them, so that a
//! grant does not need its own. A delay queue of the runtime would stop while the host is
//! suspended, but leases do not stop. So the agenda is a map by CLOCK_BOOTTIME.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::host::{Moment, locked, sleep};

/// Timers of the runtime stop while the host is suspended. The keeper wakes up at least this often,
/// so that it notices a suspension soon afterwards.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);
/// While holds come and go, the keeper sleeps for this part of the node timeout only. Its timer is
/// then due before the timer of any request, so setting the latter does not wake the thread of the
/// runtime that sleeps until the next timer.
const BUSY_SLEEP: u32 = 2;

/// When a hold must be checked, and which hold.
pub(crate) type Slot = (Moment, u64);

/// A hold, as its keeper sees it. Work that must be awaited runs in the background.
pub(crate) trait Kept: Send + Sync {
    /// It is due: renews it, or notifies its holder that it ends.
    fn attend(self: Arc<Self>);
    /// Asks the nodes whether they still grant it.
    fn ask_again(self: Arc<Self>);
    /// Whether it ends with its connection.
    fn is_ephemeral(&self) -> bool;
    /// The shared connection of this generation and all earlier ones have ended.
    fn connection_ended(&self, generation: u64);
}

/// The holds of a client, by when they must be checked next.
pub(crate) struct Keeper {
    agenda: Mutex<Agenda>,
    wake: Notify,
    busy_sleep: Duration,
}

#[derive(Default)]
struct Agenda {
    due: BTreeMap<Slot, Weak<dyn Kept>>,
    /// Holds that were due and are being checked, until they are on the agenda again or over.
    attended: BTreeMap<Slot, Weak<dyn Kept>>,
    /// When the task wakes up by itself; `None` if something else must wake it.
    asleep_until: Option<Moment>,
    /// Whether a hold was put on the agenda since the last sleep began.
    in_use: bool,
    /// Tells slots of the same moment apart.
    serial: u64,
}

impl Agenda {
    fn remove(&mut self, slot: Slot) {
        self.due.remove(&slot);
        self.attended.remove(&slot);
    }
}

impl Keeper {
    pub(crate) fn new(node_timeout: Duration) -> Self {
        Self {
            agenda: Mutex::default(),
            wake: Notify::new(),
            busy_sleep: node_timeout / BUSY_SLEEP,
        }
    }

    /// Puts the hold on the agenda, or moves it there. This is one step, so that a notice to all
    /// holds cannot miss a hold that is being moved.
    pub(crate) fn move_to(&self, at: Moment, hold: Weak<dyn Kept>, from: Option<Slot>) -> Slot {
        let mut agenda = locked(&self.agenda);
        if let Some(from) = from {
            agenda.remove(from);
        }
        agenda.serial += 1;
        let slot = (at, agenda.serial);
        agenda.due.insert(slot, hold);
        agenda.in_use = true;
        // New grants with the same ttl are always due later, so they do not wake the task.
        let early = agenda.asleep_until.is_none_or(|until| at < until);
        drop(agenda);
        if early {
            self.wake.notify_one();
        }
        slot
    }

    pub(crate) fn forget(&self, slot: Slot) {
        locked(&self.agenda).remove(slot);
    }

    /// Whether there is no hold that could be lost.
    pub(crate) fn is_idle(&self) -> bool {
        let agenda = locked(&self.agenda);
        agenda.due.is_empty() && agenda.attended.is_empty()
    }

    /// Makes these holds ask the nodes whether they still grant them.
    pub(crate) fn ask_again(&self, which: impl Fn(&dyn Kept) -> bool) {
        let holds = self.holds().into_iter();
        let wanted = holds.filter(|hold| which(&**hold));
        wanted.for_each(Kept::ask_again);
    }

    /// The shared connection of this generation has ended, and so have its ephemeral holds.
    pub(crate) fn connection_ended(&self, generation: u64) {
        let holds = self.holds().into_iter();
        holds.for_each(|hold| hold.connection_ended(generation));
    }

    fn holds(&self) -> Vec<Arc<dyn Kept>> {
        let agenda = locked(&self.agenda);
        let holds = agenda.due.values().chain(agenda.attended.values());
        holds.filter_map(Weak::upgrade).collect()
    }

    /// Looks after the holds until `stop`.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) {
        loop {
            let sleep_time = self.sleep_time();
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = self.wake.notified() => {}
                () = sleep(sleep_time) => {}
            }
            self.due_by(Moment::now())
                .into_iter()
                .for_each(Kept::attend);
        }
    }

    fn sleep_time(&self) -> Option<Duration> {
        let mut agenda = locked(&self.agenda);
        let next = agenda.due.first_key_value().map(|(slot, _)| slot.0);
        let next = next.map(|at| at.remaining().min(LONGEST_SLEEP));
        let sleep_time = if std::mem::take(&mut agenda.in_use) {
            Some(next.map_or(self.busy_sleep, |sleep_time| {
                sleep_time.min(self.busy_sleep)
            }))
        } else {
            next
        };
        agenda.asleep_until = sleep_time.map(|sleep_time| Moment::now() + sleep_time);
        sleep_time
    }

    fn due_by(&self, now: Moment) -> Vec<Arc<dyn Kept>> {
        let mut agenda = locked(&self.agenda);
        let mut due = Vec::new();
        while let Some(entry) = agenda.due.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let (slot, hold) = entry.remove_entry();
            due.extend(hold.upgrade());
            agenda.attended.insert(slot, hold);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    #[derive(Default)]
    struct Hold {
        asked: AtomicUsize,
    }

    impl Kept for Hold {
        fn attend(self: Arc<Self>) {}

        fn ask_again(self: Arc<Self>) {
            self.asked.fetch_add(1, Ordering::Relaxed);
        }

        fn is_ephemeral(&self) -> bool {
            false
        }

        fn connection_ended(&self, _generation: u64) {}
    }

    #[test]
    fn a_notice_to_all_holds_misses_none_that_is_moved() {
        let (keeper, hold) = (Keeper::new(Duration::ZERO), Arc::new(Hold::default()));
        let kept = || -> Weak<dyn Kept> { Arc::downgrade(&hold) as Weak<dyn Kept> };
        let at = Moment::now();
        let mut slot = keeper.move_to(at, kept(), None);
        let done = AtomicBool::new(false);
        let notices = 20_000;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..notices {
                    keeper.ask_again(|_| true);
                }
                done.store(true, Ordering::Relaxed);
            });
            while !done.load(Ordering::Relaxed) {
                slot = keeper.move_to(at, kept(), Some(slot));
                keeper.due_by(at);
            }
        });
        assert_eq!(hold.asked.load(Ordering::Relaxed), notices);
    }
}
