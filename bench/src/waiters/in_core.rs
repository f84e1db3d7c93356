//! The same hand-over in core, without a server. A waiter needs no connection there, so there can
//! be more of them than a process may have files open.

use redislock_core::token::Key;

use super::{HANDOVERS, Place, mean_of_most};
use crate::Outcome;
use crate::in_core::{Node, name, token};

/// Microseconds of a release that grants the lock to a waiter, with `size` of them waiting.
pub fn hand_over(size: usize, place: Place) -> Outcome<f64> {
    let mut node = Node::new();
    let keys: Vec<_> = match place {
        Place::OneKey => vec![Key::new(0, b"waited")],
        Place::KeyEach => (0..size).map(|number| name(number, "waited")).collect(),
    };
    let host = token("host")?;
    for key in &keys {
        node.hold(key, &host)?;
    }
    let key_of = |number: usize| keys.get(number % keys.len()).ok_or("no key");
    let mut waiting = Vec::new();
    for number in 0..size {
        let token = token(&format!("waiter-{number:030}"))?;
        let id = node.wait(&[key_of(number)?], &token)?;
        waiting.push((token, id));
    }
    let (mut times, mut holder) = (Vec::new(), None);
    for turn in 0..HANDOVERS {
        let number = turn % size;
        let (key, (token, id)) = (key_of(number)?, waiting.get(number).ok_or("no waiter")?);
        let releasing = holder.and_then(|number: usize| waiting.get(number));
        let releasing = releasing.map_or(&host, |(token, _)| token);
        times.push(node.release(key, releasing, Some(*id))?);
        match place {
            Place::OneKey => {
                if let Some(before) = holder.replace(number)
                    && let Some((token, id)) = waiting.get_mut(before)
                {
                    *id = node.wait(&[key], token)?;
                }
            }
            Place::KeyEach => {
                node.release(key, token, None)?;
                node.hold(key, &host)?;
                if let Some((token, id)) = waiting.get_mut(number) {
                    *id = node.wait(&[key], token)?;
                }
            }
        }
    }
    Ok(mean_of_most(times))
}
