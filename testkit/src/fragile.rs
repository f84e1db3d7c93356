//! The module with the feature `failpoints`, which release builds do not have: tests make its
//! callbacks panic, and leave out its protections.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use tempfile::TempDir;

use crate::project_folder;

static FRAGILE: LazyLock<(TempDir, PathBuf)> = LazyLock::new(|| {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "-p", "redislock-module", "--lib"]);
    build.args(["--features", "failpoints"]);
    let status = build
        .current_dir(project_folder())
        .status()
        .expect("cargo builds the module");
    assert!(status.success(), "the module with failpoints is not built");
    // The tests are in target/<profile>/deps, what was built is in target/debug.
    let tests = std::env::current_exe().expect("this test's file");
    let target = tests.ancestors().nth(3).expect("the target folder");
    let suffix = std::env::consts::DLL_EXTENSION;
    let built = target.join(format!("debug/libredislock.{suffix}"));
    // A later build without the feature would replace it.
    let folder = tempfile::tempdir().expect("a temporary folder");
    let module = folder.path().join("fragile.so");
    fs::copy(&built, &module).unwrap_or_else(|error| panic!("{}: {error}", built.display()));
    (folder, module)
});

/// The module with failpoints, built once for all tests of a program.
pub fn fragile_module() -> &'static Path {
    &FRAGILE.1
}
