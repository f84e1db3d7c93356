//! What is allocated: a long name for a free lock, and nothing that a hostile length asks for.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use redislock_core::Table;
use redislock_core::table::{Found, Keyspace, Output, Verdict, Wanted};
use redislock_core::time::{LeaseTime, Micros, Wait};
use redislock_core::token::Key;
use redislock_core::wire::{MAX_HOLDERS, Malformed, load, put_number};

use crate::node::{Node, ROOMY, SECOND, START, terms, token};

/// The system's allocator, which also counts for each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    static LARGEST: Cell<usize> = const { Cell::new(0) };
    static IN_USE: Cell<isize> = const { Cell::new(0) };
}

fn count(size: usize) {
    ALLOCATIONS.set(ALLOCATIONS.get() + 1);
    LARGEST.set(LARGEST.get().max(size));
    IN_USE.set(IN_USE.get() + size as isize);
}

fn count_freed(size: usize) {
    // A thread may free memory while it ends.
    let _ = IN_USE.try_with(|in_use| in_use.set(in_use.get() - size as isize));
}

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps the promises that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count_freed(layout.size());
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        count_freed(layout.size());
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
    let mut reusable: Option<Box<Output>> = None;
    let mut round = || {
        let free = Wanted {
            db: 0,
            name,
            lock: None,
            string: None,
        };
        let verdict = table.acquire(&[free], &terms, Wait::No, now, &mut Empty);
        assert!(matches!(verdict, Verdict::Granted(_)));
        let mut output = table.take_output(now, true, reusable.take().unwrap_or_default());
        let lock = Some(output.touched[0].id);
        output.clear();
        let held = Wanted { lock, ..free };
        assert_eq!(table.release(&held, &owner, false, now, &mut Empty), 1);
        let mut output = table.take_output(now, true, output);
        output.clear();
        reusable = Some(output);
    };
    // The first rounds make room that the others use again.
    round();
    round();
    let before = ALLOCATIONS.get();
    round();
    ALLOCATIONS.get() - before
}

/// How many bytes more are in use when something has come and gone.
fn kept_after(work: impl FnOnce(&mut Node)) -> isize {
    let mut node = Node::new(ROOMY);
    node.hold("owner", "k");
    node.let_go("owner", "k");
    node.take();
    let before = IN_USE.get();
    work(&mut node);
    node.take();
    IN_USE.get() - before
}

/// Very many of what a node has at a time.
const MANY: usize = 9000;

#[test]
fn nothing_is_kept_of_very_many_waiters_for_one_key() {
    let kept = kept_after(|node| {
        node.hold("holder", "k");
        for n in 0..MANY {
            node.wait(&format!("waiter-{n}"), "k");
        }
        node.table.unblock_all();
        while node.table.time_out(128, node.now) {
            node.apply();
        }
        node.let_go("holder", "k");
    });
    assert!(kept < 200_000, "{kept} bytes");
}

#[test]
fn nothing_is_kept_of_very_many_connections_with_ephemeral_holds() {
    let connect = |node: &mut Node| {
        for n in 0..MANY {
            let ephemeral = redislock_core::lock::Terms {
                ephemeral: true,
                connection: Some(n as u64),
                ..terms(&token(&format!("owner-{n}")), SECOND)
            };
            let name = Key::new(0, format!("key-{n}").as_bytes());
            node.acquire(&[name], &ephemeral, Wait::No);
        }
        node.take();
    };
    let closed = kept_after(|node| {
        connect(node);
        (0..MANY as u64).for_each(|connection| node.hang_up(connection, Micros::ZERO));
        node.tick();
    });
    assert!(closed < 200_000, "{closed} bytes");
    let ended = kept_after(|node| {
        connect(node);
        node.advance(2 * SECOND);
        node.tick();
    });
    assert!(ended < 200_000, "{ended} bytes");
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
