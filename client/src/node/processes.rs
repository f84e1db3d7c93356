//! Which processes have answered as a node.

use super::Known;

/// Processes, by their incarnations.
#[derive(Default)]
pub(super) struct Processes {
    /// For one server, the last one; for a cluster, all that ever were masters.
    seen: Vec<String>,
    /// The masters of the current connection to a cluster, when all of them last answered.
    masters: Vec<String>,
}

impl Processes {
    /// Notes which processes have answered: all masters of a cluster, or some.
    pub(super) fn note(&mut self, names: &[&str], all: bool, is_cluster: bool) -> Known {
        let new = names.iter().filter(|name| !self.knows(name));
        let new: Vec<String> = new.map(|name| (*name).to_owned()).collect();
        let known = if self.seen.is_empty() || new.is_empty() {
            Known::Same
        } else {
            Known::Restarted
        };
        // One server has one incarnation; in a cluster, some masters may not have answered.
        if !new.is_empty() && !is_cluster {
            self.seen.clear();
        }
        self.seen.extend(new);
        if all && self.masters != names {
            self.masters = names.iter().map(|name| (*name).to_owned()).collect();
        }
        known
    }

    /// There is a new connection: nothing has answered on it yet.
    pub(super) fn leave(&mut self) {
        self.masters.clear();
    }

    pub(super) fn knows(&self, name: &str) -> bool {
        self.seen.iter().any(|one| one == name)
    }

    /// Whether some of the processes that answer on another connection are not reached by the
    /// current one. A master that becomes master again after a failover has answered before.
    pub(super) fn lack(&self, names: &[&str], all: bool) -> bool {
        let is_here = |name: &&str| {
            if all {
                self.masters.iter().any(|one| one == name)
            } else {
                self.knows(name)
            }
        };
        !names.iter().all(is_here)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_master_that_takes_over_again_is_not_behind_the_connection_to_the_one_in_between() {
        let mut cluster = Processes::default();
        assert_eq!(cluster.note(&["a", "c"], true, true), Known::Same);
        assert!(!cluster.lack(&["a", "c"], true), "it is only slow");
        assert!(cluster.lack(&["b", "c"], true) && cluster.lack(&["b"], false));
        cluster.leave();
        assert_eq!(cluster.note(&["b", "c"], true, true), Known::Restarted);
        // Later b stops, and a is elected again.
        assert_eq!(cluster.note(&["c"], false, true), Known::Same);
        assert!(cluster.lack(&["a", "c"], true));
        cluster.leave();
        assert_eq!(cluster.note(&["a", "c"], true, true), Known::Same);
        assert!(!cluster.lack(&["c", "a"], true));
    }

    #[test]
    fn a_connection_on_which_not_all_have_answered_is_left_for_one_on_which_they_do() {
        let mut cluster = Processes::default();
        cluster.note(&["c"], false, true);
        assert!(!cluster.lack(&["c"], false));
        assert!(cluster.lack(&["c"], true));
    }

    #[test]
    fn one_server_has_one_process() {
        let mut server = Processes::default();
        assert_eq!(server.note(&["a"], true, false), Known::Same);
        assert_eq!(server.note(&["a"], true, false), Known::Same);
        assert_eq!(server.note(&["b"], true, false), Known::Restarted);
        assert!(server.knows("b") && !server.knows("a"));
    }
}
