//! What a server is started with.

use std::path::{Path, PathBuf};

use crate::{Server, find_module};

/// What makes a server convenient to test, unless a test wants exactly its own settings.
const FOR_TESTS: [&str; 7] = [
    "bind 127.0.0.1",
    "daemonize no",
    "save \"\"",
    "appendonly no",
    "enable-debug-command yes",
    "enable-module-command yes",
    "repl-diskless-sync-delay 0",
];

/// What a server is started with.
#[derive(Clone, Default)]
pub struct Options {
    config: Vec<String>,
    nothing_else: bool,
    module: Option<PathBuf>,
    module_arguments: String,
    without_module: bool,
    pub(crate) while_loading: bool,
    pub(crate) environment: Vec<(String, String)>,
    pub(crate) port: Option<u16>,
    pub(crate) tool: Vec<String>,
    pub(crate) is_sentinel: bool,
    pub(crate) ends_with_us: bool,
}

impl Options {
    /// One line of redis.conf.
    pub fn config(mut self, line: &str) -> Options {
        self.config.push(line.to_owned());
        self
    }

    /// Several lines of redis.conf.
    pub fn configs<L: AsRef<str>>(self, lines: impl IntoIterator<Item = L>) -> Options {
        let add = |options: Options, line: L| options.config(line.as_ref());
        lines.into_iter().fold(self, add)
    }

    /// These lines of redis.conf and, in addition, only where the server is: its port, its folder,
    /// its module.
    pub fn exactly(block: &str) -> Options {
        Options {
            config: block.lines().map(str::to_owned).collect(),
            nothing_else: true,
            ..Options::default()
        }
    }

    /// A sentinel with these lines of sentinel.conf.
    pub fn sentinel(block: &str) -> Options {
        Options {
            is_sentinel: true,
            without_module: true,
            ..Options::exactly(block)
        }
    }

    /// A server without this command.
    pub fn renamed(self, command: &str) -> Options {
        self.config(&format!("rename-command {command} \"\""))
    }

    /// A server that writes an append-only file with this policy.
    pub fn appendonly(self, fsync: &str) -> Options {
        self.config("appendonly yes")
            .config(&format!("appendfsync {fsync}"))
    }

    /// A replica of this master.
    pub fn replica_of(self, master: &Server) -> Options {
        self.config(&format!("replicaof 127.0.0.1 {}", master.port()))
    }

    /// Another build of the module.
    pub fn module(mut self, module: &Path) -> Options {
        self.module = Some(module.to_owned());
        self
    }

    /// Arguments of the module.
    pub fn module_arguments(mut self, arguments: &str) -> Options {
        self.module_arguments = arguments.to_owned();
        self
    }

    /// A server without the module.
    pub fn without_module(mut self) -> Options {
        self.without_module = true;
        self
    }

    /// Does not wait for the end of loading.
    pub fn while_loading(mut self) -> Options {
        self.while_loading = true;
        self
    }

    /// A variable in the environment of the server.
    pub fn environment(mut self, name: &str, value: &str) -> Options {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// This port instead of any free one.
    pub fn port(mut self, port: u16) -> Options {
        self.port = Some(port);
        self
    }

    /// A tool such as valgrind that runs the server: the words before its command line.
    pub fn run_by(mut self, tool: &[&str]) -> Options {
        self.tool = tool.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    /// A server that gets no signals from the terminal, and ends when this process is killed (on
    /// Linux). The thread that starts it must live as long as the process: the kernel watches that
    /// thread.
    pub fn end_with_this_process(mut self) -> Options {
        self.ends_with_us = true;
        self
    }

    /// Starts the server.
    #[track_caller]
    pub fn start(self) -> Server {
        match self.try_start() {
            Ok(server) => server,
            Err(log) => panic!("the server did not start:\n{log}"),
        }
    }

    /// Starts several servers.
    #[track_caller]
    pub fn start_many<const N: usize>(self) -> [Server; N] {
        std::array::from_fn(|_| self.clone().start())
    }

    /// Starts the server; the log, or what is missing, if it ends before it replies.
    pub fn try_start(self) -> Result<Server, String> {
        Server::launch(self)
    }

    /// The settings of a server on this port, in this folder.
    pub(crate) fn settings(&self, port: u16, folder: &Path) -> Result<String, String> {
        let mut lines = vec![format!("port {port}"), format!("dir {}", folder.display())];
        if !self.nothing_else {
            lines.extend(FOR_TESTS.map(str::to_owned));
        }
        if !self.without_module {
            let module = match &self.module {
                Some(module) => module.clone(),
                None => find_module()?,
            };
            let (module, arguments) = (module.display(), &self.module_arguments);
            lines.push(format!("loadmodule {module} {arguments}"));
        }
        lines.extend(self.config.iter().cloned());
        Ok(lines.join("\n") + "\n")
    }
}
