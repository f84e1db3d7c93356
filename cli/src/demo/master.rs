//! A real server with the module that can be killed and started again.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{QUARANTINE, bound, log_of};
use crate::exit::Failure;

/// How long a server may take to reply for the first time.
const START_WITHIN: Duration = Duration::from_secs(10);
/// Another program may take the free port before the server does: then another port is tried.
const ATTEMPTS: usize = 5;

/// One master, stopped when dropped.
pub struct Master {
    server: PathBuf,
    module: PathBuf,
    folder: PathBuf,
    place: usize,
    pub port: u16,
    child: Option<Child>,
}

impl Master {
    /// Starts it on a free port and waits until it replies.
    pub async fn start(
        server: &Path,
        module: &Path,
        folder: &Path,
        place: usize,
    ) -> Result<Self, Failure> {
        let module = std::path::absolute(module);
        let mut master = Self {
            server: server.to_owned(),
            module: module.map_err(|error| Failure::io("cannot find the module", &error))?,
            folder: folder.to_owned(),
            place,
            port: 0,
            child: None,
        };
        for _ in 0..ATTEMPTS {
            master.port = free_port()?;
            master.spawn()?;
            if master.answers().await {
                return Ok(master);
            }
        }
        let log = std::fs::read_to_string(log_of(folder, place)).unwrap_or_default();
        let last = log.lines().last().unwrap_or("no log").to_owned();
        let name = server.display();
        Err(Failure::usage(format!(
            "{name} does not start with the module: {last}"
        )))
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn is_running(&mut self) -> bool {
        let child = self.child.as_mut();
        child.is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Starts the process.
    pub fn spawn(&mut self) -> Result<(), Failure> {
        let mut command = Command::new(&self.server);
        command
            .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .args(["--port", &self.port.to_string()])
            .arg("--dir")
            .arg(&self.folder)
            .arg("--logfile")
            .arg(log_of(&self.folder, self.place))
            .arg("--loadmodule")
            .arg(&self.module)
            .args(["--lock.quarantine", &QUARANTINE.as_millis().to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        bound(&mut command);
        let started = command.spawn();
        let name = self.server.display();
        let failed = |error| Failure::usage(format!("{name} cannot be started: {error}"));
        self.child = Some(started.map_err(failed)?);
        Ok(())
    }

    async fn answers(&mut self) -> bool {
        let start = Instant::now();
        while start.elapsed() < START_WITHIN && self.is_running() {
            if ping(self.port).await.is_ok_and(|reply| reply == *b"+PONG") {
                // Another server may have replied: this one would have ended by now.
                tokio::time::sleep(Duration::from_millis(50)).await;
                return self.is_running();
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        false
    }

    /// SIGKILL: it closes nothing cleanly.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Master {
    fn drop(&mut self) {
        self.kill();
    }
}

async fn ping(port: u16) -> std::io::Result<[u8; 5]> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    stream.write_all(b"PING\r\n").await?;
    let mut reply = [0; 5];
    stream.read_exact(&mut reply).await?;
    Ok(reply)
}

fn free_port() -> Result<u16, Failure> {
    let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let address = bound.and_then(|listener| listener.local_addr());
    let address = address.map_err(|error| Failure::io("no free port", &error))?;
    Ok(address.port())
}
