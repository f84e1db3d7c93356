//! The signals that the tool passes on, as one stream.

use std::task::Poll;

use nix::sys::signal::Signal;
use tokio::signal::unix::{self, SignalKind};

use crate::exit::Failure;
use crate::terminal::somebody_would_continue_us;

/// What is passed on to the command; besides, the end or stop of the command is told by SIGCHLD.
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

/// Listens from its making on.
pub struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    pub fn listen() -> Result<Self, Failure> {
        let ignored = ignored_from_the_start();
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

    /// The next signal that ends whoever does not catch it. Meanwhile ctrl-Z stops as usual.
    pub async fn end(&mut self) -> Signal {
        loop {
            match self.next().await {
                Signal::SIGTSTP if somebody_would_continue_us() => {
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

/// `nohup` and shells without job control start commands with signals ignored. Those stay so, for the command too: they are
/// not listened for. Elsewhere than on Linux this cannot be asked.
fn ignored_from_the_start() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let digits = ignored.map(str::trim).unwrap_or_default();
    u64::from_str_radix(digits, 16).unwrap_or(0)
}
