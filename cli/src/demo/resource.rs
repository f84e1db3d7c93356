//! The fenced resource: a number behind a socket that remembers the highest fence it has been shown, and refuses everything
//! below it. It knows nothing of locks.

use std::path::Path;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use crate::exit::Failure;

/// The number, and what has happened to it.
#[derive(Default, Debug)]
pub struct Resource {
    pub value: u64,
    pub highest: u64,
    pub writes: u64,
    pub refused: u64,
}

impl Resource {
    /// Whoever reads shows its fence first: from here on nobody with a lower one may write.
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

/// What a worker says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Word {
    /// It asks for the lock.
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

impl Word {
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

/// A word, who said it, and where the answer goes: a number for yes, nothing for no.
pub struct Heard {
    pub name: String,
    pub word: Word,
    pub answer: oneshot::Sender<Option<u64>>,
}

/// Opens the socket. Every connection begins with a name; every line gets an answer.
pub fn open(socket: &Path, say: UnboundedSender<Heard>) -> Result<(), Failure> {
    let listener = UnixListener::bind(socket)
        .map_err(|error| Failure::io("the resource cannot be opened", &error))?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, say.clone()));
        }
    });
    Ok(())
}

/// Ends with the connection, or with the show.
async fn serve(stream: UnixStream, say: UnboundedSender<Heard>) -> Option<()> {
    let (input, mut output) = stream.into_split();
    let mut lines = BufReader::new(input).lines();
    let name = lines.next_line().await.ok()??;
    while let Some(line) = lines.next_line().await.ok()? {
        let word = Word::parse(&line)?;
        let (answer, answered) = oneshot::channel();
        let heard = Heard {
            name: name.clone(),
            word,
            answer,
        };
        say.send(heard).ok()?;
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
    fn whoever_comes_with_a_lower_fence_after_a_higher_one_is_refused() {
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
    fn what_is_said_is_heard() {
        let words = [
            Word::Waits,
            Word::Holds { fence: 1 },
            Word::Reads { fence: 2 },
            Word::Writes { fence: 3, value: 4 },
            Word::Lost { fence: 5 },
            Word::Released,
        ];
        for word in words {
            assert_eq!(Word::parse(word.line().trim_end()), Some(word));
        }
        assert_eq!(Word::parse("holds many"), None);
    }
}
