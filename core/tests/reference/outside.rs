//! What happens without being asked: time, connections, restarts, keys that come and go.

use super::{Key, Model};

impl Model {
    /// A connection has closed: its ephemeral holds end `grace` µs later, if not before.
    pub fn hang_up(&mut self, connection: u64, grace: u64) {
        let holds = self
            .locks
            .values_mut()
            .flat_map(|lock| lock.holds.values_mut());
        for hold in holds.filter(|hold| hold.connection == Some(connection) && hold.end > self.now)
        {
            hold.end = hold.end.min(self.now + grace);
        }
    }

    /// The server has started again, which took `loading` µs: what remained of each lease remains,
    /// ephemeral holds are ordinary leases, nobody waits.
    pub fn reload(&mut self, loading: u64) {
        self.sweep();
        self.now += loading;
        for hold in self
            .locks
            .values_mut()
            .flat_map(|lock| lock.holds.values_mut())
        {
            hold.end += loading;
            hold.granted += loading;
            hold.connection = None;
        }
        self.queue.clear();
        self.undelivered.clear();
        self.quarantine_until = 0;
        self.holds_back = false;
    }

    /// The key goes, whatever stood there.
    pub fn delete(&mut self, key: Key) {
        self.locks.remove(&key);
        self.others.remove(&key);
        self.strings.remove(&key);
    }

    /// A value of another type is written over the key.
    pub fn overwrite(&mut self, key: Key) {
        self.delete(key);
        self.others.insert(key);
    }

    /// An old client acquires the key, which is free.
    pub fn set_string(&mut self, key: Key) {
        self.delete(key);
        self.strings.insert(key);
    }

    /// RENAME and MOVE: what stands at `from` stands at `to`.
    pub fn rename(&mut self, from: Key, to: Key) {
        let (lock, other) = (self.locks.remove(&from), self.others.remove(&from));
        let string = self.strings.remove(&from);
        self.delete(to);
        if let Some(lock) = lock {
            self.locks.insert(to, lock);
        }
        if other {
            self.others.insert(to);
        }
        if string {
            self.strings.insert(to);
        }
    }

    /// DUMP of `from`, RESTORE at `to` in place of what stood there: an ordinary lease.
    pub fn restore(&mut self, from: Key, to: Key) {
        let Some(mut lock) = self.live(from) else {
            return;
        };
        lock.holds
            .values_mut()
            .for_each(|hold| hold.connection = None);
        self.delete(to);
        self.locks.insert(to, lock);
    }

    pub fn swap(&mut self, a: u32, b: u32) {
        let swapped = |(db, name): Key| {
            (
                if db == a {
                    b
                } else if db == b {
                    a
                } else {
                    db
                },
                name,
            )
        };
        self.locks = std::mem::take(&mut self.locks)
            .into_iter()
            .map(|(key, lock)| (swapped(key), lock))
            .collect();
        self.others = std::mem::take(&mut self.others)
            .into_iter()
            .map(swapped)
            .collect();
        self.strings = std::mem::take(&mut self.strings)
            .into_iter()
            .map(swapped)
            .collect();
    }

    /// FLUSHDB or FLUSHALL: how long the last lease had to go, µs.
    pub fn flush(&mut self, db: Option<u32>) -> u64 {
        let flushed = |key: &Key| db.is_none_or(|db| db == key.0);
        let ends = self
            .locks
            .iter()
            .filter(|(key, _)| flushed(key))
            .flat_map(|(_, lock)| lock.holds.values());
        let last = ends
            .map(|hold| hold.end.saturating_sub(self.now))
            .max()
            .unwrap_or(0);
        self.locks.retain(|key, _| !flushed(key));
        self.others.retain(|key| !flushed(key));
        self.strings.retain(|key| !flushed(key));
        last
    }

    /// No grants for `span` µs, with 1 % and 10 ms added; the longer of two quarantines counts.
    pub fn quarantine(&mut self, span: u64) {
        if span > 0 {
            self.quarantine_until = self
                .quarantine_until
                .max(self.now + span + span / 100 + 10_000);
        }
    }
}
