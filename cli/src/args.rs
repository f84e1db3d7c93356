//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::duration::{WaitLimit, interval, lease, span, wait_limit};
use crate::exit::Failure;
use crate::help;
use crate::sort::Sort;

/// The lease if `--ttl` is not given. A command's lease is renewed while it runs, so this is how
/// long other clients wait after its host dies.
pub const DEFAULT_TTL: Duration = Duration::from_secs(30);
const DEFAULT_WAIT: WaitLimit = WaitLimit::AtMost(Duration::from_secs(60));
/// With `--min-hold`, the default lease is at most this part of it, …
const TTL_IN_MIN_HOLD: u32 = 5;
/// … but not below this: shorter leases are lost on a busy host.
const SHORTEST_DEFAULT_TTL: Duration = Duration::from_secs(1);

/// Distributed locks for the shell, on one or several Redis or Valkey servers with the redislock
/// module
#[derive(Parser)]
#[command(name = "redlock", version, after_help = help::OVERVIEW, max_term_width = 120)]
pub struct Cli {
    #[command(subcommand)]
    pub verb: Verb,
    /// Print JSON: results on standard output, messages on standard error
    #[arg(long, global = true)]
    pub json: bool,
}

#[derive(Subcommand)]
pub enum Verb {
    /// Run a command while holding a lock, like flock(1)
    #[command(
        after_help = help::RUN,
        override_usage = "redlock run --node URL... --key NAME [OPTIONS] -- COMMAND [ARGUMENTS]...",
        mut_arg("nodes", |arg| arg.num_args(1..))
    )]
    Run(Run),
    /// Acquire a lock and leave it held, for scripts that cannot wrap a command
    #[command(
        after_help = help::ACQUIRE,
        override_usage = "redlock acquire --node URL... --key NAME [OPTIONS]",
        mut_arg("nodes", |arg| arg.num_args(1..))
    )]
    Acquire(Acquire),
    /// Extend the lease of a lock from `acquire`
    #[command(after_help = help::EXTEND, mut_arg("nodes", |arg| arg.num_args(1..)))]
    Extend(Extend),
    /// Release a lock from `acquire`
    #[command(after_help = help::RELEASE, mut_arg("nodes", |arg| arg.num_args(1..)))]
    Release(Release),
    /// Show who holds a lock and who waits for it
    #[command(after_help = help::STATUS, override_usage = "redlock status [OPTIONS] NAME")]
    Status(Status),
    /// List the locks of all nodes
    #[command(after_help = help::LS)]
    Ls(Ls),
    /// Release a lock that another client holds (asks for confirmation)
    #[command(after_help = help::FORCE, override_usage = "redlock force [OPTIONS] NAME")]
    Force(Force),
    /// Show the state of each node
    #[command(after_help = help::NODES, mut_arg("nodes", |arg| arg.num_args(1..)))]
    Nodes(Nodes),
    /// Check a deployment and suggest changes
    #[command(after_help = help::DOCTOR, mut_arg("nodes", |arg| arg.num_args(1..)))]
    Doctor(Doctor),
    /// Serve the metrics of all nodes to Prometheus, over HTTP
    #[command(after_help = help::EXPORTER, mut_arg("nodes", |arg| arg.num_args(1..)))]
    Exporter(Exporter),
    /// Show nodes and locks live, in the terminal
    #[command(after_help = help::TOP, mut_arg("nodes", |arg| arg.num_args(1..)))]
    Top(Top),
    /// Show nodes and locks live, on a web page
    #[command(after_help = help::SERVE, mut_arg("nodes", |arg| arg.num_args(1..)))]
    Serve(Serve),
    /// Print the completion script for a shell
    #[command(after_help = help::COMPLETIONS)]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print a man page (to read it: redlock man | man -l -)
    #[command(after_help = help::MAN)]
    Man {
        /// The subcommand; without it, the page of redlock itself
        verb: Option<String>,
    },
}

/// Where the nodes are.
#[derive(Args, Clone)]
pub struct Where {
    #[arg(long = "node", id = "nodes", value_name = "URL", help = help::NODE)]
    pub nodes: Vec<String>,
    /// How long one node may take to reply [default: a tenth of the ttl, at most 500ms]
    #[arg(long, value_name = "DURATION", value_parser = span, env = "REDLOCK_NODE_TIMEOUT")]
    pub node_timeout: Option<Duration>,
    /// The CA certificate (PEM) of the servers, if it is not a public CA
    #[arg(long, value_name = "FILE", env = "REDLOCK_CA_CERT")]
    pub ca_cert: Option<PathBuf>,
}

/// Which lock, and how to acquire it.
#[derive(Args, Clone)]
pub struct Wanted {
    #[command(flatten)]
    pub place: Where,
    /// The name of the lock
    #[arg(long, value_name = "NAME")]
    pub key: Option<String>,
    /// How long the lease lasts if it is not renewed [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = lease)]
    pub ttl: Option<Duration>,
    /// How long to wait for the lock and for nodes that do not reply: seconds, a duration, 0 or
    /// forever [default: 1m]
    #[arg(short, long, value_name = "DURATION", value_parser = wait_limit)]
    pub wait: Option<WaitLimit>,
    /// Do not wait: the same as --wait 0
    #[arg(short, long, aliases = ["nb", "no-wait"], conflicts_with = "wait")]
    pub nonblock: bool,
    /// Share the lock with other shared holders
    #[arg(short, long)]
    pub shared: bool,
    /// Allow at most N shared holders: a semaphore, on a single node
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
    #[arg(long, value_name = "LABEL", help = help::OWNER)]
    pub owner: Option<String>,
    /// Do not print who holds the lock or that it could not be acquired; errors are still printed
    #[arg(short, long)]
    pub quiet: bool,
    /// The exit code if another client holds the lock
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = crate::exit::BUSY)]
    pub conflict_exit_code: u8,
}

impl Wanted {
    /// The lease to ask for, if the lock must stay held for `min_hold`.
    pub fn lease(&self, min_hold: Option<Duration>) -> Duration {
        let usual = min_hold.map_or(DEFAULT_TTL, |hold| {
            (hold / TTL_IN_MIN_HOLD).clamp(SHORTEST_DEFAULT_TTL, DEFAULT_TTL)
        });
        self.ttl.unwrap_or(usual)
    }

    pub fn wait_limit(&self) -> WaitLimit {
        if self.nonblock {
            return WaitLimit::AtMost(Duration::ZERO);
        }
        self.wait.unwrap_or(DEFAULT_WAIT)
    }
}

#[derive(Args)]
pub struct Run {
    #[command(flatten)]
    pub wanted: Wanted,
    /// Keep the lock for at least this long from its grant, even if the command ends earlier:
    /// redlock exits, the lease remains
    #[arg(long, value_name = "DURATION", value_parser = lease)]
    pub min_hold: Option<Duration>,
    /// The exit code if the lock was lost while the command ran
    #[arg(long, value_name = "CODE", default_value_t = crate::exit::LOST)]
    pub lost_exit_code: u8,
    /// If the lock cannot be renewed, send SIGTERM this long before the lease ends, and SIGKILL
    /// just before it ends [default: a sixth of the ttl, at most 5s]
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
    /// How long the lease lasts from now [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = lease)]
    pub ttl: Option<Duration>,
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
    /// Exit with 0 if the lock is free, 1 if it is held or partly held, 69 if that is unknown
    #[arg(long)]
    pub check: bool,
    /// With --check: print no result
    #[arg(short, long, requires = "check")]
    pub quiet: bool,
}

#[derive(Args)]
pub struct Ls {
    #[command(flatten)]
    pub place: Where,
    /// Only names that match: * stands for any text, ? for one character
    pub pattern: Option<String>,
}

#[derive(Args)]
pub struct Force {
    #[command(flatten)]
    pub place: Where,
    /// The name of the lock
    #[arg(value_name = "NAME")]
    pub key: Option<String>,
    /// Do not ask for confirmation
    #[arg(long)]
    pub yes: bool,
}

#[derive(Args)]
pub struct Nodes {
    #[command(flatten)]
    pub place: Where,
}

#[derive(Args)]
pub struct Doctor {
    #[command(flatten)]
    pub place: Where,
    /// A lock on which to check the permissions of the user; repeat it for locks that are
    /// acquired together
    #[arg(long = "key", value_name = "NAME")]
    pub keys: Vec<String>,
    /// The ttl that you plan to use; the default node timeout depends on it [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = lease)]
    pub ttl: Option<Duration>,
}

#[derive(Args)]
pub struct Exporter {
    #[command(flatten)]
    pub place: Where,
    /// Where to listen; port 0 is any free port
    #[arg(
        long,
        value_name = "HOST:PORT",
        default_value = "127.0.0.1:9936",
        env = "REDLOCK_LISTEN",
        hide_env_values = true
    )]
    pub listen: String,
}

#[derive(Args)]
pub struct Top {
    #[command(flatten)]
    pub place: Where,
    /// How often to query the nodes: 100ms to 10s
    #[arg(long, value_name = "DURATION", default_value = "500ms", value_parser = interval)]
    pub interval: Duration,
    /// Show only locks with this text in their name or in the label of a holder
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub filter: String,
    /// The order: wait, waiters, held, lease, fence or name
    #[arg(long, value_name = "ORDER", default_value = "wait", value_parser = order)]
    pub sort: Sort,
    /// Print the first screen and exit
    #[arg(long)]
    pub once: bool,
}

#[derive(Args)]
pub struct Serve {
    #[command(flatten)]
    pub place: Where,
    /// Where to listen; port 0 is any free port
    #[arg(
        long,
        value_name = "HOST:PORT",
        default_value = "127.0.0.1:9937",
        env = "REDLOCK_SERVE_LISTEN",
        hide_env_values = true
    )]
    pub listen: String,
    /// How often to query the nodes: 100ms to 10s
    #[arg(long, value_name = "DURATION", default_value = "500ms", value_parser = interval)]
    pub interval: Duration,
    /// A file with the token that clients must send, on one line
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// The certificate of the page (PEM), for https
    #[arg(long, value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// The private key of the certificate (PEM)
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// A text file to show next to the locks; the page shows new lines as they are written
    #[arg(long, value_name = "FILE")]
    pub notes: Option<PathBuf>,
}

fn order(word: &str) -> Result<Sort, String> {
    let wrong = || "use one of wait, waiters, held, lease, fence, name".to_owned();
    Sort::named(word).ok_or_else(wrong)
}

/// The name must be given and must not be empty; `how` says how to give it.
pub fn key_of(key: Option<&String>, how: &str) -> Result<String, Failure> {
    match key {
        Some(key) if !key.is_empty() => Ok(key.clone()),
        _ => Err(Failure::usage(format!("no lock name: add {how}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_min_hold_shortens_the_default_lease_but_not_a_given_one() {
        let wanted = |words: &[&str]| {
            let words = ["redlock", "acquire"].iter().chain(words);
            let Ok(Cli {
                verb: Verb::Acquire(acquire),
                ..
            }) = Cli::try_parse_from(words)
            else {
                panic!("not parsed")
            };
            acquire.wanted
        };
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let usual = wanted(&[]);
        assert_eq!(usual.lease(None), Duration::from_secs(30));
        assert_eq!(usual.lease(seconds(50)), Duration::from_secs(10));
        assert_eq!(usual.lease(seconds(2)), Duration::from_secs(1));
        assert_eq!(usual.lease(seconds(3_600)), Duration::from_secs(30));
        let given = wanted(&["--ttl", "20s"]);
        assert_eq!(given.lease(seconds(50)), Duration::from_secs(20));
    }
}
