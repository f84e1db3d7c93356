//! What is allocated: a long name for a free lock, and nothing that a hostile length asks for.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use redislock_core::Table;
use redislock_core::table::{Found, Keyspace, Output, Verdict, Wanted};
use redislock_core::time::{LeaseTime, Wait};
use redislock_core::token::Key;
use redislock_core::wire::{MAX_HOLDERS, Malformed, load, put_number};

use crate::node::{Node, ROOMY, SECOND, START, terms, token};

/// The system's allocator, which also counts for each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

fn count(size: usize) {
    ALLOCATIONS.set(ALLOCATIONS.get() + 1);
    LARGEST.set(LARGEST.get().max(size));
}

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps the promises that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Empty;

impl Keyspace for Empty {
    fn find(&mut self, _: &Table, _: &Key) -> Found {
        Found::Nothing
    }
}

#[test]
fn acquiring_and_releasing_a_free_lock_allocates_a_long_name_and_nothing_else() {
    assert_eq!(allocations_of_a_pair(b"a name of 26 bytes at most"), 0);
    assert_eq!(allocations_of_a_pair(b"a name that is longer than that"), 1);
}

/// How often memory is asked for when the lock of this name is acquired and released.
fn allocations_of_a_pair(name: &[u8]) -> usize {
    let mut node = Node::new(ROOMY);
    let (table, now) = (&mut node.table, node.now);
    let owner = token("0f8fad5b-d9cb-469f-a165-70867728950e");
    let terms = terms(&owner, SECOND);
    let mut spare: Option<Box<Output>> = None;
    let mut round = || {
        let free = Wanted {
            db: 0,
            name,
            lock: None,
            string: None,
        };
        let verdict = table.acquire(&[free], &terms, Wait::No, now, &mut Empty);
        assert!(matches!(verdict, Verdict::Granted(_)));
        let mut output = table.take_output(now, true, spare.take().unwrap_or_default());
        let lock = Some(output.touched[0].id);
        output.clear();
        let held = Wanted { lock, ..free };
        assert_eq!(table.release(&held, &owner, false, now, &mut Empty), 1);
        let mut output = table.take_output(now, true, output);
        output.clear();
        spare = Some(output);
    };
    // The first rounds make room that the others use again.
    round();
    round();
    let before = ALLOCATIONS.get();
    round();
    ALLOCATIONS.get() - before
}

#[test]
fn a_hostile_length_sets_nothing_aside() {
    let number = |value| {
        let mut bytes = Vec::new();
        put_number(value, &mut bytes);
        bytes
    };
    for length in [257, 1 << 20, u64::from(MAX_HOLDERS), 1 << 32, u64::MAX] {
        let token = [&[1, 2, 0, 1][..], &number(length), b"abc"].concat();
        let holds = [&[1, 3, 0][..], &number(length)].concat();
        let owner = [&[1, 2, 0, 1, 1, b'a', 1, 1, 5, 0, 0][..], &number(length)].concat();
        for bytes in [token, holds, owner] {
            LARGEST.set(0);
            assert_eq!(load(&bytes, LeaseTime(START.mono.0)).err(), Some(Malformed));
            assert!(LARGEST.get() < 1024, "{} bytes for {length}", LARGEST.get());
        }
    }
}
