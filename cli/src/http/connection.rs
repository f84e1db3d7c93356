//! A connection with time limits: a client that neither sends nor reads is dropped.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep, sleep};

/// A connection on which nothing happens ends after this time, and so does a request that takes
/// longer to arrive.
const IDLE: Duration = Duration::from_secs(30);
/// A client has this long to read what it asked for.
const STALLED: Duration = Duration::from_secs(10);

/// TCP, with or without TLS.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A connection with limits.
pub struct Bounded {
    stream: Box<dyn Stream>,
    idle: Pin<Box<Sleep>>,
    /// Something was sent since the client began to send its last request.
    answered: bool,
    /// Runs while something waits to be written.
    stalled: Option<Pin<Box<Sleep>>>,
    _permit: OwnedSemaphorePermit,
}

impl Bounded {
    pub fn new(stream: Box<dyn Stream>, permit: OwnedSemaphorePermit) -> Self {
        Self {
            stream,
            idle: Box::pin(sleep(IDLE)),
            answered: true,
            stalled: None,
            _permit: permit,
        }
    }

    fn progress(&mut self) {
        self.idle.as_mut().reset(Instant::now() + IDLE);
    }

    /// The result of a write; an error if the client has not read for too long.
    fn written<T>(
        &mut self,
        context: &mut Context<'_>,
        result: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.stalled = None;
            self.answered = true;
            self.progress();
            return result;
        }
        let limit = || Box::pin(sleep(STALLED));
        let stalled = self.stalled.get_or_insert_with(limit);
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Bounded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if read.is_ready() {
            // A byte of a request does not extend the time for the whole request.
            if std::mem::take(&mut self.answered) {
                self.progress();
            }
            return read;
        }
        ready!(self.idle.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncWrite for Bounded {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.written(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.written(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = Pin::new(&mut self.stream).poll_shutdown(context);
        self.written(context, ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::sync::Semaphore;

    async fn connected() -> (DuplexStream, Bounded) {
        let (client, server) = duplex(1_024);
        let Ok(permit) = Arc::new(Semaphore::new(1)).acquire_owned().await else {
            panic!("no permit")
        };
        (client, Bounded::new(Box::new(server), permit))
    }

    /// Sends one byte after another, with pauses.
    fn drip(mut client: DuplexStream) -> tokio::task::JoinHandle<()> {
        tokio::spawn(async move {
            while client.write_all(b"x").await.is_ok() {
                sleep(Duration::from_secs(7)).await;
            }
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_arrives_byte_by_byte_is_dropped() {
        let (client, mut connection) = connected().await;
        let sent = drip(client);
        let mut byte = [0];
        let begun = Instant::now();
        let failed = loop {
            if let Err(error) = connection.read_exact(&mut byte).await {
                break error;
            }
            assert!(begun.elapsed() < 2 * IDLE, "it is not dropped");
        };
        assert_eq!(failed.kind(), io::ErrorKind::TimedOut);
        sent.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_gets_replies_is_not_dropped() {
        let (client, mut connection) = connected().await;
        let sent = drip(client);
        let mut byte = [0];
        for _ in 0..50 {
            assert!(connection.read_exact(&mut byte).await.is_ok());
            assert!(connection.write_all(b"y").await.is_ok());
        }
        sent.abort();
    }
}
