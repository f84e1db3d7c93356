//! The fenced resource: a number behind a socket that stores the highest fence it has seen and
//! refuses lower ones. It knows nothing about locks.

use std::path::Path;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use crate::Outcome;

/// The number, and what has happened to it.
#[derive(Default, Debug)]
pub struct Resource {
    pub value: u64,
    pub highest: u64,
    pub writes: u64,
    pub refused: u64,
}

impl Resource {
    /// A reader shows its fence first: from then on, lower fences may not write.
    pub fn read(&mut self, fence: u64) -> Option<u64> {
        if fence < self.highest {
            self.refused += 1;
            return None;
        }
        self.highest = fence;
        Some(self.value)
    }

    pub fn write(&mut self, fence: u64, value: u64) -> bool {
        if fence < self.highest {
            self.refused += 1;
            return false;
        }
        self.highest = fence;
        self.value = value;
        self.writes += 1;
        true
    }
}

/// What a worker reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Report {
    /// It requests the lock.
    Waits,
    Holds {
        fence: u64,
    },
    Reads {
        fence: u64,
    },
    Writes {
        fence: u64,
        value: u64,
    },
    /// The lock was lost before it was released.
    Lost {
        fence: u64,
    },
    Released,
}

impl Report {
    pub fn line(self) -> String {
        match self {
            Self::Waits => "waits\n".to_owned(),
            Self::Holds { fence } => format!("holds {fence}\n"),
            Self::Reads { fence } => format!("reads {fence}\n"),
            Self::Writes { fence, value } => format!("writes {fence} {value}\n"),
            Self::Lost { fence } => format!("lost {fence}\n"),
            Self::Released => "released\n".to_owned(),
        }
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let verb = words.next()?;
        let mut number = || words.next()?.parse().ok();
        Some(match verb {
            "waits" => Self::Waits,
            "holds" => Self::Holds { fence: number()? },
            "reads" => Self::Reads { fence: number()? },
            "writes" => Self::Writes {
                fence: number()?,
                value: number()?,
            },
            "lost" => Self::Lost { fence: number()? },
            "released" => Self::Released,
            _ => return None,
        })
    }
}

/// A report, its sender, and where the answer goes: a number for yes, nothing for no.
pub struct Message {
    pub name: String,
    pub report: Report,
    pub answer: oneshot::Sender<Option<u64>>,
}

/// Opens the socket. A connection starts with the name of the worker; every line gets an answer.
pub fn open(socket: &Path, send: UnboundedSender<Message>) -> Outcome<()> {
    let listener = UnixListener::bind(socket)
        .map_err(|error| format!("the resource cannot be opened: {error}"))?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, send.clone()));
        }
    });
    Ok(())
}

/// Ends with the connection, or with the demonstration.
async fn serve(stream: UnixStream, send: UnboundedSender<Message>) -> Option<()> {
    let (input, mut output) = stream.into_split();
    let mut lines = BufReader::new(input).lines();
    let name = lines.next_line().await.ok()??;
    while let Some(line) = lines.next_line().await.ok()? {
        let report = Report::parse(&line)?;
        let (answer, answered) = oneshot::channel();
        let message = Message {
            name: name.clone(),
            report,
            answer,
        };
        send.send(message).ok()?;
        let reply = match answered.await.ok()? {
            Some(number) => format!("yes {number}\n"),
            None => "no\n".to_owned(),
        };
        output.write_all(reply.as_bytes()).await.ok()?;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lower_fence_after_a_higher_one_is_refused() {
        let mut resource = Resource::default();
        assert_eq!(resource.read(33), Some(0));
        assert_eq!(resource.read(34), Some(0));
        assert!(resource.write(34, 1));
        assert!(!resource.write(33, 1));
        assert_eq!(resource.read(33), None);
        assert_eq!(
            (resource.value, resource.writes, resource.refused),
            (1, 1, 2)
        );
    }

    #[test]
    fn reports_survive_the_socket() {
        let reports = [
            Report::Waits,
            Report::Holds { fence: 1 },
            Report::Reads { fence: 2 },
            Report::Writes { fence: 3, value: 4 },
            Report::Lost { fence: 5 },
            Report::Released,
        ];
        for report in reports {
            assert_eq!(Report::parse(report.line().trim_end()), Some(report));
        }
        assert_eq!(Report::parse("holds many"), None);
    }
}
