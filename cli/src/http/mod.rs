//! The HTTP server of `redlock exporter` and `redlock serve`. `connection.rs` bounds what one
//! client can use, `gate.rs` decides who is let in.

mod connection;
pub mod gate;

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;

use crate::exit::{Failure, IO};
use crate::signals::Signals;

use self::connection::{Bounded, Stream};

/// Connections at the same time. Later ones wait.
const CONNECTIONS: usize = 400;
/// What the kernel keeps for a client that does not read, in bytes.
const SEND_BUFFER: u32 = 64 * 1024;
const BACKLOG: u32 = 1_024;
/// A client has this long to agree on TLS.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// The pause after a connection could not be accepted: there may be too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// A certificate and its private key, in PEM files.
pub struct TlsFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl TlsFiles {
    fn acceptor(&self) -> Result<TlsAcceptor, Failure> {
        let unread = |file: &Path, why: String| {
            let file = file.display();
            Failure::usage(format!("the TLS file {file} cannot be used: {why}"))
        };
        let chain = CertificateDer::pem_file_iter(&self.certificate)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| unread(&self.certificate, error.to_string()))?;
        let key = PrivateKeyDer::from_pem_file(&self.key)
            .map_err(|error| unread(&self.key, error.to_string()))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let settings = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|settings| {
                let settings = settings.with_no_client_auth();
                settings.with_single_cert(chain, key)
            })
            .map_err(|error| unread(&self.certificate, error.to_string()))?;
        Ok(TlsAcceptor::from(Arc::new(settings)))
    }
}

/// Where clients connect to.
pub struct Server {
    listener: TcpListener,
    pub address: SocketAddr,
    tls: Option<TlsAcceptor>,
}

impl Server {
    pub async fn bind(listen: &str, tls: Option<&TlsFiles>) -> Result<Self, Failure> {
        let tls = tls.map(TlsFiles::acceptor).transpose()?;
        let failed = |error| cannot_listen(listen, &error);
        let listener = listening(listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self {
            listener,
            address,
            tls,
        })
    }

    /// `http://127.0.0.1:9937`.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Serves until a signal ends it.
    pub async fn serve(self, routes: Router, signals: &mut Signals) -> Result<(), Failure> {
        let (send, connections) = mpsc::channel(1);
        let address = self.address;
        let incoming = Incoming {
            connections,
            address,
        };
        tokio::select! {
            served = axum::serve(incoming, routes) => {
                served.map_err(|error| cannot_listen(&address.to_string(), &error))
            }
            () = accept(self.listener, self.tls, send) => Ok(()),
            _ = signals.end() => Ok(()),
        }
    }
}

/// Whether only programs of this host can reach the address.
pub async fn is_loopback(listen: &str) -> Result<bool, Failure> {
    let addresses = tokio::net::lookup_host(listen).await;
    let mut addresses = addresses.map_err(|error| cannot_listen(listen, &error))?;
    let local = |address: SocketAddr| match address.ip() {
        IpAddr::V6(ip) => ip.to_canonical().is_loopback(),
        ip => ip.is_loopback(),
    };
    Ok(addresses.all(local))
}

async fn listening(listen: &str) -> std::io::Result<TcpListener> {
    let mut last = ErrorKind::AddrNotAvailable.into();
    for address in tokio::net::lookup_host(listen).await? {
        let bound = || {
            let socket = match address {
                SocketAddr::V4(_) => TcpSocket::new_v4()?,
                SocketAddr::V6(_) => TcpSocket::new_v6()?,
            };
            socket.set_reuseaddr(true)?;
            socket.set_send_buffer_size(SEND_BUFFER)?;
            socket.bind(address)?;
            socket.listen(BACKLOG)
        };
        match bound() {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Accepts connections, each with its own handshake, so that a slow one delays nobody.
async fn accept(listener: TcpListener, tls: Option<TlsAcceptor>, send: mpsc::Sender<Bounded>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else {
            return;
        };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let (tls, send) = (tls.clone(), send.clone());
        tokio::spawn(async move {
            if let Some(stream) = opened(stream, tls).await {
                // The server may have ended in the meantime.
                let _ = send.send(Bounded::new(stream, permit)).await;
            }
        });
    }
}

async fn opened(stream: TcpStream, tls: Option<TlsAcceptor>) -> Option<Box<dyn Stream>> {
    stream.set_nodelay(true).ok()?;
    let Some(tls) = tls else {
        return Some(Box::new(stream));
    };
    let handshake = tokio::time::timeout(HANDSHAKE, tls.accept(stream));
    let stream = handshake.await.ok()?.ok()?;
    Some(Box::new(stream))
}

/// The connections that are ready.
struct Incoming {
    connections: mpsc::Receiver<Bounded>,
    address: SocketAddr,
}

impl axum::serve::Listener for Incoming {
    type Io = Bounded;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Bounded, SocketAddr) {
        match self.connections.recv().await {
            Some(connection) => (connection, self.address),
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        Ok(self.address)
    }
}

fn cannot_listen(address: &str, error: &std::io::Error) -> Failure {
    let fix = match error.kind() {
        ErrorKind::AddrInUse => "another program uses this port: choose another one with --listen",
        ErrorKind::PermissionDenied => "ports below 1024 need root: choose a higher one",
        _ => "give an address of this host, as in --listen 127.0.0.1:9936",
    };
    Failure::new(IO, format!("cannot listen on {address} ({error}): {fix}"))
}
