//! `--min-hold`: the lock stays held for a while after the command has ended, without the tool.

use std::time::Duration;

use redislock_client::{Error, Guard, Moment, Redlock};

/// The pause after a failed attempt to extend the lease.
const PAUSE: Duration = Duration::from_millis(100);

/// Leaves the lock held at least until `until`. The error says why that is not certain.
pub async fn keep(client: &Redlock, guard: Guard, key: &str, until: Moment) -> Result<(), String> {
    let ticket = match guard.detach() {
        Ok(ticket) => ticket,
        Err(guard) => {
            guard.release().await;
            return Err("the lock is shared with another request of this process".to_owned());
        }
    };
    // A lease is never shortened, so a renewal that is still on its way does no harm.
    while ticket.valid_until() < until {
        let left = until.remaining().max(Duration::from_millis(1));
        let extending = client.extend_ticket(key, ticket.token(), ticket.fence(), left);
        match extending.await {
            Ok(_) => return Ok(()),
            Err(error @ (Error::Lost { .. } | Error::Refused { .. })) => {
                return Err(error.to_string());
            }
            Err(error) if ticket.valid_until().remaining().is_zero() => {
                return Err(error.to_string());
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
    Ok(())
}
