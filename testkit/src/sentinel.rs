//! A master that sentinels watch.

use crate::{Connection, Options, Proxy, Server, wait_for_sync, wait_patiently};

/// The name by which sentinels know the master.
pub const NAME: &str = "locks";

/// A master with replicas, and the sentinels that watch it.
pub struct Deployment {
    /// The first master.
    pub master: Server,
    /// Its replicas.
    pub replicas: Vec<Server>,
    /// The sentinels.
    pub sentinels: Vec<Server>,
}

impl Deployment {
    /// One replica, and one sentinel that decides alone and soon.
    pub fn start(options: &Options) -> Deployment {
        let master = options.clone().start();
        let deployment = Deployment {
            replicas: vec![options.clone().replica_of(&master).start()],
            sentinels: vec![watch(master.port())],
            master,
        };
        deployment.wait_until_all_know_each_other();
        deployment
    }

    /// Two replicas and three sentinels. All of them, and clients that follow the sentinels, reach
    /// the master through the link: when it stalls, only clients that connect to the master
    /// directly still reach it.
    pub fn start_behind_a_link(options: &Options) -> (Deployment, Proxy) {
        let master = options.clone().start();
        let link = Proxy::to(master.port());
        let replica = format!("replicaof 127.0.0.1 {}", link.port());
        let replica = options.clone().config(&replica);
        let sentinel = Options::sentinel(&format!(
            "bind 127.0.0.1
sentinel monitor {NAME} 127.0.0.1 {} 2
sentinel down-after-milliseconds {NAME} 1000
sentinel failover-timeout {NAME} 10000",
            link.port()
        ));
        let deployment = Deployment {
            master,
            replicas: replica.start_many::<2>().into(),
            sentinels: sentinel.start_many::<3>().into(),
        };
        deployment.wait_until_all_know_each_other();
        (deployment, link)
    }

    fn wait_until_all_know_each_other(&self) {
        let mut master = self.master.connect();
        for replica in &self.replicas {
            wait_for_sync(&mut master, &mut replica.connect());
        }
        for sentinel in &self.sentinels {
            wait_until_it_knows(sentinel, self.replicas.len(), self.sentinels.len() - 1);
        }
    }

    /// Where a sentinel that replies says that the master is.
    pub fn master_port(&self) -> Option<u16> {
        self.sentinels.iter().find_map(|one| master_by(one.port()))
    }
}

/// A sentinel that watches the master at this port, alone.
pub fn watch(master: u16) -> Server {
    watch_with(master, &[])
}

/// The same with more lines of sentinel.conf.
pub fn watch_with(master: u16, lines: &[String]) -> Server {
    let block = format!(
        "bind 127.0.0.1
sentinel monitor {NAME} 127.0.0.1 {master} 1
sentinel down-after-milliseconds {NAME} 500
sentinel failover-timeout {NAME} 2000"
    );
    Options::sentinel(&block).configs(lines).start()
}

/// Waits until the sentinel knows of this many replicas and other sentinels.
#[track_caller]
pub fn wait_until_it_knows(sentinel: &Server, replicas: usize, others: usize) {
    let mut c = sentinel.connect();
    wait_patiently("the sentinel knows all others", || {
        let master = c.call(&format!("SENTINEL MASTER {NAME}"));
        let known = |field: &str| master.field(field).text().parse().ok();
        known("num-slaves") == Some(replicas) && known("num-other-sentinels") == Some(others)
    });
}

/// Where the sentinel at this port says that the master is.
pub fn master_by(sentinel: u16) -> Option<u16> {
    let mut c = Connection::try_open(sentinel).ok()?;
    let address = c.call(&format!("SENTINEL GET-MASTER-ADDR-BY-NAME {NAME}"));
    address.items().get(1)?.text().parse().ok()
}
