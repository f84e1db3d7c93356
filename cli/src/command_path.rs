//! Finds the command as a shell would, before any lock is requested.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};

use crate::exit::{Failure, NOT_EXECUTABLE, NOT_FOUND};

/// Where commands are looked up if PATH is not set.
const USUAL_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// The file that this command names.
pub fn find(name: &OsStr) -> Result<PathBuf, Failure> {
    let shown = Path::new(name).display();
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        if is_program(&path) {
            return Ok(path);
        }
        if path.exists() {
            return Err(not_executable(&path));
        }
        let text = format!("{shown}: no such file: check the command after --");
        return Err(Failure::new(NOT_FOUND, text));
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| USUAL_PATH.into());
    let mut found = None;
    for folder in std::env::split_paths(&path) {
        let file = folder.join(name);
        if is_program(&file) {
            return Ok(file);
        }
        if file.is_file() {
            found.get_or_insert(file);
        }
    }
    Err(match found {
        Some(file) => not_executable(&file),
        None => Failure::new(
            NOT_FOUND,
            format!("{shown}: command not found in PATH: check its name after --"),
        ),
    })
}

fn is_program(path: &Path) -> bool {
    path.is_file() && access(path, AccessFlags::X_OK).is_ok()
}

fn not_executable(path: &Path) -> Failure {
    let shown = path.display();
    Failure::new(
        NOT_EXECUTABLE,
        format!("{shown} is not executable: try chmod +x, or put its interpreter after --"),
    )
}
