//! What is left to do when a change is complete: send its keyspace events, and set the alarm for
//! what is due next.

use std::ffi::CStr;

use redislock_core::table::{Events, Wake};

use super::Opened;
use crate::alarm;
use crate::ffi::{Arg, Ctx, OwnedString};

/// The name of a changed key.
pub(super) enum Name<'a> {
    /// The command has named it.
    Own(Arg<'a>),
    /// It was made here.
    Made(OwnedString),
}

impl Name<'_> {
    pub(super) fn arg(&self) -> Arg<'_> {
        match self {
            Self::Own(name) => *name,
            Self::Made(name) => name.arg(),
        }
    }
}

/// The events about one key.
pub(super) struct KeyEvents<'a> {
    pub(super) db: u32,
    pub(super) name: Name<'a>,
    pub(super) events: Events,
}

/// The work that is left when a change is complete.
#[derive(Default)]
#[must_use]
pub struct Followup<'a> {
    /// There is nearly always one, which needs no allocation. Saves 145 of the 16,500 instructions
    /// of an acquire and its release, compared with a `SmallList`.
    first: Option<KeyEvents<'a>>,
    more: Vec<KeyEvents<'a>>,
    pub(super) wake: Option<Wake>,
}

impl<'a> Followup<'a> {
    /// Makes room for the events of so many keys.
    pub(super) fn make_room(&mut self, keys: usize) {
        if keys > 1 {
            self.more.reserve(keys - 1);
        }
    }

    pub(super) fn add(&mut self, events: KeyEvents<'a>) {
        if self.first.is_none() {
            self.first = Some(events);
        } else {
            self.more.push(events);
        }
    }

    /// Sends the keyspace events and sets the alarm. Listeners may do anything, so no key may be
    /// open.
    pub fn finish(self, ctx: Ctx, own: &[Opened<'_>]) {
        let wake = self.wake;
        self.send_events(ctx, own);
        if let Some(wake) = wake {
            alarm::set(wake);
        }
    }

    /// Sends the keyspace events. Outside of a command, the caller sets the alarm, because it knows
    /// what it will still do itself.
    pub(super) fn send_events(self, ctx: Ctx, own: &[Opened<'_>]) {
        let Some(first) = self.first else {
            return;
        };
        own.iter().for_each(Opened::close);
        first.send(ctx);
        self.more.iter().for_each(|events| events.send(ctx));
    }
}

impl KeyEvents<'_> {
    fn send(&self, ctx: Ctx) {
        match &self.name {
            Name::Own(name) => send_events(ctx, self.events, *name),
            Name::Made(name) => {
                let before = ctx.db();
                ctx.select(self.db);
                send_events(ctx, self.events, name.arg());
                ctx.select(before);
            }
        }
    }
}

fn send_events(ctx: Ctx, events: Events, name: Arg<'_>) {
    let counts: [(u32, &CStr); 5] = [
        (events.expired, c"lock.expired"),
        (events.released, c"lock.released"),
        (events.forced, c"lock.forced"),
        (events.extended, c"lock.extended"),
        (events.acquired, c"lock.acquired"),
    ];
    for (times, event) in counts {
        for _ in 0..times {
            ctx.notify(event, name);
        }
    }
}
