//! The words of the command line, and what `--help` says about them.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::duration::{Patience, lease, patience, span};
use crate::exit::Failure;

/// Leases, unless `--ttl` says otherwise. The command is renewed for as long as it runs, so this is how long others wait
/// when its host dies.
pub const DEFAULT_TTL: &str = "30s";
/// Waiting, unless `--wait` says otherwise.
const DEFAULT_WAIT: &str = "1m";

const EXAMPLES: &str = "\
Examples:
  export REDLOCK_NODES=redis://10.0.0.1,redis://10.0.0.2,redis://10.0.0.3

  redlock run --key nightly -- ./backup.sh      # one host at a time
  redlock run --key nightly --wait 0 -- ./job   # or not at all (exit code 75)
  redlock status nightly                        # who holds it, who waits
  redlock ls 'backup:*'                         # all locks of that name
  redlock nodes                                 # are the masters well?

One node is enough to begin with. Over three or five independent masters
the lock survives the loss of one or two. List the same nodes in the same
order everywhere.

Exit codes:
  that of the command, or 128 + n if signal n ended it
  64   asked wrongly, or too few nodes can be reached
  70   the lock was lost
  74   something could not be written or read
  75   the lock was not had
  126  the command cannot be executed
  127  there is no such command";

const NODE_HELP: &str = "\
A master: redis://[user:password@]host[:port][/db], rediss:// for TLS, unix:///path. May be given several times, or \
separated by commas [default: REDLOCK_NODES, separated by commas or spaces]";

const OWNER_HELP: &str = "What others see as the holder [default: user@host:pid]";

const RUN_EXAMPLES: &str = "\
Examples:
  redlock run --node redis://127.0.0.1 --key nightly -- ./backup.sh --full
  redlock run --key report --ttl 10s --wait forever -- make report
  redlock run --key cache --shared -- ./read-only-job
  redlock run --key db -- sh -c 'migrate --fence \"$REDLOCK_FENCE\"'

The command gets REDLOCK_KEY and REDLOCK_FENCE. The fence is higher than
that of every holder before: a resource that remembers the highest fence
it has seen can refuse a holder that lost its lock without noticing.

If the lock is lost (too few nodes answer, or an administrator took it
away), the process group of the command gets SIGTERM and then SIGKILL,
before the lease ends and somebody else may have the lock.";

const ACQUIRE_EXAMPLES: &str = "\
Examples:
  eval \"$(redlock acquire --key nightly --ttl 10m)\"
  ... the work, within ten minutes ...
  redlock release

The first line sets REDLOCK_KEY, REDLOCK_TOKEN and REDLOCK_FENCE, from
which `extend` and `release` take them. Nothing renews this lock, and
nobody stops the script when its time is over: where a command can be
wrapped, use `redlock run`. Never write the token into a command line:
everybody on the host can read those.";

const EXTEND_EXAMPLES: &str = "\
Examples:
  redlock extend --ttl 10m || exit

The token is taken from REDLOCK_TOKEN or from standard input. Exit code 70
if the lock was not held any more.";

const RELEASE_EXAMPLES: &str = "\
Examples:
  redlock release
  jq -r .token hold.json | redlock release --key nightly

The token is taken from REDLOCK_TOKEN or from standard input. Exit code 70
if the lock was not held any more.";

const STATUS_EXAMPLES: &str = "\
Examples:
  redlock status nightly
  redlock status nightly --json | jq -r '.holders[].owner'

Every node is asked. The lock is held if a majority of all nodes says so,
partly held if fewer do (on its way in or out, or left by a crash), free,
or unknown if too few nodes answer. The exit code is 0 in all these cases.";

const LS_EXAMPLES: &str = "\
Examples:
  redlock ls
  redlock ls 'backup:*'                       # quoted: it is not for the shell
  redlock ls --json | jq -r '.locks[].key'

All keys of the nodes are looked through: it is for people, not for loops.";

const FORCE_EXAMPLES: &str = "\
Examples:
  redlock force nightly                       # asks first
  redlock force nightly --yes                 # for scripts

The holder finds out at its next renewal; until then it goes on, and
somebody else may have the lock already. Better end the holder itself:
`redlock status` shows who it is.";

const NODES_EXAMPLES: &str = "\
Examples:
  redlock nodes
  redlock nodes --node redis://10.0.0.1 redis://10.0.0.2 --json

QUARANTINE: how long a node that was restarted grants nothing, as it may
have forgotten locks. DURABLE: whether it forgets none at a restart.
CLOCK: how far its clock is ahead of the one here.";

const DEMO_EXAMPLES: &str = "\
Examples:
  redlock demo --module ./redislock.so        # `make build` makes that file
  redlock demo > demo.log                     # plain lines instead of a picture

It starts servers of its own on free ports, and ends them.";

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  redlock completions bash > ~/.local/share/bash-completion/completions/redlock
  redlock completions zsh > ~/.zfunc/_redlock  # a folder of $fpath
  redlock completions fish > ~/.config/fish/completions/redlock.fish";

const MAN_EXAMPLES: &str = "\
Examples:
  redlock man | man -l -
  redlock man run > redlock-run.1             # the page of one subcommand";

/// Locks for the shell, over one or several Redis or Valkey masters with the redislock module.
#[derive(Parser)]
#[command(name = "redlock", version, after_help = EXAMPLES, max_term_width = 120)]
pub struct Cli {
    #[command(subcommand)]
    pub verb: Verb,
    /// Write JSON: results to standard output, messages to standard error
    #[arg(long, global = true)]
    pub json: bool,
}

#[derive(Subcommand)]
pub enum Verb {
    /// Run a command while holding a lock, like flock(1)
    #[command(
        after_help = RUN_EXAMPLES,
        override_usage = "redlock run --node URL... --key NAME [OPTIONS] -- COMMAND [ARGUMENTS]...",
        mut_arg("nodes", |arg| arg.num_args(1..))
    )]
    Run(Run),
    /// Take a lock and leave it held, for scripts that cannot wrap a command
    #[command(
        after_help = ACQUIRE_EXAMPLES,
        override_usage = "redlock acquire --node URL... --key NAME [OPTIONS]",
        mut_arg("nodes", |arg| arg.num_args(1..))
    )]
    Acquire(Acquire),
    /// Extend a lock that `acquire` took
    #[command(after_help = EXTEND_EXAMPLES, mut_arg("nodes", |arg| arg.num_args(1..)))]
    Extend(Extend),
    /// Release a lock that `acquire` took
    #[command(after_help = RELEASE_EXAMPLES, mut_arg("nodes", |arg| arg.num_args(1..)))]
    Release(Release),
    /// Show who holds a lock and who waits for it
    #[command(after_help = STATUS_EXAMPLES, override_usage = "redlock status [OPTIONS] NAME")]
    Status(Status),
    /// List the locks of all nodes
    #[command(after_help = LS_EXAMPLES)]
    Ls(Ls),
    /// Take a lock away from whoever holds it (asks first)
    #[command(after_help = FORCE_EXAMPLES, override_usage = "redlock force [OPTIONS] NAME")]
    Force(Force),
    /// Show how each node is doing
    #[command(after_help = NODES_EXAMPLES, mut_arg("nodes", |arg| arg.num_args(1..)))]
    Nodes(Nodes),
    /// Watch five masters, contending workers, crashes and a paused holder for half a minute
    #[command(after_help = DEMO_EXAMPLES)]
    Demo(Demo),
    /// One worker of the demo
    #[command(hide = true)]
    DemoWorker(DemoWorker),
    /// Print the completions for a shell, to be put where that shell looks for them
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page (read it with: redlock man | man -l -)
    #[command(after_help = MAN_EXAMPLES)]
    Man {
        /// The page of this subcommand instead of that of the whole
        verb: Option<String>,
    },
}

/// Where the nodes are.
#[derive(Args, Clone)]
pub struct Where {
    #[arg(long = "node", id = "nodes", value_name = "URL", help = NODE_HELP)]
    pub nodes: Vec<String>,
    /// How long one node may take to answer [default: a tenth of the ttl, 500ms at most]
    #[arg(long, value_name = "DURATION", value_parser = span, env = "REDLOCK_NODE_TIMEOUT")]
    pub node_timeout: Option<Duration>,
    /// The certificate (PEM) that signed those of the servers, for rediss:// without a public authority
    #[arg(long, value_name = "FILE", env = "REDLOCK_CA_CERT")]
    pub ca_cert: Option<PathBuf>,
}

/// Which lock, and how.
#[derive(Args, Clone)]
pub struct Wanted {
    #[command(flatten)]
    pub place: Where,
    /// The name of the lock
    #[arg(long, value_name = "NAME")]
    pub key: Option<String>,
    /// How long the lease lasts unless it is renewed
    #[arg(long, value_name = "DURATION", value_parser = lease, default_value = DEFAULT_TTL)]
    pub ttl: Duration,
    /// How long to wait for the lock: a duration, 0 (do not wait) or forever
    #[arg(long, value_name = "DURATION", value_parser = patience, default_value = DEFAULT_WAIT)]
    pub wait: Patience,
    /// Share the lock with others who ask for it shared; without it, hold it alone
    #[arg(long)]
    pub shared: bool,
    #[arg(long, value_name = "LABEL", help = OWNER_HELP)]
    pub owner: Option<String>,
    /// The exit code when the lock was not had
    #[arg(long, value_name = "CODE", default_value_t = crate::exit::NOT_HAD)]
    pub conflict_exit_code: u8,
}

#[derive(Args)]
pub struct Run {
    #[command(flatten)]
    pub wanted: Wanted,
    /// The exit code when the lock was lost while the command ran
    #[arg(long, value_name = "CODE", default_value_t = crate::exit::LOST)]
    pub lost_exit_code: u8,
    /// How long before the end of the lease a lost lock ends the command: SIGTERM then, SIGKILL just before the end
    /// [default: a sixth of the ttl, 5s at most]
    #[arg(long, value_name = "DURATION", value_parser = span)]
    pub grace: Option<Duration>,
    /// The command and its arguments, after --
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

#[derive(Args)]
pub struct Acquire {
    #[command(flatten)]
    pub wanted: Wanted,
}

#[derive(Args)]
pub struct Extend {
    #[command(flatten)]
    pub place: Where,
    /// The name of the lock
    #[arg(long, value_name = "NAME", env = "REDLOCK_KEY")]
    pub key: Option<String>,
    /// The fence that `acquire` printed
    #[arg(long, value_name = "NUMBER", env = "REDLOCK_FENCE")]
    pub fence: Option<u64>,
    /// How long the lease lasts from now
    #[arg(long, value_name = "DURATION", value_parser = lease, default_value = DEFAULT_TTL)]
    pub ttl: Duration,
}

#[derive(Args)]
pub struct Release {
    #[command(flatten)]
    pub place: Where,
    /// The name of the lock
    #[arg(long, value_name = "NAME", env = "REDLOCK_KEY")]
    pub key: Option<String>,
}

#[derive(Args)]
pub struct Status {
    #[command(flatten)]
    pub place: Where,
    /// The name of the lock
    #[arg(value_name = "NAME")]
    pub key: Option<String>,
}

#[derive(Args)]
pub struct Ls {
    #[command(flatten)]
    pub place: Where,
    /// Only names like this: * stands for anything, ? for one character
    pub pattern: Option<String>,
}

#[derive(Args)]
pub struct Force {
    #[command(flatten)]
    pub place: Where,
    /// The name of the lock
    #[arg(value_name = "NAME")]
    pub key: Option<String>,
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
}

#[derive(Args)]
pub struct Nodes {
    #[command(flatten)]
    pub place: Where,
}

#[derive(Args)]
pub struct Demo {
    /// The module
    #[arg(long, value_name = "FILE", default_value = "./redislock.so")]
    pub module: PathBuf,
    /// The server that loads it [default: redis-server or valkey-server]
    #[arg(long, value_name = "FILE", env = "REDIS_SERVER")]
    pub server: Option<PathBuf>,
    /// Draw the moment of the refused write into this SVG file
    #[arg(long, value_name = "FILE")]
    pub picture: Option<PathBuf>,
}

#[derive(Args)]
pub struct DemoWorker {
    #[command(flatten)]
    pub place: Where,
    #[arg(long)]
    pub name: String,
    #[arg(long)]
    pub resource: PathBuf,
}

/// A name must be given, and must not be empty.
pub fn key_of(key: Option<&String>, how: &str) -> Result<String, Failure> {
    match key {
        Some(key) if !key.is_empty() => Ok(key.clone()),
        _ => Err(Failure::usage(format!("no lock is named: give {how}"))),
    }
}
