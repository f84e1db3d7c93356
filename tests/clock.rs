//! A server whose clocks a test can step: an LD_PRELOAD shim reads the shifts from a shared file.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::lock::wall_micros;
use crate::server::{Options, Server};

pub struct SteppedServer {
    pub server: Server,
    shift: PathBuf,
    _folder: TempDir,
}

impl SteppedServer {
    pub fn start(options: Options) -> SteppedServer {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let shim = folder.path().join("clock_shim.so");
        let shift = folder.path().join("shift");
        compile(&shim);
        fs::write(&shift, [0; 16]).expect("the shifts are written");
        let server = options
            .environment("LD_PRELOAD", &shim.display().to_string())
            .environment("CLOCK_SHIFT", &shift.display().to_string())
            .start();
        let stepped = SteppedServer {
            server,
            shift,
            _folder: folder,
        };
        stepped.assert_that_the_shim_works();
        stepped
    }

    /// Puts the server's wall clock this far from the true one.
    pub fn step(&self, seconds: i64) {
        self.shift(0, seconds);
    }

    /// From now on the server's host has been suspended for so long in all: its monotonic clock
    /// stood still meanwhile.
    pub fn suspended_for(&self, seconds: i64) {
        self.shift(8, seconds);
    }

    fn shift(&self, at: u64, seconds: i64) {
        use std::os::unix::fs::FileExt;
        let file = fs::OpenOptions::new().write(true).open(&self.shift);
        let file = file.expect("the shifts can be opened");
        file.write_all_at(&(seconds * 1_000_000).to_ne_bytes(), at)
            .expect("the shift is written");
    }

    /// Without this a shim that does nothing would make every test of the clock pass.
    fn assert_that_the_shim_works(&self) {
        let mut c = self.server.connect();
        for seconds in [3600, -3600, 0] {
            self.step(seconds);
            let ahead = c.call("LOCK.NODE").number("time") - wall_micros();
            assert!((ahead / 1_000_000 - seconds).abs() < 60, "{ahead}");
        }
    }
}

fn compile(shim: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clock_shim.c");
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(shim)
        .arg(source)
        .status()
        .expect("a C compiler named cc");
    assert!(status.success(), "the clock shim does not compile");
}
