//! Compiles the clock shim once, for all tests that step a server's clock.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=src/clock_shim.c");
    // Only there does a process take its clock from a library that is preloaded.
    if env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system != "linux") {
        return;
    }
    let folder = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "src/clock_shim.c", "-o"])
        .arg(folder.join("clock_shim.so"))
        .status()
        .expect("a C compiler named cc");
    assert!(status.success(), "the clock shim does not compile");
}
