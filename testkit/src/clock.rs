//! A server whose clocks a test can step: a library that is preloaded reads the shifts from a
//! shared file. Only on Linux.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;

use crate::lock::wall_micros;
use crate::{Options, Server};

/// The library, as the build script has compiled it.
const SHIM: &str = concat!(env!("OUT_DIR"), "/clock_shim.so");

/// A server whose clocks a test can step.
pub struct SteppedServer {
    /// The server itself.
    pub server: Server,
    shifts: PathBuf,
    _folder: TempDir,
}

impl SteppedServer {
    /// A server with the true time.
    pub fn start(options: Options) -> SteppedServer {
        SteppedServer::start_ahead(options, Duration::ZERO)
    }

    /// A server whose wall clock is ahead from its start on.
    pub fn start_ahead(options: Options, ahead: Duration) -> SteppedServer {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let shifts = folder.path().join("shifts");
        fs::write(&shifts, [0; 16]).expect("the shifts are written");
        let micros = i64::try_from(ahead.as_micros()).expect("a short time");
        write_shift(&shifts, 0, micros);
        let server = options
            .environment("LD_PRELOAD", SHIM)
            .environment("CLOCK_SHIFT", &shifts.display().to_string())
            .start();
        let stepped = SteppedServer {
            server,
            shifts,
            _folder: folder,
        };
        stepped.assert_that_the_shim_works(micros);
        stepped
    }

    /// Puts the server's wall clock this far from the true one.
    pub fn step(&self, seconds: i64) {
        write_shift(&self.shifts, 0, seconds * 1_000_000);
    }

    /// The same in milliseconds.
    pub fn step_millis(&self, millis: i64) {
        write_shift(&self.shifts, 0, millis * 1_000);
    }

    /// From now on it looks as if the server's host had been suspended for this long in total: its
    /// monotonic clock stood still during that time.
    pub fn suspended_for(&self, seconds: i64) {
        write_shift(&self.shifts, 8, seconds * 1_000_000);
    }

    /// Checks that the shim works: without it, every test of the clock would pass.
    fn assert_that_the_shim_works(&self, initial: i64) {
        let mut c = self.server.connect();
        for shift in [3_600_000_000, -3_600_000_000, initial] {
            write_shift(&self.shifts, 0, shift);
            let ahead = c.call("LOCK.NODE").number("time") - wall_micros();
            assert!(
                ahead.abs_diff(shift) < 60_000_000,
                "{ahead} instead of {shift}"
            );
        }
    }
}

fn write_shift(shifts: &PathBuf, at: u64, micros: i64) {
    let file = fs::OpenOptions::new().write(true).open(shifts);
    let file = file.expect("the shifts can be opened");
    file.write_all_at(&micros.to_ne_bytes(), at)
        .expect("the shift is written");
}
