//! A hierarchical timing wheel for the ends of leases: setting and removing a deadline is O(1).
//!
//! Deadlines are hints: a deadline that was moved later is found at its old place; the caller
//! checks the lease itself and sets the deadline again. So extending a lease costs nothing here.

use crate::time::LeaseTime;

/// Seven levels of 64 buckets reach 2^42 ticks ahead: more than a century.
const LEVELS: usize = 7;
const BITS: u32 = 6;
const BUCKETS: usize = 1 << BITS;
/// One tick is 1.024 ms.
const TICK_BITS: u32 = 10;
/// How many links are allocated at once. Growing never copies existing ones.
const CHUNK: usize = 1024;

/// The links of an entry that is not in a bucket.
const UNSET: Link = Link {
    previous: u32::MAX,
    next: u32::MAX,
};
const END: u32 = u32::MAX;
/// Marks a `previous` that names a bucket instead of an entry.
const BUCKET: u32 = 1 << 31;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Link {
    previous: u32,
    next: u32,
}

/// The links of neighbouring entries.
#[derive(Debug, Default)]
struct Chunk {
    /// None while they are not needed.
    links: Option<Box<[Link; CHUNK]>>,
    /// How many of them are in a bucket.
    used: u32,
}

/// Deadlines of entries, which are small numbers that the caller chooses.
#[derive(Debug)]
pub struct Wheel {
    chunks: Vec<Chunk>,
    /// The chunk that became empty last. If it still is, it keeps its memory. If there is only one
    /// lock, this saves 8,500 of the 24,500 instructions of its acquire and its release.
    emptied: usize,
    heads: [[u32; BUCKETS]; LEVELS],
    occupied: [u64; LEVELS],
    /// The first tick that has not been checked.
    tick: u64,
    len: usize,
}

impl Default for Wheel {
    fn default() -> Self {
        Self {
            chunks: Vec::new(),
            emptied: 0,
            heads: [[END; BUCKETS]; LEVELS],
            occupied: [0; LEVELS],
            tick: 0,
            len: 0,
        }
    }
}

impl Wheel {
    /// How many entries have a deadline.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no entry has one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Sets the deadline of `entry`, and replaces an earlier one.
    pub fn set(&mut self, entry: u32, deadline: LeaseTime) {
        if self.link_of(entry).is_some_and(|link| *link != UNSET) {
            self.unset(entry);
        }
        // Rounded up, so that an entry is never found before its time in the finest level.
        let tick = (deadline.0.saturating_add((1 << TICK_BITS) - 1) >> TICK_BITS).max(self.tick);
        let (level, bucket) = place(self.tick, tick);
        self.link(entry, level, bucket);
        self.len += 1;
    }

    /// Removes the deadline of `entry`, if it has one.
    pub fn unset(&mut self, entry: u32) {
        let Some(&mut link) = self.link_of(entry).filter(|link| **link != UNSET) else {
            return;
        };
        if link.previous & BUCKET != 0 {
            let (level, bucket) = (
                (link.previous & !BUCKET) as usize / BUCKETS,
                (link.previous as usize) % BUCKETS,
            );
            self.set_head(level, bucket, link.next);
        } else if let Some(previous) = self.link_of(link.previous) {
            previous.next = link.next;
        }
        if let Some(next) = self.link_of(link.next) {
            next.previous = link.previous;
        }
        if let Some(link) = self.link_of(entry) {
            *link = UNSET;
        }
        self.len -= 1;
        self.leave_chunk(entry as usize / CHUNK);
    }

    /// An entry of this chunk was removed. Memory is freed chunk by chunk: after a million leases,
    /// freeing all of it at once would take long.
    fn leave_chunk(&mut self, at: usize) {
        let Some(chunk) = self.chunks.get_mut(at) else {
            return;
        };
        chunk.used -= 1;
        if chunk.used == 0 {
            let before = std::mem::replace(&mut self.emptied, at);
            if before != at
                && let Some(chunk) = self.chunks.get_mut(before)
                && chunk.used == 0
            {
                chunk.links = None;
            }
        }
    }

    /// Removes and returns an entry whose deadline may have passed at `now`; none if nothing is
    /// due. A distant deadline is found early a few times: the caller checks the lease and sets it
    /// again, which moves it to a finer level.
    pub fn pop(&mut self, now: LeaseTime) -> Option<u32> {
        let until = (now.0 >> TICK_BITS).max(self.tick);
        let Some((level, bucket, start)) = self.first().filter(|(_, _, start)| *start <= until)
        else {
            self.tick = until;
            return None;
        };
        self.tick = start;
        let entry = *self.heads.get(level)?.get(bucket)?;
        self.unset(entry);
        Some(entry)
    }

    /// A moment before which nothing is due; none when there are no deadlines.
    #[must_use]
    pub fn next(&self) -> Option<LeaseTime> {
        self.first()
            .map(|(_, _, tick)| LeaseTime(tick << TICK_BITS))
    }

    /// The first occupied bucket, and its first tick. If two buckets start at the same tick, the
    /// coarser one comes first: its entries may be due before those of the finer one.
    fn first(&self) -> Option<(usize, usize, u64)> {
        let occupied = self
            .occupied
            .iter()
            .enumerate()
            .rev()
            .filter(|(_, occupied)| **occupied != 0);
        let starts = occupied.map(|(level, occupied)| {
            let shift = BITS * level as u32;
            let turn = self.tick >> shift;
            let ahead = u64::from(
                occupied
                    .rotate_right((turn % BUCKETS as u64) as u32)
                    .trailing_zeros(),
            );
            let start = (turn + ahead) << shift;
            (
                level,
                (turn + ahead) as usize % BUCKETS,
                start.max(self.tick),
            )
        });
        starts.min_by_key(|(_, _, start)| *start)
    }

    fn link_of(&mut self, entry: u32) -> Option<&mut Link> {
        let chunk = self.chunks.get_mut(entry as usize / CHUNK)?;
        chunk.links.as_mut()?.get_mut(entry as usize % CHUNK)
    }

    fn link(&mut self, entry: u32, level: usize, bucket: usize) {
        let at = entry as usize / CHUNK;
        if self.chunks.len() <= at {
            self.chunks.resize_with(at + 1, Chunk::default);
        }
        let heads = self.heads.get_mut(level);
        let (Some(chunk), Some(occupied), Some(head)) = (
            self.chunks.get_mut(at),
            self.occupied.get_mut(level),
            heads.and_then(|heads| heads.get_mut(bucket)),
        ) else {
            return;
        };
        *occupied |= 1 << bucket;
        let next = std::mem::replace(head, entry);
        chunk.used += 1;
        let links = chunk.links.get_or_insert_with(|| Box::new([UNSET; CHUNK]));
        if let Some(link) = links.get_mut(entry as usize % CHUNK) {
            *link = Link {
                previous: BUCKET | (level * BUCKETS + bucket) as u32,
                next,
            };
        }
        if let Some(next) = self.link_of(next) {
            next.previous = entry;
        }
    }

    fn set_head(&mut self, level: usize, bucket: usize, entry: u32) {
        if let (Some(heads), Some(occupied)) =
            (self.heads.get_mut(level), self.occupied.get_mut(level))
        {
            if let Some(head) = heads.get_mut(bucket) {
                *head = entry;
            }
            let bit = 1 << bucket;
            if entry == END {
                *occupied &= !bit
            } else {
                *occupied |= bit
            }
        }
    }
}

/// The level and bucket of `tick`, seen from `now`.
fn place(now: u64, tick: u64) -> (usize, usize) {
    let differ = now ^ tick;
    let level = ((63 - (differ | 1).leading_zeros()) / BITS) as usize;
    let level = level.min(LEVELS - 1);
    (level, (tick >> (BITS * level as u32)) as usize % BUCKETS)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn due(wheel: &mut Wheel, real: &BTreeMap<u32, u64>, now: u64) -> Vec<u32> {
        let mut found = Vec::new();
        while let Some(entry) = wheel.pop(LeaseTime(now)) {
            match real.get(&entry) {
                Some(end) if *end > now => wheel.set(entry, LeaseTime(*end)),
                _ => found.push(entry),
            }
        }
        found.sort_unstable();
        found
    }

    #[test]
    fn a_deadline_is_found_at_its_tick_and_not_before() {
        for deadline in [0, 1, 1024, 65_536, 30_000_000, 604_800_000_000, 1 << 50] {
            let mut wheel = Wheel::default();
            let real = BTreeMap::from([(7, deadline)]);
            wheel.set(7, LeaseTime(deadline));
            if deadline > 0 {
                assert_eq!(due(&mut wheel, &real, deadline - 1), [0; 0]);
            }
            assert_eq!(due(&mut wheel, &real, deadline + 1024), [7]);
            assert!(wheel.is_empty());
        }
    }

    #[test]
    fn nothing_is_left_behind() {
        // More than two chunks.
        const MANY: u32 = if cfg!(miri) { 2_100 } else { 100_000 };
        let mut wheel = Wheel::default();
        for entry in 0..MANY {
            wheel.set(entry, LeaseTime(30_000_000 + u64::from(entry)));
        }
        assert_eq!(wheel.len(), MANY as usize);
        for entry in 0..MANY {
            wheel.unset(entry);
            wheel.unset(entry);
        }
        let kept = wheel.chunks.iter().filter(|chunk| chunk.links.is_some());
        assert_eq!(kept.count(), 1);
        assert!(wheel.is_empty() && wheel.next().is_none());
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_plain_map(
            steps in proptest::collection::vec(
                (0..3u8, 0..20u32, 0..40u32, any::<u64>()),
                1..200,
            ),
        ) {
            let (mut wheel, mut real, mut now) = (Wheel::default(), BTreeMap::new(), 0u64);
            for (what, entry, scale, random) in steps {
                let span = random % (1 << scale);
                match what {
                    0 => {
                        real.insert(entry, now + span);
                        wheel.set(entry, LeaseTime(now + span));
                    }
                    1 => {
                        real.remove(&entry);
                        wheel.unset(entry);
                    }
                    _ => now += span,
                }
                let found = due(&mut wheel, &real, now);
                for entry in &found {
                    prop_assert!(real.remove(entry).is_some_and(|end| end <= now));
                }
                // At most a tick late.
                prop_assert!(real.values().all(|end| *end + 1024 > now));
                prop_assert_eq!(wheel.len(), real.len());
                match (wheel.next(), real.values().min()) {
                    (Some(next), Some(first)) => prop_assert!(next.0 < first + 1024),
                    (next, first) => prop_assert!(next.is_none() && first.is_none()),
                }
            }
        }
    }
}
