//! The client's side of a connection, as redis-rs sees it: a stream of bytes.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use redislock_client::simulation::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::network::{ConnectionId, Stage};
use super::world::Shared;

/// A connection that is being opened; dropping it gives up.
pub struct Connecting {
    pub world: Shared,
    pub id: Option<ConnectionId>,
}

impl Future for Connecting {
    type Output = io::Result<Box<dyn Stream>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let world = self.world.clone();
        let Some(id) = self.id else {
            return Poll::Pending;
        };
        let mut locked = world.lock();
        let connection = &mut locked.connections[id.0];
        match connection.stage {
            Stage::Connecting => {
                connection.waker = Some(cx.waker().clone());
                Poll::Pending
            }
            Stage::Open => {
                drop(locked);
                self.id = None;
                Poll::Ready(Ok(Box::new(Socket { world, id })))
            }
            Stage::Broken(why) => Poll::Ready(Err(why.into())),
            Stage::Closed => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.world.lock().close(id, true);
        }
    }
}

/// An open connection; dropping it closes it.
struct Socket {
    world: Shared,
    id: ConnectionId,
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.world.lock().close(self.id, true);
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut world = self.world.lock();
        let connection = &mut world.connections[self.id.0];
        let inbox = &mut connection.inbox;
        if !inbox.is_empty() {
            let count = inbox.len().min(buffer.remaining());
            let (front, back) = inbox.as_slices();
            let from_front = count.min(front.len());
            buffer.put_slice(front.get(..from_front).unwrap_or_default());
            buffer.put_slice(back.get(..count - from_front).unwrap_or_default());
            inbox.drain(..count);
            return Poll::Ready(Ok(()));
        }
        match connection.stage {
            Stage::Broken(why) => Poll::Ready(Err(why.into())),
            Stage::Closed => Poll::Ready(Ok(())),
            Stage::Connecting | Stage::Open => {
                connection.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut world = self.world.lock();
        match world.connections[self.id.0].stage {
            Stage::Open => {
                world.send_up(self.id, bytes);
                Poll::Ready(Ok(bytes.len()))
            }
            Stage::Broken(why) => Poll::Ready(Err(why.into())),
            _ => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.world.lock().close(self.id, true);
        Poll::Ready(Ok(()))
    }
}
