//! What a check found, and what to do about it.

use serde_json::{Value, json};

/// How bad it is; the worst one decides the exit code.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// Good to know.
    Note,
    /// Works, but not as well or not as safely as it should.
    Warning,
    /// Locks are not granted, or two clients may hold one lock.
    Error,
}

impl Severity {
    pub fn word(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }

    pub fn exit_code(self) -> u8 {
        match self {
            Self::Note => 0,
            Self::Warning => 1,
            Self::Error => 2,
        }
    }
}

/// One problem.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    pub severity: Severity,
    /// The name of the check, for programs.
    pub check: &'static str,
    /// The node; none if it is about all of them.
    pub node: Option<String>,
    /// What is wrong and why that matters.
    pub problem: String,
    /// What to change.
    pub fix: String,
}

impl Finding {
    /// Whether it says that a check could not be made.
    pub fn is_about_a_missing_check(&self) -> bool {
        self.severity == Severity::Note && ["permissions", "replicas"].contains(&self.check)
    }

    pub fn json(&self) -> Value {
        json!({
            "severity": self.severity.word(),
            "check": self.check,
            "node": self.node,
            "problem": self.problem,
            "fix": self.fix,
        })
    }
}
