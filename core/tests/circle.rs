//! The search for circles among many: it ends soon.

use std::sync::mpsc;
use std::time::Duration;

use redislock_core::table::{Denial, Verdict};

use crate::node::{FOR_EVER, Node, ROOMY, SECOND, key, terms, token};

/// Many times what it takes; a search that walks every line for every owner takes many times this.
const PATIENCE: Duration = Duration::from_secs(30);

/// Each owner holds a lock and waits for the next one's, the longest chain that there can be; each wait is searched.
#[test]
fn a_long_chain_of_owners_is_followed_to_its_end_without_walking_all_lines_for_each() {
    const OWNERS: usize = 600;
    let (told, telling) = mpsc::channel();
    std::thread::spawn(move || {
        let mut node = Node::new(ROOMY);
        let own = |n: usize| key(&format!("key-{n}"));
        let terms = |n: usize| terms(&token(&format!("owner-{n}")), 10 * SECOND);
        for n in 0..OWNERS {
            let verdict = node.acquire(&[own(n)], &terms(n), None);
            assert!(matches!(verdict, Verdict::Granted(_)), "{verdict:?}");
        }
        for n in 1..OWNERS {
            let verdict = node.acquire(&[own(n)], &terms(n - 1), FOR_EVER);
            assert!(matches!(verdict, Verdict::Waits(_)), "{verdict:?}");
        }
        // The test may have given up.
        let _ = told.send(node.acquire(&[own(0)], &terms(OWNERS - 1), FOR_EVER));
    });
    let verdict = telling.recv_timeout(PATIENCE).expect("an answer in time");
    assert_eq!(verdict, Verdict::Denied(Denial::Deadlock));
}
