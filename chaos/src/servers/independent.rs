//! Independent masters; each client has its own link to each master.

use std::fs;
use std::time::{Duration, Instant};

use redislock_testkit::{Disk, Flow, Options, PATIENCE, Proxy, Server, SteppedServer, Value};

use super::deployment::{Deployment, last_lines};
use super::plan::Kind;
use super::worker::Reach;

/// A part of every request that may be granted: LOCK.ACQUIRE and LOCK.MACQUIRE.
const REQUEST: &str = "ACQUIRE";
/// The exit code of a server with `appendfsync always` that cannot write. It cannot log the reason
/// either: the limit applies to that file, too.
const CANNOT_WRITE: i32 = 1;

/// Described at the top of this file.
pub struct Independent {
    /// By client, then by master.
    links: Vec<Vec<Proxy>>,
    masters: Vec<SteppedServer>,
    /// Masters whose clocks jump, by how many milliseconds, and which way they are now.
    strobes: Vec<(usize, i64, bool)>,
    problems: Vec<String>,
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
            problems: Vec::new(),
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

    /// A master that must be running. If it has ended by itself, a fault would hide that.
    fn running(&mut self, node: usize) -> &mut Server {
        let server = &mut self.masters[node].server;
        if !server.is_alive() {
            let log = last_lines(&server.log());
            let problem = format!("Crash: master {node} ended by itself; its log: {log}");
            self.problems.push(problem);
            server.start_again();
        }
        server
    }

    /// Whether a write failed while the disk was full. With `appendfsync always`, this ends the
    /// server, which takes a while: that it still runs says nothing. One that replies after it got
    /// its space back goes on.
    fn free_disk(server: &mut Server) -> Result<bool, String> {
        let start = Instant::now();
        if server.is_alive() {
            Disk::limited(server).free();
        }
        while server.is_alive() {
            if server.try_run::<Value>(&["PING"]).is_ok() {
                return Ok(false);
            }
            if start.elapsed() > PATIENCE {
                return Err("Hang: a master does not reply after its disk was full".to_owned());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let (status, log) = (server.wait_for_the_end(), server.log());
        server.start_again();
        if status.code() == Some(CANNOT_WRITE) {
            return Ok(true);
        }
        let log = last_lines(&log);
        Err(format!(
            "Crash: a master ended while its disk was full, {status}; its log: {log}"
        ))
    }
}

impl Deployment for Independent {
    fn reach(&self, worker: usize) -> Reach {
        Reach::Nodes(self.links[worker].iter().map(Proxy::url).collect())
    }

    fn begin(&mut self, kind: &Kind) {
        match *kind {
            Kind::Kill { node, .. } => self.running(node).kill(),
            Kind::Pause { node } => self.running(node).pause(),
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
            Kind::DiskFull { node } => Disk::limited(self.running(node)).fill(),
            Kind::CutAtGrant { worker } => self
                .links(Some(worker), None)
                .for_each(|link| link.silence(REQUEST)),
            Kind::CutInReply { worker, bytes } => self
                .links(Some(worker), None)
                .for_each(|link| link.cut_after(bytes)),
            Kind::Reset { node } => self
                .links(None, Some(node))
                .for_each(Proxy::close_connections),
            _ => {}
        }
    }

    fn end(&mut self, kind: &Kind) -> bool {
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
            Kind::DiskFull { node } => match Self::free_disk(&mut self.masters[node].server) {
                Ok(has_failed) => return has_failed,
                Err(problem) => self.problems.push(problem),
            },
            Kind::CutAtGrant { worker } => {
                let was_asked = self.links(Some(worker), None).any(Proxy::has_held_back);
                self.links(Some(worker), None)
                    .for_each(Proxy::close_connections);
                self.heal_links();
                return was_asked;
            }
            Kind::CutInReply { worker, .. } => {
                let was_cut = self.links(Some(worker), None).any(Proxy::is_cut);
                self.heal_links();
                return was_cut;
            }
            Kind::Block { .. } | Kind::Ring => self.heal_links(),
            Kind::Reset { .. } => {}
            _ => return false,
        }
        true
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

    fn problems(&self) -> Vec<String> {
        self.problems.clone()
    }
}

// Only Linux lets one process limit another.
#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::thread;

    use redislock_testkit::{Connection, wait_until};
    use rustix::process::{Pid, Signal, kill_process};

    use super::*;

    fn durable_master() -> Independent {
        let options = Server::options().appendonly("always");
        Independent::start(1, 0, options.end_with_this_process(), true)
    }

    fn write(port: u16) -> std::io::Result<Value> {
        Connection::try_open(port)?.try_call(&["SET", "key", "value"])
    }

    const FULL: Kind = Kind::DiskFull { node: 0 };

    #[test]
    fn a_master_runs_after_its_disk_was_full() {
        let mut masters = durable_master();
        let port = masters.masters[0].server.port();
        // Without a write the server survives, and a write ends it.
        masters.begin(&FULL);
        assert!(!masters.end(&FULL));
        masters.begin(&FULL);
        assert!(write(port).is_err());
        assert!(masters.end(&FULL));
        // The write ends the server before, while or after the disk gets its space back.
        for delay in (0..2000).step_by(50).map(Duration::from_micros) {
            masters.begin(&FULL);
            thread::scope(|scope| {
                // It fails if it ends the server.
                scope.spawn(|| write(port));
                thread::sleep(delay);
                masters.end(&FULL);
            });
            let written = write(port);
            assert!(written.is_ok(), "after {delay:?}: {written:?}");
        }
        assert_eq!(masters.problems(), [""; 0]);
    }

    #[test]
    fn a_master_that_ends_by_itself_is_a_problem() {
        let mut masters = durable_master();
        let kill = Kind::Kill {
            node: 0,
            keeps_data: true,
        };
        // Nobody but the fault may end it, and a full disk must be the reason for its end.
        for fault in [&kill, &FULL] {
            masters.masters[0].server.stop();
            masters.begin(fault);
            assert!(write(masters.masters[0].server.port()).is_err());
            assert!(masters.end(fault));
        }
        masters.begin(&FULL);
        let process = masters.masters[0].server.process_id();
        let process = i32::try_from(process).ok().and_then(Pid::from_raw);
        kill_process(process.expect("a process"), Signal::SEGV).expect("the signal is sent");
        assert!(masters.end(&FULL));
        assert_eq!(masters.problems().len(), 3, "{:?}", masters.problems());
        assert!(write(masters.masters[0].server.port()).is_ok());
    }

    #[test]
    fn a_cut_that_no_request_triggers_has_no_effect() {
        let options = Server::options().end_with_this_process();
        let mut masters = Independent::start(1, 1, options, false);
        let cuts = [
            Kind::CutAtGrant { worker: 0 },
            Kind::CutInReply {
                worker: 0,
                bytes: 1,
            },
        ];
        for cut in cuts {
            for words in [
                vec![],
                vec!["LOCK.ACQUIRE", "a", "token", "60000"],
                vec!["LOCK.MACQUIRE", "2", "a", "b", "token", "60000"],
            ] {
                masters.begin(&cut);
                if !words.is_empty() {
                    let port = masters.links[0][0].port();
                    let mut connection = Connection::try_open(port).expect("a connection");
                    connection.send_args(&words);
                    wait_until("it is cut", || {
                        masters.links[0][0].has_held_back() || masters.links[0][0].is_cut()
                    });
                }
                assert_eq!(masters.end(&cut), !words.is_empty(), "{cut}: {words:?}");
            }
        }
    }
}
