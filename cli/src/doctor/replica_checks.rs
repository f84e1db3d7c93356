//! Checks of the replicas of a node: one of them is the next master.

use super::facts::State;
use super::finding::Severity::{Error, Note, Warning};
use super::node_checks::Checks;
use crate::remedy::remedy;

/// What must be the same on a master and on the replica that takes over from it.
const COMMON: [&str; 4] = [
    "lock.quarantine",
    "lock.max-ttl",
    "min-replicas-to-write",
    "min-replicas-max-lag",
];
/// Settings for which 0 turns a protection off.
const PROTECTIONS: [&str; 3] = [
    "lock.quarantine",
    "min-replicas-to-write",
    "min-replicas-max-lag",
];

impl Checks<'_> {
    pub fn replicas(&mut self, master: &State) {
        for replica in &master.replicas {
            match &replica.state {
                Ok(state) => self.replica(&replica.name, state, master),
                Err(problem) => self.silent_replica(&replica.name, problem),
            }
        }
    }

    /// This host need not reach the replicas; but one without the module cannot take over.
    fn silent_replica(&mut self, name: &str, problem: &str) {
        let severity = if problem.contains("module") {
            Error
        } else {
            Note
        };
        let problem = format!("its replica {name} cannot be asked, and is not checked: {problem}");
        let fix = remedy(&problem);
        self.add(severity, "replicas", problem, fix);
    }

    fn replica(&mut self, name: &str, state: &State, master: &State) {
        if state.version != master.version {
            let problem = format!(
                "its replica {name} has version {} of the module, not {}",
                state.version, master.version
            );
            let fix = "upgrade the replicas first, then fail over, then upgrade the old master";
            self.add(Warning, "module-version", problem, fix);
        }
        if state.settings.is_empty() {
            let problem = format!(
                "CONFIG GET cannot be run on its replica {name}: its settings are not checked"
            );
            let fix = "give the replica the same users as the master, with +config|get for doctor";
            self.add(Note, "permissions", problem, fix);
        }
        let policy = state.settings.get("maxmemory-policy");
        if let Some(policy) = policy.filter(|policy| policy.starts_with("allkeys")) {
            let problem = format!(
                "its replica {name} has maxmemory-policy {policy}, and as the master may evict a \
                 lock while it is held"
            );
            let fix = "set maxmemory-policy noeviction on the replica";
            self.add(Error, "replica-settings", problem, fix);
        }
        for setting in COMMON {
            let (Some(own), Some(masters)) = (state.number(setting), master.number(setting)) else {
                continue;
            };
            if own == masters {
                continue;
            }
            let is_off = own == 0 && PROTECTIONS.contains(&setting);
            let severity = if is_off { Error } else { Warning };
            let problem =
                format!("its replica {name} has {setting} {own}, and would use it as the master");
            // The others change at once.
            let then = match setting {
                "lock.quarantine" => ", and restart it",
                _ => "",
            };
            let fix = format!("set {setting} {masters} on the replica, as on the master{then}");
            self.add(severity, "replica-settings", problem, &fix);
        }
    }
}
