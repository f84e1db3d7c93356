//! The servers that are measured: with our module in one or two builds, without a module, with the
//! bare module.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use redislock_testkit::{Connection, Options, Server, find_module, project_folder};

use crate::Outcome;

/// Relative to the server's folder.
const SOCKET: &str = "socket";

/// The settings of a server that writes an AOF.
pub const AOF_SETTINGS: [&str; 2] = ["appendonly yes", "appendfsync everysec"];

/// What a server has loaded. Each alternative runs on a server without our module: the module
/// listens to events of all keys, which costs plain commands something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// Our module.
    Redislock,
    /// Our module as `make build` makes it, if the measured one is built with a profile.
    Untrained,
    /// No module.
    Plain,
    /// The bare module.
    Bare,
}

impl Host {
    /// Those that can be started.
    pub fn all() -> Vec<Self> {
        let all = [Self::Redislock, Self::Untrained, Self::Plain, Self::Bare];
        all.into_iter().filter(|host| host.exists()).collect()
    }

    /// Whether it can be started: the bare module needs a C compiler.
    pub fn exists(self) -> bool {
        match self {
            Self::Redislock | Self::Plain => true,
            Self::Untrained => untrained_module().is_some(),
            Self::Bare => bare_module().is_some(),
        }
    }

    /// A server without persistence, except for what these lines of redis.conf set.
    pub fn options(self, settings: &[&str]) -> Outcome<Options> {
        let options = Server::options()
            .end_with_this_process()
            .config("auto-aof-rewrite-percentage 0")
            .config(&format!("unixsocket {SOCKET}"))
            .configs(settings);
        Ok(match self {
            Self::Redislock => options,
            Self::Untrained => {
                options.module(untrained_module().ok_or("there is only one build of the module")?)
            }
            Self::Plain => options.without_module(),
            Self::Bare => {
                let library = bare_module().ok_or("the bare module was not compiled")?;
                // With an AOF it replicates effects, as our module does.
                let has_aof = settings.contains(&AOF_SETTINGS[0]);
                let argument = if has_aof { "effects" } else { "" };
                let line = format!("loadmodule {} {argument}", library.display());
                options.without_module().config(&line)
            }
        })
    }

    /// Starts what [`Host::options`] describes.
    pub fn start(self, settings: &[&str]) -> Outcome<Server> {
        Ok(self.options(settings)?.try_start()?)
    }
}

/// Something for each of several hosts, in their order.
pub struct Hosts<T>(Vec<(Host, T)>);

impl<T> Hosts<T> {
    pub fn start(hosts: &[Host], start: impl Fn(Host) -> Outcome<T>) -> Outcome<Self> {
        let all = hosts.iter().map(|host| Ok((*host, start(*host)?)));
        Ok(Self(all.collect::<Outcome<_>>()?))
    }

    pub fn of(&mut self, host: Host) -> Outcome<&mut T> {
        let mut all = self.0.iter_mut();
        let found = all.find(|(known, _)| *known == host);
        Ok(found
            .map(|(_, found)| found)
            .ok_or_else(|| format!("{host:?} was not started"))?)
    }

    pub fn all(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|(_, each)| each)
    }

    pub fn all_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().map(|(_, each)| each)
    }
}

/// Through its Unix socket, which takes no port: for thousands of connections.
pub fn connect_unix(server: &Server) -> Outcome<Connection> {
    Ok(Connection::try_open_unix(&server.folder().join(SOCKET))?)
}

/// Our module without a profile: what `REDISLOCK_UNTRAINED` names, unless that is measured anyway.
fn untrained_module() -> Option<&'static Path> {
    static LIBRARY: OnceLock<Option<PathBuf>> = OnceLock::new();
    let find = || {
        let path = PathBuf::from(std::env::var_os("REDISLOCK_UNTRAINED")?);
        let measured = std::fs::read(find_module().ok()?).ok()?;
        match std::fs::read(&path) {
            Ok(other) => (other != measured).then_some(path),
            Err(error) => {
                eprintln!("{} is left out: {error}", path.display());
                None
            }
        }
    };
    LIBRARY.get_or_init(find).as_deref()
}

/// Whether the measured module was built with a profile: it is compared with the builds of this
/// project. None if it is neither.
pub fn is_trained() -> Option<bool> {
    let measured = std::fs::read(find_module().ok()?).ok()?;
    let is = |build: &str| {
        let build = std::fs::read(project_folder().join(build));
        build.is_ok_and(|build| build == measured)
    };
    let builds = [("redislock-trained.so", true), ("redislock.so", false)];
    let mut builds = builds.into_iter();
    builds.find_map(|(build, trained)| is(build).then_some(trained))
}

/// The library of the bare module, which is compiled by the first call; none without a C compiler.
pub fn bare_module() -> Option<&'static Path> {
    static LIBRARY: OnceLock<Option<PathBuf>> = OnceLock::new();
    LIBRARY.get_or_init(compiled).as_deref()
}

fn compiled() -> Option<PathBuf> {
    let source = project_folder().join("bench/bare/bare.c");
    let library = built()?;
    let done = Command::new("cc")
        .args(["-O2", "-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .status();
    if !done.is_ok_and(|status| status.success()) {
        eprintln!("the bare module is left out: it was not compiled by cc");
        return None;
    }
    Some(library)
}

/// Next to this program, in the target directory.
fn built() -> Option<PathBuf> {
    Some(std::env::current_exe().ok()?.with_file_name("bare.so"))
}
