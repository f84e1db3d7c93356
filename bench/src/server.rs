//! A server of our own for each measurement: free port, temporary folder, always stopped.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::Outcome;
use crate::resp::{Tcp, Unix};

/// How long a start may take, under valgrind too.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running server; dropping it ends it.
pub struct Server {
    process: Child,
    folder: TempDir,
    port: u16,
}

impl Server {
    /// A server without persistence, apart from what these lines of redis.conf say.
    pub fn start(settings: &[&str]) -> Outcome<Self> {
        Self::start_by(&[], settings)
    }

    /// The same under a tool such as valgrind: the command line in front of the server's.
    pub fn start_by(tool: &[&str], settings: &[&str]) -> Outcome<Self> {
        let folder = tempfile::tempdir()?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
            .local_addr()?
            .port();
        let path = folder.path().join("redis.conf");
        fs::write(&path, conf(folder.path(), port, settings)?)?;
        let log = File::create(folder.path().join("server.log"))?;
        let binary = std::env::var_os("REDIS_SERVER").unwrap_or_else(|| "redis-server".into());
        let mut line: Vec<_> = tool.iter().map(std::ffi::OsString::from).collect();
        line.extend([binary, path.into()]);
        let process = Command::new(&line[0])
            .args(&line[1..])
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .map_err(|error| format!("{} does not start: {error}", line[0].display()))?;
        let mut server = Self {
            process,
            folder,
            port,
        };
        server.wait_until_it_serves()?;
        Ok(server)
    }

    pub fn connect(&self) -> Outcome<Tcp> {
        Tcp::open(self.port)
    }

    /// By its Unix socket, which needs no port.
    pub fn connect_nearby(&self) -> Outcome<Unix> {
        Unix::open(&self.folder.path().join("socket"))
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn wait_until_it_serves(&mut self) -> Outcome<()> {
        let start = Instant::now();
        while Unix::open(&self.folder.path().join("socket"))
            .and_then(|mut connection| connection.call(&["PING"]))
            .is_err()
        {
            if self.process.try_wait()?.is_some() || start.elapsed() > PATIENCE {
                let log = fs::read_to_string(self.folder.path().join("server.log"))?;
                return Err(format!("the server did not start:\n{log}").into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only if it has ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn conf(folder: &Path, port: u16, settings: &[&str]) -> Outcome<String> {
    let mut lines = vec![
        "bind 127.0.0.1".to_owned(),
        format!("port {port}"),
        format!("dir {}", folder.display()),
        format!("unixsocket {}", folder.join("socket").display()),
        "save \"\"".to_owned(),
        "appendonly no".to_owned(),
        "auto-aof-rewrite-percentage 0".to_owned(),
        format!("loadmodule {}", module()?.display()),
    ];
    lines.extend(settings.iter().map(|line| (*line).to_owned()));
    Ok(lines.join("\n") + "\n")
}

/// `REDISLOCK_SO`, else what `make build` has left at the top of the project.
fn module() -> Outcome<PathBuf> {
    let path = std::env::var_os("REDISLOCK_SO").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../redislock.so"),
        PathBuf::from,
    );
    path.canonicalize()
        .map_err(|_| format!("{} is missing: `make build` makes it", path.display()).into())
}
