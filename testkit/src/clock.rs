//! Processes whose clocks a test can step: a library that is preloaded reads the shifts from a
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

/// How far the clocks of a process are from the true ones.
pub struct Shifts {
    file: PathBuf,
    _folder: Option<TempDir>,
}

impl Shifts {
    /// The true time.
    #[expect(clippy::new_without_default, reason = "it creates a file")]
    pub fn new() -> Shifts {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("shifts");
        fs::write(&file, [0; 16]).expect("the shifts are written");
        Shifts {
            file,
            _folder: Some(folder),
        }
    }

    /// The shifts of this process, if it was started with this environment.
    pub fn of_this_process() -> Option<Shifts> {
        let file = std::env::var_os("CLOCK_SHIFT")?.into();
        Some(Shifts {
            file,
            _folder: None,
        })
    }

    /// The environment of a process that has these clocks.
    pub fn environment(&self) -> [(&'static str, String); 2] {
        [
            ("LD_PRELOAD", SHIM.to_owned()),
            ("CLOCK_SHIFT", self.file.display().to_string()),
        ]
    }

    /// From now on it looks as if the host had been suspended for this long in total: its monotonic
    /// clock stood still during that time.
    pub fn suspended_for(&self, seconds: i64) {
        self.write(8, seconds * 1_000_000);
    }

    fn step_micros(&self, micros: i64) {
        self.write(0, micros);
    }

    fn write(&self, at: u64, micros: i64) {
        let file = fs::OpenOptions::new().write(true).open(&self.file);
        let file = file.expect("the shifts can be opened");
        file.write_all_at(&micros.to_ne_bytes(), at)
            .expect("the shift is written");
    }
}

/// A server whose clocks a test can step.
pub struct SteppedServer {
    /// The server itself.
    pub server: Server,
    shifts: Shifts,
}

impl SteppedServer {
    /// A server with the true time.
    pub fn start(options: Options) -> SteppedServer {
        SteppedServer::start_ahead(options, Duration::ZERO)
    }

    /// A server whose wall clock is ahead from its start on.
    pub fn start_ahead(options: Options, ahead: Duration) -> SteppedServer {
        let shifts = Shifts::new();
        let micros = i64::try_from(ahead.as_micros()).expect("a short time");
        shifts.step_micros(micros);
        let environment = shifts.environment();
        let options = environment.iter().fold(options, |options, (name, value)| {
            options.environment(name, value)
        });
        let server = options.start();
        let stepped = SteppedServer { server, shifts };
        stepped.assert_that_the_shim_works(micros);
        stepped
    }

    /// Puts the server's wall clock this far from the true one.
    pub fn step(&self, seconds: i64) {
        self.shifts.step_micros(seconds * 1_000_000);
    }

    /// The same in milliseconds.
    pub fn step_millis(&self, millis: i64) {
        self.shifts.step_micros(millis * 1_000);
    }

    /// See [`Shifts::suspended_for`].
    pub fn suspended_for(&self, seconds: i64) {
        self.shifts.suspended_for(seconds);
    }

    /// Checks that the shim works: without it, every test of the clock would pass.
    fn assert_that_the_shim_works(&self, initial: i64) {
        let mut c = self.server.connect();
        for shift in [3_600_000_000, -3_600_000_000, initial] {
            self.shifts.step_micros(shift);
            let ahead = c.call("LOCK.NODE").number("time") - wall_micros();
            assert!(
                ahead.abs_diff(shift) < 60_000_000,
                "{ahead} instead of {shift}"
            );
        }
    }
}
