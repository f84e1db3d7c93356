//! The time after a start, a promotion or a flush in which a node that may have lost grants does
//! not grant.

use crate::time::{Micros, Millis, MonoTime};

/// Why a node is in quarantine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It has just started: what it granted before may not have been saved.
    Start,
    /// It was a replica: what the master granted may not have arrived.
    Promotion,
    /// Its locks were flushed: their holders do not know.
    Flush,
    /// It stood still: it may have been replaced meanwhile and not know it.
    Standstill,
    /// The settings that decide the length of a quarantine cannot be read.
    Settings,
    /// Too few replicas confirm that this node is their only master.
    Replicas,
}

/// The retry time that a node reports while its settings cannot be read. Only an operator can end
/// this state.
const UNREADABLE: Micros = Micros(60_000_000);

/// Whether grants may have been lost, and until when.
#[derive(Debug, Default)]
pub struct Quarantine {
    /// The longest lease that may be asked for; none when quarantine is off.
    configured: Option<Millis>,
    /// The longest lease that an earlier configuration allowed, as saved in the dataset.
    remembered: Millis,
    now: Option<(MonoTime, Reason)>,
    /// A setting that decides the length of a quarantine cannot be read.
    settings_unreadable: bool,
}

/// Adds the possible difference of clock rates (1 %), and a margin of 10 ms.
fn with_drift(span: Micros) -> Micros {
    span.plus(span / 100).plus(Millis(10).to_micros())
}

impl Quarantine {
    /// The longest lease that may be asked for; none when quarantine is off.
    #[must_use]
    pub fn configured(&self) -> Option<Millis> {
        self.configured
    }

    /// Sets the configured value.
    pub fn configure(&mut self, longest: Option<Millis>) {
        self.configured = longest;
    }

    /// The dataset says that leases of this length may exist. The higher of this and the configured
    /// value counts.
    pub fn remember(&mut self, longest: Millis) {
        self.remembered = self.remembered.max(longest);
    }

    /// The longest lease that may exist; 0 if leases have no bound.
    #[must_use]
    pub fn longest(&self) -> Millis {
        self.configured.unwrap_or_default().max(self.remembered)
    }

    /// The value to save in the dataset: the longest lease that may exist.
    #[must_use]
    pub fn to_save(&self) -> Millis {
        // A replica has no quarantine that could end, so it keeps the value from its master.
        self.longest()
    }

    /// Starts a quarantine for the longest lease.
    pub fn enter(&mut self, reason: Reason, mono: MonoTime) {
        let span = self.longest();
        if span > Millis::ZERO {
            self.until(reason, mono.plus(with_drift(span.to_micros())));
        }
    }

    /// Starts a quarantine until `end`, if no quarantine lasts longer.
    pub fn enter_until(&mut self, reason: Reason, end: MonoTime) {
        self.until(reason, end);
    }

    /// Starts a quarantine for `left`: the remaining time of the last flushed lease, or the time to
    /// learn of a replacement.
    pub fn enter_for(&mut self, reason: Reason, left: Micros, mono: MonoTime) {
        if self.configured.is_some() && left > Micros::ZERO {
            self.until(reason, mono.plus(with_drift(left)));
        }
    }

    fn until(&mut self, reason: Reason, end: MonoTime) {
        if self.now.is_none_or(|(until, _)| until < end) {
            self.now = Some((end, reason));
        }
    }

    /// Sets whether the settings that decide the length of a quarantine can be read. While they
    /// cannot, nothing is granted. Returns whether this has changed.
    pub fn settings_are_readable(&mut self, readable: bool, mono: MonoTime) -> bool {
        let unreadable = !readable && self.configured.is_some();
        let is_news = unreadable != self.settings_unreadable;
        self.settings_unreadable = unreadable;
        if is_news && !unreadable {
            // It ends at once, and the end is reported, so that the waiters are served.
            self.until(Reason::Settings, mono);
        }
        is_news
    }

    /// Whether nothing is granted because settings cannot be read.
    #[must_use]
    pub fn lacks_settings(&self) -> bool {
        self.settings_unreadable
    }

    /// The remaining time and the reason; none if the node grants.
    #[must_use]
    pub fn left(&self, mono: MonoTime) -> Option<(Micros, Reason)> {
        let running = self.now.filter(|(until, _)| *until > mono);
        let running = running.map(|(until, reason)| (until.since(mono), reason));
        let unreadable = self
            .settings_unreadable
            .then_some((UNREADABLE, Reason::Settings));
        [running, unreadable]
            .into_iter()
            .flatten()
            .max_by_key(|(left, _)| *left)
    }

    /// When it ends, if its end has not been reported yet.
    #[must_use]
    pub fn end(&self) -> Option<MonoTime> {
        self.now.map(|(until, _)| until)
    }

    /// Whether it has ended since the last call.
    pub fn has_just_ended(&mut self, mono: MonoTime) -> bool {
        let over = self.now.is_some_and(|(until, _)| until <= mono);
        if over {
            self.now = None;
            self.remembered = Millis::ZERO;
        }
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_flush_it_lasts_for_what_the_leases_had_left() {
        let mut quarantine = Quarantine::default();
        quarantine.enter_for(Reason::Flush, Micros(100_000), MonoTime(0));
        assert_eq!(quarantine.left(MonoTime(0)), None, "it is off");
        quarantine.configure(Some(Millis(1000)));
        quarantine.enter_for(Reason::Flush, Micros::ZERO, MonoTime(0));
        assert_eq!(quarantine.end(), None, "nothing was held");
        quarantine.enter_for(Reason::Flush, Micros(100_000), MonoTime(0));
        let left = Some((Micros(111_000), Reason::Flush));
        assert_eq!(quarantine.left(MonoTime(0)), left);
        quarantine.enter_until(Reason::Promotion, MonoTime(111_000));
        assert_eq!(quarantine.left(MonoTime(0)), left, "it lasts no longer");
    }

    #[test]
    fn settings_that_cannot_be_read_count_until_they_can_be_read() {
        let mut quarantine = Quarantine::default();
        assert!(!quarantine.settings_are_readable(false, MonoTime(1)));
        assert!(!quarantine.lacks_settings(), "it is off");
        quarantine.configure(Some(Millis(1000)));
        assert!(!quarantine.settings_are_readable(true, MonoTime(2)));
        assert!(quarantine.settings_are_readable(false, MonoTime(3)));
        assert!(quarantine.lacks_settings());
        assert_eq!(quarantine.end(), None, "nobody knows when");
        assert!(quarantine.settings_are_readable(true, MonoTime(4)));
        assert!(!quarantine.lacks_settings());
        assert_eq!(quarantine.end(), Some(MonoTime(4)));
    }

    #[test]
    fn the_longer_quarantine_counts() {
        let mut quarantine = Quarantine::default();
        quarantine.enter(Reason::Start, MonoTime(0));
        assert_eq!(quarantine.left(MonoTime(0)), None);
        quarantine.configure(Some(Millis(1000)));
        quarantine.enter(Reason::Start, MonoTime(0));
        assert_eq!(
            quarantine.left(MonoTime(0)),
            Some((Micros(1_020_000), Reason::Start))
        );
        quarantine.enter_for(Reason::Flush, Micros(500_000), MonoTime(0));
        assert_eq!(
            quarantine.left(MonoTime(1_019_999)),
            Some((Micros(1), Reason::Start))
        );
        assert!(!quarantine.has_just_ended(MonoTime(1_019_999)));
        quarantine.enter_until(Reason::Promotion, MonoTime(2_500_000));
        assert_eq!(
            quarantine.left(MonoTime(1_000_000)),
            Some((Micros(1_500_000), Reason::Promotion))
        );
        assert!(quarantine.has_just_ended(MonoTime(9_000_000)));
        assert!(!quarantine.has_just_ended(MonoTime(9_000_000)));
    }

    #[test]
    fn unreadable_settings_stop_grants_until_they_can_be_read() {
        let mut quarantine = Quarantine::default();
        assert!(!quarantine.settings_are_readable(false, MonoTime(0)));
        assert_eq!(quarantine.left(MonoTime(0)), None, "quarantine is off");
        quarantine.configure(Some(Millis(1000)));
        assert!(quarantine.settings_are_readable(false, MonoTime(0)));
        assert!(!quarantine.settings_are_readable(false, MonoTime(0)));
        let unreadable = Some((UNREADABLE, Reason::Settings));
        assert_eq!(quarantine.left(MonoTime(9_000_000)), unreadable);
        quarantine.enter(Reason::Start, MonoTime(0));
        assert!(quarantine.has_just_ended(MonoTime(9_000_000)));
        assert_eq!(quarantine.left(MonoTime(9_000_000)), unreadable);
        assert!(quarantine.settings_are_readable(true, MonoTime(9_000_000)));
        assert_eq!(quarantine.left(MonoTime(9_000_000)), None);
        assert!(quarantine.has_just_ended(MonoTime(9_000_000)));
    }

    #[test]
    fn a_lowered_value_counts_only_after_the_quarantine_of_the_higher_one() {
        let mut quarantine = Quarantine::default();
        quarantine.configure(Some(Millis(1000)));
        quarantine.remember(Millis(3000));
        quarantine.enter(Reason::Start, MonoTime(0));
        assert_eq!(
            quarantine.left(MonoTime(0)),
            Some((Micros(3_040_000), Reason::Start))
        );
        assert_eq!(
            (quarantine.configured(), quarantine.to_save()),
            (Some(Millis(1000)), Millis(3000))
        );
        assert!(quarantine.has_just_ended(MonoTime(3_040_000)));
        assert_eq!(quarantine.to_save(), Millis(1000));
    }

    #[test]
    fn a_replica_saves_what_its_master_has_told_it() {
        let mut quarantine = Quarantine::default();
        quarantine.remember(Millis(3000));
        assert_eq!(
            (quarantine.configured(), quarantine.to_save()),
            (None, Millis(3000))
        );
        assert_eq!(quarantine.left(MonoTime(0)), None);
    }
}
