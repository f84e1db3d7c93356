//! Servers whose wall clocks are off, or step while locks are held. An LD_PRELOAD shim, the one of
//! the module's own tests, does it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use redislock_client::{Moment, Redlock, Released};
use tempfile::TempDir;

use crate::server::Server;
use crate::{TTL, builder, log, until};

/// A server whose wall clock a test can step.
struct SteppedServer {
    server: Server,
    shift: PathBuf,
    _folder: TempDir,
}

impl SteppedServer {
    fn start(ahead: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (shim, shift) = (folder.path().join("shim.so"), folder.path().join("shift"));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testkit/src/clock_shim.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-o"]);
        let status = compiler.arg(&shim).arg(source).status();
        assert!(status.expect("a C compiler named cc").success());
        std::fs::write(&shift, micros(ahead).to_ne_bytes()).unwrap();
        let environment = [("LD_PRELOAD", shim), ("CLOCK_SHIFT", shift.clone())];
        let stepped = Self {
            server: Server::start_in(&[], &environment),
            shift,
            _folder: folder,
        };
        // Without this a shim that does nothing would make every test of the clock pass.
        let off = stepped.clock().abs_diff(clock_of(&Server::start(&[])));
        assert!(
            off.abs_diff(micros(ahead).unsigned_abs()) < 60_000_000,
            "{off}"
        );
        stepped
    }

    /// Puts the wall clock so many µs from the true one.
    fn step(&self, micros: i64) {
        use std::os::unix::fs::FileExt;
        let file = std::fs::OpenOptions::new().write(true).open(&self.shift);
        file.unwrap()
            .write_all_at(&micros.to_ne_bytes(), 0)
            .unwrap();
    }

    fn clock(&self) -> i64 {
        clock_of(&self.server)
    }
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap()
}

fn clock_of(server: &Server) -> i64 {
    let time: Vec<i64> = server.run(&["TIME"]);
    time[0] * 1_000_000 + time[1]
}

#[tokio::test]
async fn clocks_that_are_more_than_a_second_apart_are_a_warning_that_names_them() {
    log::start();
    let near = SteppedServer::start(Duration::from_millis(300));
    let far = SteppedServer::start(Duration::from_secs(3));
    let others = Server::start_many::<2>(&[]);
    let about = |server: &Server| {
        let warnings = log::lines("more than a second apart");
        let name = format!("ahead=127.0.0.1:{} ", server.port);
        warnings
            .into_iter()
            .filter(|line| line.contains(&name))
            .count()
    };
    for stepped in [&near, &far] {
        builder(&others)
            .node(stepped.server.url())
            .connect()
            .await
            .unwrap();
    }
    assert_eq!(about(&near.server), 0);
    assert_eq!(about(&far.server), 1);
}

#[tokio::test]
async fn a_node_whose_clock_is_off_by_an_hour_stops_nobody_and_fences_grow() {
    let hour = micros(Duration::from_secs(3600));
    let stepped = SteppedServer::start(Duration::ZERO);
    let others = Server::start_many::<2>(&[]);
    let client = builder(&others)
        .node(stepped.server.url())
        .connect()
        .await
        .unwrap();
    let mut last = 0;
    for shift in [0, hour, -hour, 0, -hour, hour] {
        stepped.step(shift);
        // Also a client that meets the clock as it is now.
        let late = builder(&others)
            .node(stepped.server.url())
            .connect()
            .await
            .unwrap();
        for client in [&client, &late] {
            let guard = client.lock("x").ttl(TTL).acquire().await.unwrap();
            assert!(guard.fence() > last, "{} after {last}", guard.fence());
            last = guard.fence();
            assert_eq!(guard.release().await, Released::WasHeld);
        }
    }
}

#[tokio::test]
async fn a_hold_neither_ends_nor_lasts_longer_when_the_servers_clock_steps() {
    let stepped = SteppedServer::start(Duration::ZERO);
    let client = Redlock::connect([stepped.server.url()]).await.unwrap();
    let day = micros(Duration::from_secs(86_400));
    let guard = client.lock("x").ttl(TTL).acquire().await.unwrap();
    for shift in [day, -day, 0] {
        stepped.step(shift);
        let before = guard.valid_until();
        until("it was renewed", || guard.valid_until() > before).await;
        assert!(guard.is_valid());
    }
    let fence = guard.fence();
    assert_eq!(guard.release().await, Released::WasHeld);

    // A lease that nobody renews ends when it should, whatever the wall clock says meanwhile.
    stepped.step(day);
    let lease = client.lock("x").ttl(TTL).renew(false);
    let forgotten = lease.acquire().await.unwrap();
    assert!(forgotten.fence() > fence);
    stepped.step(-day);
    let end = forgotten.valid_until();
    let next = client.lock("x").ttl(TTL).acquire().await.unwrap();
    assert!(Moment::now() >= end, "granted before the lease was over");
    assert!(next.fence() > forgotten.fence());
}
