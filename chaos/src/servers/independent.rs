//! Independent masters; each client has its own link to each master.

use std::fs;

use redislock_testkit::{Disk, Flow, Options, Proxy, Server, SteppedServer, Value};

use super::deployment::Deployment;
use super::plan::Kind;
use super::worker::Reach;

/// Described at the top of this file.
pub struct Independent {
    /// By client, then by master.
    links: Vec<Vec<Proxy>>,
    masters: Vec<SteppedServer>,
    /// Masters whose clocks jump, by how many milliseconds, and which way they are now.
    strobes: Vec<(usize, i64, bool)>,
}

impl Independent {
    /// This many masters, for this many clients.
    pub fn start(nodes: usize, workers: usize, options: Options, durable: bool) -> Self {
        Disk::ignore_the_signal();
        let masters = (0..nodes).map(|_| {
            let mut master = SteppedServer::start(options.clone());
            if durable {
                // Redis 7.0 leaves a hole in the file after a failed write, unless it had the file
                // when it started.
                master.server.kill();
                master.server.start_again();
            }
            master
        });
        let masters: Vec<SteppedServer> = masters.collect();
        let links = || masters.iter().map(|it| Proxy::to(it.server.port()));
        Self {
            links: (0..workers).map(|_| links().collect()).collect(),
            masters,
            strobes: Vec::new(),
        }
    }

    fn links(&self, worker: Option<usize>, node: Option<usize>) -> impl Iterator<Item = &Proxy> {
        let workers = self.links.iter().enumerate();
        let workers = workers.filter(move |(at, _)| worker.is_none_or(|worker| worker == *at));
        workers.flat_map(move |(_, links)| {
            let links = links.iter().enumerate();
            links
                .filter(move |(at, _)| node.is_none_or(|node| node == *at))
                .map(|(_, link)| link)
        })
    }

    fn ring(&self) -> impl Iterator<Item = &Proxy> {
        let workers = self.links.iter().enumerate();
        workers.filter_map(|(worker, links)| links.get(worker % links.len()))
    }

    fn heal_links(&self) {
        self.links(None, None).for_each(Proxy::heal);
    }

    fn start_again(server: &mut Server, keeps_data: bool) {
        if !keeps_data {
            // Each fails only if there is none.
            let _ = fs::remove_dir_all(server.folder().join("appendonlydir"));
            let _ = fs::remove_file(server.folder().join("dump.rdb"));
        }
        server.start_again();
    }

    /// With `appendfsync always`, a server that cannot write ends itself, which takes a while: that
    /// it still runs says nothing. One that replies after it got its space back goes on.
    fn free_disk(server: &mut Server) {
        Disk::limited(server).free();
        if server.try_run::<Value>(&["PING"]).is_err() {
            server.wait_for_the_end();
            server.start_again();
        }
    }
}

impl Deployment for Independent {
    fn reach(&self, worker: usize) -> Reach {
        Reach::Nodes(self.links[worker].iter().map(Proxy::url).collect())
    }

    fn begin(&mut self, kind: &Kind) {
        match *kind {
            Kind::Kill { node, .. } => self.masters[node].server.kill(),
            Kind::Pause { node } => self.masters[node].server.pause(),
            Kind::Block {
                worker,
                node,
                requests,
                replies,
            } => {
                for link in self.links(worker, node) {
                    if requests {
                        link.requests(Flow::Hold);
                    }
                    if replies {
                        link.replies(Flow::Hold);
                    }
                }
            }
            Kind::Ring => self.ring().for_each(Proxy::stall),
            Kind::Step { node, by } => self.masters[node].step_millis(by),
            Kind::Strobe { node, by } => self.strobes.push((node, by, false)),
            Kind::DiskFull { node } => Disk::limited(&self.masters[node].server).fill(),
            Kind::CutAtGrant { worker } => self
                .links(Some(worker), None)
                .for_each(|link| link.hold_replies_once_asked("LOCK.ACQUIRE")),
            Kind::CutInReply { worker, bytes } => self
                .links(Some(worker), None)
                .for_each(|link| link.cut_after(bytes)),
            Kind::Reset { node } => self
                .links(None, Some(node))
                .for_each(Proxy::close_connections),
            _ => {}
        }
    }

    fn end(&mut self, kind: &Kind) {
        match *kind {
            Kind::Kill { node, keeps_data } => {
                Self::start_again(&mut self.masters[node].server, keeps_data);
            }
            Kind::Pause { node } => self.masters[node].server.resume(),
            Kind::Step { node, .. } => self.masters[node].step_millis(0),
            Kind::Strobe { node, .. } => {
                self.strobes.retain(|(other, ..)| *other != node);
                self.masters[node].step_millis(0);
            }
            Kind::DiskFull { node } => Self::free_disk(&mut self.masters[node].server),
            Kind::CutAtGrant { worker } => {
                self.links(Some(worker), None)
                    .for_each(Proxy::close_connections);
                self.heal_links();
            }
            Kind::Block { .. } | Kind::Ring | Kind::CutInReply { .. } => self.heal_links(),
            _ => {}
        }
    }

    fn tick(&mut self) {
        for (node, by, is_off) in &mut self.strobes {
            *is_off = !*is_off;
            self.masters[*node].step_millis(if *is_off { *by } else { 0 });
        }
    }

    fn heal(&mut self) {
        self.heal_links();
    }

    fn servers(&mut self) -> Vec<&mut Server> {
        self.masters.iter_mut().map(|it| &mut it.server).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use redislock_testkit::Connection;

    use super::*;

    #[test]
    fn a_master_runs_after_its_disk_was_full() {
        let options = Server::options().appendonly("always");
        let mut masters = Independent::start(1, 0, options.end_with_this_process(), true);
        let port = masters.masters[0].server.port();
        let full = Kind::DiskFull { node: 0 };
        // The write ends the server before, while or after the disk gets its space back.
        for delay in (0..2000).step_by(50).map(Duration::from_micros) {
            masters.begin(&full);
            thread::scope(|scope| {
                // It fails if it ends the server.
                scope.spawn(|| Connection::try_open(port)?.try_call(&["SET", "key", "value"]));
                thread::sleep(delay);
                masters.end(&full);
            });
            let server = &masters.masters[0].server;
            let written = server.try_run::<Value>(&["SET", "key", "value"]);
            assert!(written.is_ok(), "after {delay:?}: {written:?}");
        }
    }
}
