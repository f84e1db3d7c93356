//! For the project's own simulation, not for users: it replaces what a client needs from its host.
//!
//! While a thread is [`on`] a simulated host, the clock, the randomness, the connections and the
//! background tasks of a client come from that host. Elsewhere, a build with this feature behaves
//! like any other, unless a flaw is [planted](plant).

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::OnceLock;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};

/// A future that a host runs or returns.
pub type Task<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A connection to a simulated node.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// What a client needs from its host.
pub trait Host {
    /// Time since the host started, by its own clock.
    fn now(&self) -> Duration;
    /// Random bytes.
    fn random(&self) -> [u8; 16];
    /// Runs a task in the background.
    fn spawn(&self, task: Task<()>);
    /// Connects to the node at this address.
    fn connect(&self, address: &str) -> Task<std::io::Result<Box<dyn Stream>>>;
    /// Whether the clients of this host have this flaw.
    fn has(&self, flaw: Flaw) -> bool;
}

/// A protection that can be turned off, to check that the simulation detects that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flaw {
    /// Validity counts from the reply, not from the request.
    ValidFromReply,
    /// Half of the nodes are enough.
    HalfIsEnough,
    /// Validity allows for no difference of clock rates.
    NoDriftAllowance,
    /// A majority of grants is enough, whatever their fences.
    NoWriteBack,
    /// A lock is never released.
    NoRelease,
}

thread_local! {
    static HOST: RefCell<Option<Rc<dyn Host>>> = const { RefCell::new(None) };
}

/// Runs code as if it ran on this host.
pub fn on<R>(host: Rc<dyn Host>, run: impl FnOnce() -> R) -> R {
    struct Back(Option<Rc<dyn Host>>);
    impl Drop for Back {
        fn drop(&mut self) {
            HOST.set(self.0.take());
        }
    }
    let _back = Back(HOST.replace(Some(host)));
    run()
}

/// The host that this thread is on, if it is simulated.
pub(crate) fn host() -> Option<Rc<dyn Host>> {
    HOST.with_borrow(Clone::clone)
}

/// The flaw that all clients of this process have, on a simulated host or not.
static PLANTED: OnceLock<Flaw> = OnceLock::new();

/// Gives all clients of this process a flaw. Only the first call has an effect.
pub fn plant(flaw: Flaw) {
    PLANTED.get_or_init(|| flaw);
}

/// Whether the process, or its simulated host, has this flaw.
pub(crate) fn has(flaw: Flaw) -> bool {
    PLANTED.get() == Some(&flaw) || host().is_some_and(|host| host.has(flaw))
}
