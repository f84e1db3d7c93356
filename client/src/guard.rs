//! What the holder of a lock has in hand.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::clock::Moment;
use crate::error::Error;
use crate::hold::{Hold, Released};
use crate::token::Token;

/// A view of a hold: for those who work under the lock, without the power to release it.
#[derive(Clone)]
pub struct Held(pub(crate) Arc<Hold>);

impl Held {
    /// The number that a resource compares: of two holders the later one has the higher fence.
    pub fn fence(&self) -> u64 {
        self.0.fence
    }

    /// Until when the lock is surely held, unless it is renewed. Ask anew each time: renewal moves it.
    pub fn valid_until(&self) -> Moment {
        self.0.valid_until()
    }

    /// Whether the lock is surely held at this moment. A pause right after the answer may make it wrong: what must not
    /// be done twice needs the fence.
    pub fn is_valid(&self) -> bool {
        !self.0.lost.is_cancelled() && self.valid_until() > Moment::now()
    }

    /// Completes when the lock is lost: before its validity ends, or at once when the nodes say that it is gone.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + use<> {
        self.0.lost.clone().cancelled_owned()
    }

    /// The same as a token, to be handed to whatever has to stop.
    pub fn lost_token(&self) -> CancellationToken {
        self.0.lost.child_token()
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Held")
            .field("lock", &self.0.spec.name())
            .field("fence", &self.fence())
            .field("valid_until", &self.valid_until())
            .finish_non_exhaustive()
    }
}

/// A lock that is held. Dropping the last guard of a hold releases it in the background.
#[must_use = "dropping the guard releases the lock"]
pub struct Guard {
    held: Held,
    /// The last way out has been taken.
    left: bool,
}

impl Guard {
    /// Stands for one entry that the hold has already counted.
    pub(crate) fn of(hold: Arc<Hold>) -> Self {
        Self {
            held: Held(hold),
            left: false,
        }
    }

    /// The number that a resource compares: of two holders the later one has the higher fence.
    pub fn fence(&self) -> u64 {
        self.held.fence()
    }

    /// Until when the lock is surely held, unless it is renewed.
    pub fn valid_until(&self) -> Moment {
        self.held.valid_until()
    }

    /// Whether the lock is surely held at this moment; see [`Held::is_valid`].
    pub fn is_valid(&self) -> bool {
        self.held.is_valid()
    }

    /// Completes when the lock is lost: before its validity ends, or at once when the nodes say that it is gone.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + use<> {
        self.held.lost()
    }

    /// The same as a token, to be handed to whatever has to stop.
    pub fn lost_token(&self) -> CancellationToken {
        self.held.lost_token()
    }

    /// A view for those who work under this lock.
    pub fn held(&self) -> Held {
        self.held.clone()
    }

    /// Asks the nodes to extend the lease by its ttl from now, and returns the new end of validity.
    pub async fn extend(&self) -> Result<Moment, Error> {
        self.held.0.extend_again().await
    }

    /// Asks the nodes to extend the lease to another ttl, which renewal then keeps up.
    pub async fn extend_to(&self, ttl: Duration) -> Result<Moment, Error> {
        self.held.0.extend_checked(ttl).await
    }

    /// The last guard leaves without releasing, and takes the token along.
    pub(crate) fn leave_held(mut self) -> Result<Token, Self> {
        match self.held.0.give_up_token() {
            Some(token) => {
                self.left = true;
                Ok(token)
            }
            None => Err(self),
        }
    }

    /// Releases the lock on every node, and says whether it was held until now. Where the same owner has another
    /// guard of this hold, that one keeps it.
    pub async fn release(mut self) -> Released {
        self.left = true;
        match self.held.0.leave() {
            true => self.held.0.release().await,
            false if self.is_valid() => Released::StillHeld,
            false => Released::WasLost,
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.left && self.held.0.leave() {
            self.held.0.release_in_background();
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("Guard").field(&self.held).finish()
    }
}
