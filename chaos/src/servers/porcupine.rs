//! The independent checker: chaos/porcupine reads a journal and reports whether every
//! lock in it is a reentrant fenced mutex.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The program, as `go build` has made it.
#[derive(Clone, Debug)]
pub struct Porcupine(PathBuf);

/// Its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every lock is correct; how many operations were checked.
    Accepted(String),
    /// A lock is not.
    Rejected(String),
}

impl Porcupine {
    /// The program at this path.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Builds the program with Go into this folder. None if there is no Go on this machine.
    pub fn build(folder: &Path) -> Result<Option<Self>, String> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("porcupine");
        let program = folder.join("porcupine-check");
        let built = Command::new("go")
            .args(["build", "-o"])
            .arg(&program)
            .arg(".")
            .current_dir(source)
            .output();
        match built {
            Ok(output) if output.status.success() => Ok(Some(Self(program))),
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
            Err(_) => Ok(None),
        }
    }

    /// Checks a journal.
    pub fn check(&self, journal: &Path) -> Result<Verdict, String> {
        let output = Command::new(&self.0).arg(journal).output();
        let output = output.map_err(|error| format!("porcupine cannot be started: {error}"))?;
        let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        match output.status.code() {
            Some(0) => Ok(Verdict::Accepted(said)),
            Some(1) => Ok(Verdict::Rejected(said)),
            _ => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }
}
