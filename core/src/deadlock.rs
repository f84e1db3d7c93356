//! Who waits for whom: whether one more wait would close a circle.
//!
//! The owners are the points of the graph. An owner that waits depends on those who hold what it waits for (on all of them,
//! or, where a semaphore is full, on any one of them) and on those who are ahead of it in a line. A new wait closes a
//! circle if it depends on somebody who depends on something that the newcomer holds: neither would ever go on.

use std::collections::{BTreeMap, BTreeSet};

use crate::token::Token;

/// What an owner depends on for one of the keys it waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Every one of these has to go first.
    All(Vec<Token>),
    /// One of these has to go first.
    AnyOf(Vec<Token>),
}

/// Whether a wait of `newcomer` with these `needs` closes a circle. `needs_of` tells what an owner that waits depends
/// on through holds and through lines; `held_by_newcomer` marks the dependencies that lead back to a *hold* of the
/// newcomer by naming the newcomer itself.
pub fn closes_a_circle(
    newcomer: &Token,
    needs: Vec<Needs>,
    needs_of: impl Fn(&Token) -> Vec<Needs>,
) -> bool {
    let mut graph: BTreeMap<Token, Vec<Needs>> = BTreeMap::new();
    let mut to_visit: Vec<Token> = others(&needs, newcomer);
    while let Some(owner) = to_visit.pop() {
        if graph.contains_key(&owner) {
            continue;
        }
        let needs = needs_of(&owner);
        to_visit.extend(others(&needs, newcomer));
        graph.insert(owner, needs);
    }
    // The least set of owners that cannot go on before the newcomer lets go of something.
    let mut stuck = BTreeSet::from([newcomer.clone()]);
    loop {
        let more: Vec<_> = graph
            .iter()
            .filter(|(owner, needs)| {
                !stuck.contains(*owner) && needs.iter().any(|needs| is_stuck(needs, &stuck))
            })
            .map(|(owner, _)| owner.clone())
            .collect();
        if more.is_empty() {
            break;
        }
        stuck.extend(more);
    }
    needs.iter().any(|needs| is_stuck(needs, &stuck))
}

fn others(needs: &[Needs], newcomer: &Token) -> Vec<Token> {
    let tokens = needs.iter().flat_map(|needs| match needs {
        Needs::All(tokens) | Needs::AnyOf(tokens) => tokens,
    });
    tokens.filter(|token| *token != newcomer).cloned().collect()
}

fn is_stuck(needs: &Needs, stuck: &BTreeSet<Token>) -> bool {
    match needs {
        Needs::All(tokens) => tokens.iter().any(|token| stuck.contains(token)),
        Needs::AnyOf(tokens) => {
            !tokens.is_empty() && tokens.iter().all(|token| stuck.contains(token))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(names: &str) -> Vec<Token> {
        names
            .bytes()
            .filter_map(|name| Token::new(&[name]))
            .collect()
    }

    fn circle(newcomer: &str, needs: &[Needs], graph: &[(&str, Needs)]) -> bool {
        let newcomer = &tokens(newcomer)[0];
        closes_a_circle(newcomer, needs.to_vec(), |owner| {
            graph
                .iter()
                .filter(|(name, _)| tokens(name)[0] == *owner)
                .map(|(_, needs)| needs.clone())
                .collect()
        })
    }

    #[test]
    fn a_circle_is_seen_over_any_number_of_owners() {
        let all = |names| Needs::All(tokens(names));
        assert!(circle("a", &[all("b")], &[("b", all("a"))]));
        assert!(circle(
            "a",
            &[all("b")],
            &[("b", all("xc")), ("c", all("d")), ("d", all("a"))]
        ));
        assert!(!circle("a", &[all("b")], &[("b", all("c"))]));
        assert!(!circle(
            "a",
            &[all("b")],
            &[("b", all("c")), ("c", all("b"))]
        ));
        assert!(!circle("a", &[], &[("b", all("a"))]));
    }

    #[test]
    fn one_free_permit_holder_is_enough_to_go_on() {
        let any = |names| Needs::AnyOf(tokens(names));
        assert!(!circle(
            "a",
            &[any("bc")],
            &[("b", Needs::All(tokens("a")))]
        ));
        assert!(circle(
            "a",
            &[any("bc")],
            &[("b", Needs::All(tokens("a"))), ("c", any("b"))]
        ));
        assert!(!circle(
            "a",
            &[Needs::All(tokens("b"))],
            &[("b", any("ac"))]
        ));
    }
}
