//! A connection to a node of the project's own simulation.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{AbortHandle, abortable};
use redis::RedisResult;
use redis::aio::MultiplexedConnection;

use super::{Server, in_time};
use crate::simulation;

/// A connection to a simulated node. It closes with the last clone, as one of redis-rs does.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) redis: MultiplexedConnection,
    _driver: Arc<Driver>,
}

struct Driver(AbortHandle);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Opens a connection to the server and logs in, if this thread is on a simulated host.
pub(super) async fn open(server: &Server, patience: Duration) -> Option<RedisResult<Connection>> {
    let connecting = simulation::host()?.connect(&server.address());
    let opening = async {
        let stream = connecting.await?;
        let (info, config) = Server::bare();
        let opened = MultiplexedConnection::new_with_config(&info, stream, config);
        let (redis, driver) = opened.await?;
        let (driver, abort) = abortable(driver);
        let _driver = Arc::new(Driver(abort));
        spawn(driver);
        let mut connection = Connection { redis, _driver };
        server.log_in(&mut connection.redis).await?;
        Ok(connection)
    };
    Some(in_time(patience, opening).await)
}

fn spawn(driver: impl Future + Send + 'static) {
    if let Some(host) = simulation::host() {
        host.spawn(Box::pin(async move {
            driver.await;
        }));
    }
}
