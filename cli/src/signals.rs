//! The signals that the tool passes on to the command, as one stream.

use std::task::Poll;

use nix::sys::signal::Signal;
use tokio::signal::unix::{self, SignalKind};

use crate::exit::Failure;
use crate::terminal::has_job_control;

/// Passed on to the command. SIGCHLD, which reports that the command stopped or ended, is not.
const PASSED_ON: [Signal; 9] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
    Signal::SIGTSTP,
    Signal::SIGCONT,
];

/// Listens from its creation on.
pub struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    pub fn listen() -> Result<Self, Failure> {
        let ignored = ignored_at_start();
        let wanted = PASSED_ON
            .into_iter()
            .filter(|signal| ignored & mask(*signal) == 0);
        let listen = |signal: Signal| {
            let listening = unix::signal(SignalKind::from_raw(signal as i32));
            let failed = |error| Failure::io("cannot listen for signals", &error);
            Ok((signal, listening.map_err(failed)?))
        };
        let streams = wanted.chain([Signal::SIGCHLD]).map(listen);
        streams.collect::<Result<_, _>>().map(Self)
    }

    /// The next signal.
    pub async fn next(&mut self) -> Signal {
        std::future::poll_fn(|context| {
            for (signal, stream) in &mut self.0 {
                if let Poll::Ready(Some(())) = stream.poll_recv(context) {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// The next signal that ends a process by default. Meanwhile ctrl-Z stops as usual.
    pub async fn end(&mut self) -> Signal {
        loop {
            match self.next().await {
                Signal::SIGTSTP if has_job_control() => {
                    let _ = nix::sys::signal::raise(Signal::SIGSTOP);
                }
                Signal::SIGTSTP | Signal::SIGCONT | Signal::SIGCHLD | Signal::SIGWINCH => {}
                signal => return signal,
            }
        }
    }
}

fn mask(signal: Signal) -> u64 {
    1 << (signal as u64 - 1)
}

/// `nohup` and shells without job control start commands with signals ignored. Those stay ignored,
/// also for the command. Only on Linux can the tool find out which signals these are.
fn ignored_at_start() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let digits = ignored.map(str::trim).unwrap_or_default();
    u64::from_str_radix(digits, 16).unwrap_or(0)
}
