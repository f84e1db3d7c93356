//! Storage for locks: slots that never move, with handles that become invalid when the lock is
//! removed.

/// How many slots are allocated at once. Growing never copies existing ones.
const CHUNK: usize = 512;

/// The handle of a lock as long as it exists. Never zero, so that it fits into the bits of a
/// non-null pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockId {
    generation: u32,
    index: u32,
}

impl LockId {
    /// The handle as bits, never 0.
    #[must_use]
    pub fn to_bits(self) -> u64 {
        (u64::from(self.generation) << 32) | u64::from(self.index)
    }

    /// The handle with these bits, which may be invalid.
    #[must_use]
    pub fn from_bits(bits: u64) -> Self {
        Self {
            generation: (bits >> 32) as u32,
            index: bits as u32,
        }
    }

    /// A small number that no other existing lock has.
    #[must_use]
    pub fn index(self) -> u32 {
        self.index
    }
}

/// A value in [`Slots`] stores the generation of its handle itself, among its other small fields.
/// Next to each value, the generation would take eight bytes because of alignment.
pub trait Numbered {
    /// The generation with which it was made.
    fn generation(&self) -> u32;
}

/// A growing and shrinking set of `T`, each behind a [`LockId`].
#[derive(Debug)]
pub struct Slots<T> {
    chunks: Vec<Chunk<T>>,
    /// Chunks that may have room; the last one is used first.
    roomy: Vec<u32>,
    /// The chunk that became empty last. If it still is, it keeps its memory. If there is only one
    /// lock, this saves 4,000 of the 20,000 instructions of its acquire and its release.
    emptied: Option<u32>,
    /// Chunks that became empty before. When very many values are removed in any order, nearly all
    /// chunks become empty with the last few, and freeing one takes as long as removing many
    /// values: so the caller decides when.
    unused: Vec<Chunk<T>>,
    generation: u32,
    len: usize,
}

#[derive(Debug)]
struct Chunk<T> {
    slots: Vec<Option<T>>,
    free: Vec<u16>,
    used: usize,
}

impl<T> Default for Chunk<T> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            used: 0,
        }
    }
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self {
            chunks: Vec::new(),
            roomy: Vec::new(),
            emptied: None,
            unused: Vec::new(),
            generation: 0,
            len: 0,
        }
    }
}

impl<T: Numbered> Slots<T> {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a value, which is made with the generation of its handle.
    pub fn insert(&mut self, make: impl FnOnce(u32) -> T) -> LockId {
        // Generation 0 is never given out, so that no handle's bits are zero.
        self.generation = self.generation.checked_add(1).unwrap_or(1);
        self.len += 1;
        let generation = self.generation;
        let (at, chunk) = loop {
            if let Some(&at) = self.roomy.last()
                && let Some(chunk) = self.chunks.get_mut(at as usize)
            {
                break (at, chunk);
            }
            self.add_chunk();
        };
        let value = make(generation);
        debug_assert_eq!(value.generation(), generation);
        let place = match chunk.free.pop() {
            Some(place) => {
                if let Some(old) = chunk.slots.get_mut(usize::from(place)) {
                    *old = Some(value);
                }
                place
            }
            None => {
                if chunk.slots.capacity() == 0 {
                    chunk.slots.reserve_exact(CHUNK);
                }
                chunk.slots.push(Some(value));
                (chunk.slots.len() - 1) as u16
            }
        };
        chunk.used += 1;
        if chunk.used == CHUNK {
            self.roomy.pop();
        }
        LockId {
            generation,
            index: at * CHUNK as u32 + u32::from(place),
        }
    }

    fn add_chunk(&mut self) {
        self.roomy.push(self.chunks.len() as u32);
        self.chunks.push(Chunk::default());
    }

    /// The value of `id`, if it still exists.
    #[must_use]
    pub fn get(&self, id: LockId) -> Option<&T> {
        let slot = self
            .chunks
            .get(id.index as usize / CHUNK)?
            .slots
            .get(id.index as usize % CHUNK)?;
        slot.as_ref()
            .filter(|value| value.generation() == id.generation)
    }

    /// The value of `id`, if it still exists.
    pub fn get_mut(&mut self, id: LockId) -> Option<&mut T> {
        let slot = self
            .chunks
            .get_mut(id.index as usize / CHUNK)?
            .slots
            .get_mut(id.index as usize % CHUNK)?;
        slot.as_mut()
            .filter(|value| value.generation() == id.generation)
    }

    /// The handle of the value that is at `index` now.
    #[must_use]
    pub fn at(&self, index: u32) -> Option<LockId> {
        let slot = self
            .chunks
            .get(index as usize / CHUNK)?
            .slots
            .get(index as usize % CHUNK)?;
        slot.as_ref().map(|value| LockId {
            generation: value.generation(),
            index,
        })
    }

    /// Removes `id`. All empty chunks but one leave their memory to [`Slots::free_chunk`]: a chunk
    /// that becomes empty and is used again repeatedly would otherwise be allocated each time.
    pub fn remove(&mut self, id: LockId) -> Option<T> {
        let at = id.index as usize / CHUNK;
        let chunk = self.chunks.get_mut(at)?;
        let slot = chunk.slots.get_mut(id.index as usize % CHUNK)?;
        let value = slot.take_if(|value| value.generation() == id.generation)?;
        self.len -= 1;
        if chunk.used == CHUNK {
            self.roomy.push(at as u32);
        }
        chunk.used -= 1;
        chunk.free.push((id.index as usize % CHUNK) as u16);
        if chunk.used == 0 {
            let before = self.emptied.replace(at as u32);
            let before = before.filter(|before| *before != at as u32);
            if let Some(chunk) = before.and_then(|before| self.chunks.get_mut(before as usize))
                && chunk.used == 0
            {
                self.unused.push(std::mem::take(chunk));
            }
        }
        Some(value)
    }

    /// Whether memory is left that can be freed.
    #[must_use]
    pub fn has_unused_chunks(&self) -> bool {
        !self.unused.is_empty()
    }

    /// Frees the memory of one chunk that became empty.
    pub fn free_chunk(&mut self) {
        self.unused.pop();
    }

    /// Every handle with its value.
    pub fn iter(&self) -> impl Iterator<Item = (LockId, &T)> {
        self.chunks.iter().enumerate().flat_map(|(at, chunk)| {
            chunk
                .slots
                .iter()
                .enumerate()
                .filter_map(move |(place, slot)| {
                    let index = (at * CHUNK + place) as u32;
                    slot.as_ref().map(|value| {
                        let generation = value.generation();
                        (LockId { generation, index }, value)
                    })
                })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    struct Value<T>(u32, T);

    impl<T> Numbered for Value<T> {
        fn generation(&self) -> u32 {
            self.0
        }
    }

    impl<T> Slots<Value<T>> {
        fn put(&mut self, value: T) -> LockId {
            self.insert(|generation| Value(generation, value))
        }

        fn take(&mut self, id: LockId) -> Option<T> {
            self.remove(id).map(|Value(_, value)| value)
        }
    }

    #[test]
    fn a_handle_goes_stale_with_its_lock() {
        let mut slots = Slots::default();
        let a = slots.put('a');
        let b = slots.put('b');
        assert_eq!(slots.take(a), Some('a'));
        assert_eq!(slots.take(a), None);
        let c = slots.put('c');
        assert_eq!(c.index(), a.index());
        let get = |id| slots.get(id).map(|Value(_, value)| *value);
        assert_eq!((get(a), get(b), get(c)), (None, Some('b'), Some('c')));
        assert_eq!(LockId::from_bits(c.to_bits()), c);
        assert_eq!(slots.at(c.index()), Some(c));
        assert_eq!(slots.len(), 2);
    }

    #[test]
    fn handles_from_nowhere_name_nothing() {
        let mut slots = Slots::default();
        slots.put(1);
        for bits in [0, 1, u64::MAX, 1 << 32 | 77] {
            assert!(slots.get(LockId::from_bits(bits)).is_none());
            assert!(slots.remove(LockId::from_bits(bits)).is_none());
        }
    }

    #[test]
    fn a_chunk_that_is_used_and_left_again_and_again_keeps_its_memory() {
        let mut slots = Slots::default();
        let full: Vec<_> = (0..CHUNK).map(|i| slots.put(i)).collect();
        let other = slots.put(CHUNK);
        slots.remove(full[0]);
        let place = slots.chunks[1].slots.as_ptr();
        let mut id = other;
        for _ in 0..3 {
            slots.remove(id);
            assert_eq!(slots.chunks[1].slots.as_ptr(), place);
            assert!(slots.chunks[1].slots.capacity() > 0);
            // The first chunk has room for one, the second takes the other.
            let first = slots.put(0);
            id = slots.put(1);
            if id.index() < CHUNK as u32 {
                id = first;
            } else {
                slots.remove(first);
            }
        }
        assert_eq!(slots.chunks[1].slots.as_ptr(), place);
    }

    #[test]
    fn chunks_that_become_empty_together_are_freed_one_by_one() {
        const CHUNKS: usize = if cfg!(miri) { 3 } else { 10 };
        let mut slots = Slots::default();
        let mut ids: Vec<_> = (0..CHUNKS * CHUNK).map(|i| slots.put(i)).collect();
        // One is left in each chunk.
        let last = ids.extract_if(.., |id| id.index() as usize % CHUNK == 7);
        let last: Vec<_> = last.collect();
        for id in ids {
            slots.remove(id);
        }
        assert!(!slots.has_unused_chunks());
        for id in last {
            slots.remove(id);
        }
        // The last one keeps its memory.
        for freed in 1..CHUNKS {
            assert!(slots.has_unused_chunks(), "{freed}");
            slots.free_chunk();
        }
        assert!(!slots.has_unused_chunks());
    }

    #[test]
    fn memory_goes_back_when_many_have_gone() {
        const CHUNKS: usize = if cfg!(miri) { 3 } else { 10 };
        let mut slots = Slots::default();
        for round in 0..3 {
            let ids: Vec<_> = (0..CHUNKS * CHUNK).map(|i| slots.put(i)).collect();
            assert_eq!(slots.iter().count(), CHUNKS * CHUNK);
            for (i, id) in ids.iter().enumerate() {
                assert_eq!(slots.take(*id), Some(i), "round {round}");
            }
            assert!(slots.is_empty());
            let kept = slots
                .chunks
                .iter()
                .filter(|chunk| chunk.slots.capacity() > 0)
                .count();
            assert!(kept <= 1, "{kept} chunks kept");
            assert_eq!(slots.chunks.len(), CHUNKS);
        }
    }
}
