//! Five masters of this machine, one run, alternating rounds: a bare redis-rs loop without any lock
//! logic, this client, and rslock. What counts are the ratios: `cargo bench -p redislock-client`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use redislock_client::Redlock;
use redislock_testkit::Server;
use rslock::LockManager;

/// Short rounds, many of them: what else the machine does then strikes neighbours alike.
const ROUND: Duration = Duration::from_millis(400);
const ROUNDS: usize = 11;
/// Without contention, neighbouring rounds differ by up to a third, so there are more of them.
const UNCONTENDED_ROUNDS: usize = 41;
/// A contended round is longer, for the longest wait to be seen.
const CONTENDED: Duration = Duration::from_secs(3);
const WORKERS: usize = 16;
const TTL: Duration = Duration::from_secs(10);

/// What a round of one contender came to.
#[derive(Clone, Copy, Default)]
struct Round {
    pairs: u64,
    seconds: f64,
    commands: u64,
    /// CPU seconds of this process, and of the servers.
    client_cpu: f64,
    server_cpu: f64,
}

/// What was used so far.
struct Meters {
    commands: u64,
    client_cpu: f64,
    server_cpu: f64,
}

struct Bench {
    servers: [Server; 5],
    bare: Vec<MultiplexedConnection>,
    ours: Redlock,
    rslock: LockManager,
}

impl Bench {
    async fn start() -> Self {
        let servers = Server::start_many::<5>();
        let mut bare = Vec::new();
        for server in &servers {
            let client = redis::Client::open(server.url()).unwrap();
            bare.push(client.get_multiplexed_async_connection().await.unwrap());
        }
        let ours = Redlock::builder()
            .nodes(servers.iter().map(Server::url))
            .connect()
            .await
            .unwrap();
        let rslock = LockManager::new(servers.iter().map(Server::url).collect());
        Self {
            servers,
            bare,
            ours,
            rslock,
        }
    }

    /// SET NX PX and DEL on all five in parallel, waiting for all: the cost of the wire, and no
    /// lock at all.
    async fn bare_pair(&self) {
        let mut set = redis::cmd("SET");
        set.arg("bare")
            .arg("0123456789abcdef0123456789abcdef")
            .arg("NX")
            .arg("PX")
            .arg(10_000);
        let mut del = redis::cmd("DEL");
        del.arg("bare");
        for cmd in [&set, &del] {
            let asked = self.bare.iter().map(|connection| {
                let mut connection = connection.clone();
                async move { connection.send_packed_command(cmd).await.unwrap() }
            });
            join_all(asked).await;
        }
    }

    async fn our_pair(&self) {
        let guard = self.ours.lock("ours").ttl(TTL).acquire().await.unwrap();
        guard.release().await;
    }

    async fn rslock_pair(&self) {
        let lock = self.rslock.lock("rslock", TTL).await.unwrap();
        self.rslock.unlock(&lock).await;
    }

    /// What the first `alive` servers and this process have used.
    fn meters(&self, alive: usize) -> Meters {
        let (mut commands, mut server_cpu) = (0, 0.0);
        for server in self.servers.iter().take(alive) {
            let info: String = server.run(&["INFO", "everything"]);
            let number = |name: &str| -> f64 {
                let line = info
                    .lines()
                    .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
                line.map_or(0.0, |line| line.parse().unwrap())
            };
            commands += number("total_commands_processed") as u64;
            server_cpu += number("used_cpu_user") + number("used_cpu_sys");
        }
        Meters {
            commands,
            client_cpu: own_usage().0,
            server_cpu,
        }
    }

    async fn measure(&self, pair: impl AsyncFn()) -> Round {
        self.measure_among(5, pair).await
    }

    /// A stopped server cannot be asked what it did; those before it can.
    async fn measure_among(&self, alive: usize, pair: impl AsyncFn()) -> Round {
        let before = self.meters(alive);
        let start = Instant::now();
        let mut pairs = 0;
        while start.elapsed() < ROUND {
            pair().await;
            pairs += 1;
        }
        let seconds = start.elapsed().as_secs_f64();
        let after = self.meters(alive);
        Round {
            pairs,
            seconds,
            commands: after.commands - before.commands,
            client_cpu: after.client_cpu - before.client_cpu,
            server_cpu: after.server_cpu - before.server_cpu,
        }
    }
}

/// CPU seconds of this process, and how often one of its threads went to sleep.
fn own_usage() -> (f64, u64) {
    let (mut nanos, mut sleeps) = (0, 0);
    for thread in std::fs::read_dir("/proc/self/task").unwrap() {
        let folder = thread.unwrap().path();
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
        let used = read("schedstat");
        nanos += used.split(' ').next().unwrap().parse::<u64>().unwrap();
        let status = read("status");
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        sleeps += line.unwrap().trim().parse::<u64>().unwrap();
    }
    (nanos as f64 / 1e9, sleeps)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The ratios of neighbouring rounds: their median, and what a quarter of them is below and above.
struct Ratio {
    median: f64,
    low: f64,
    high: f64,
}

impl Ratio {
    fn of(ours: &[Round], others: &[Round], figure: impl Fn(&Round) -> f64) -> Self {
        let pairs = ours.iter().zip(others);
        let mut ratios: Vec<f64> = pairs
            .map(|(ours, others)| figure(ours) / figure(others))
            .collect();
        ratios.sort_by(f64::total_cmp);
        Self {
            median: ratios[ratios.len() / 2],
            low: ratios[ratios.len() / 4],
            high: ratios[ratios.len() * 3 / 4],
        }
    }
}

impl std::fmt::Display for Ratio {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { median, low, high } = self;
        write!(out, "{median:.2} ({low:.2} to {high:.2})")
    }
}

fn rate(round: &Round) -> f64 {
    round.pairs as f64 / round.seconds
}

/// CPU seconds of this process for a pair.
fn client_cpu(round: &Round) -> f64 {
    round.client_cpu / round.pairs as f64
}

fn show(name: &str, rounds: &[Round]) {
    let rate = median(rounds.iter().map(rate).collect());
    let pairs: u64 = rounds.iter().map(|round| round.pairs).sum();
    let commands: u64 = rounds.iter().map(|round| round.commands).sum();
    let client: f64 = rounds.iter().map(|round| round.client_cpu).sum();
    let servers: f64 = rounds.iter().map(|round| round.server_cpu).sum();
    let each = |seconds: f64| seconds * 1e6 / pairs as f64;
    println!(
        "  {name:<8} {rate:>8.0} pairs/s   a pair: {:>4.1} commands, CPU {:>4.0} µs of the client \
         and {:>4.0} µs of the servers",
        commands as f64 / pairs as f64,
        each(client),
        each(servers)
    );
}

async fn uncontended(bench: &Bench) {
    println!("uncontended acquire + release, one worker");
    let (mut bare, mut ours, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..UNCONTENDED_ROUNDS {
        bare.push(bench.measure(async || bench.bare_pair().await).await);
        ours.push(bench.measure(async || bench.our_pair().await).await);
        theirs.push(bench.measure(async || bench.rslock_pair().await).await);
    }
    show("bare", &bare);
    show("ours", &ours);
    show("rslock", &theirs);
    println!(
        "  ours/bare {}, wanted: 0.95   ours/rslock {}, wanted: 1.1",
        Ratio::of(&ours, &bare, rate),
        Ratio::of(&ours, &theirs, rate)
    );
    println!(
        "  CPU of the client, ours/rslock {}, wanted: at most 1",
        Ratio::of(&ours, &theirs, client_cpu)
    );
}

async fn latency(bench: &Bench) {
    println!("one acquire, median");
    let (mut one, mut sends, mut acquire) = (Vec::new(), Vec::new(), Vec::new());
    let mut ping = redis::cmd("SET");
    ping.arg("bare").arg("x").arg("PX").arg(10_000);
    for _ in 0..5_000 {
        let mut connection = bench.bare[0].clone();
        let start = Instant::now();
        connection.send_packed_command(&ping).await.unwrap();
        one.push(start.elapsed().as_secs_f64() * 1e6);

        let start = Instant::now();
        let asked = bench.bare.iter().map(|connection| {
            let (mut connection, ping) = (connection.clone(), &ping);
            async move { connection.send_packed_command(ping).await.unwrap() }
        });
        join_all(asked).await;
        sends.push(start.elapsed().as_secs_f64() * 1e6);

        let start = Instant::now();
        let guard = bench.ours.lock("ours").ttl(TTL).acquire().await.unwrap();
        acquire.push(start.elapsed().as_secs_f64() * 1e6);
        guard.release().await;
    }
    let (one, sends, acquire) = (median(one), median(sends), median(acquire));
    println!("  one round trip {one:.0} µs, five at once {sends:.0} µs, acquire {acquire:.0} µs");
    let allowed = 1.5 * one + (sends - one);
    println!(
        "  acquire/(1.5 round trips + the cost of five sends) {:.2} (wanted: at most 1)",
        acquire / allowed
    );
}

/// Grants a second, longest wait, least and most served of a contended run.
struct Contended {
    rate: f64,
    seconds: f64,
    longest: Duration,
    least: u64,
    most: u64,
}

async fn run_workers<F, T>(turn: F) -> Contended
where
    F: Fn() -> T + Send + Sync + 'static,
    T: Future<Output = Duration> + Send,
{
    let turn = Arc::new(turn);
    let start = Instant::now();
    let mut tasks = Vec::new();
    for _ in 0..WORKERS {
        let turn = Arc::clone(&turn);
        tasks.push(tokio::spawn(async move {
            let (mut grants, mut longest) = (0_u64, Duration::ZERO);
            while start.elapsed() < CONTENDED {
                longest = longest.max(turn().await);
                grants += 1;
            }
            (grants, longest)
        }));
    }
    let mut grants = Vec::new();
    let mut longest = Duration::ZERO;
    for task in tasks {
        let (count, wait) = task.await.unwrap();
        grants.push(count);
        longest = longest.max(wait);
    }
    let seconds = start.elapsed().as_secs_f64();
    Contended {
        rate: grants.iter().sum::<u64>() as f64 / seconds,
        seconds,
        longest,
        least: *grants.iter().min().unwrap(),
        most: *grants.iter().max().unwrap(),
    }
}

async fn contended(bench: &Bench) {
    println!("contended, {WORKERS} workers, one lock");
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let (mut commands, mut client_cpu, mut server_cpu) = (0, 0.0, 0.0);
    for _ in 0..3 {
        let client = bench.ours.clone();
        let before = bench.meters(5);
        ours.push(our_workers(client).await);
        let after = bench.meters(5);
        commands += after.commands - before.commands;
        client_cpu += after.client_cpu - before.client_cpu;
        server_cpu += after.server_cpu - before.server_cpu;
        let manager = bench.rslock.clone();
        theirs.push(rslock_workers(manager).await);
    }
    let line = |name: &str, runs: &[Contended]| {
        for run in runs {
            println!(
                "  {name:<8} {:>6.0} grants/s   longest wait {:>6.1} ms   least/most served {}/{} \
                 = {:.2}",
                run.rate,
                run.longest.as_secs_f64() * 1e3,
                run.least,
                run.most,
                run.least as f64 / run.most as f64
            );
        }
    };
    line("ours", &ours);
    line("rslock", &theirs);
    let grants: f64 = ours.iter().map(|run| run.rate * run.seconds).sum();
    println!(
        "  ours, a grant: {:.1} commands, CPU {:.0} µs of the client and {:.0} µs of the servers",
        commands as f64 / grants,
        client_cpu * 1e6 / grants,
        server_cpu * 1e6 / grants
    );
    let rate = |runs: &[Contended]| median(runs.iter().map(|run| run.rate).collect());
    let longest =
        |runs: &[Contended]| median(runs.iter().map(|run| run.longest.as_secs_f64()).collect());
    println!(
        "  grants ours/rslock {:.2} (wanted: 1.3)   longest wait rslock/ours {:.1} (wanted: 20)",
        rate(&ours) / rate(&theirs),
        longest(&theirs) / longest(&ours)
    );
}

async fn our_workers(client: Redlock) -> Contended {
    run_workers(move || {
        let client = client.clone();
        async move {
            let start = Instant::now();
            let guard = client.lock("contended").ttl(TTL).acquire().await.unwrap();
            let waited = start.elapsed();
            guard.release().await;
            waited
        }
    })
    .await
}

async fn rslock_workers(manager: LockManager) -> Contended {
    run_workers(move || {
        let manager = manager.clone();
        async move {
            let start = Instant::now();
            let lock = manager
                .acquire_no_guard("contended-rslock", TTL)
                .await
                .unwrap();
            let waited = start.elapsed();
            manager.unlock(&lock).await;
            waited
        }
    })
    .await
}

async fn dead_masters(bench: &Bench) {
    println!("masters that do not answer");
    let pair = async || bench.our_pair().await;
    for stopped in [1, 2] {
        let (mut alive, mut rest) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            alive.push(bench.measure_among(5 - stopped, pair).await);
            let victims = &bench.servers[5 - stopped..];
            victims.iter().for_each(Server::pause);
            // The first one finds out, and pays the node timeout.
            pair().await;
            rest.push(bench.measure_among(5 - stopped, pair).await);
            victims.iter().for_each(Server::resume);
            tokio::time::sleep(ROUND).await;
        }
        println!(
            "  {stopped} stopped/all alive {}, wanted for one: 1",
            Ratio::of(&rest, &alive, rate)
        );
    }
}

/// Only so many pairs of one of the three, for tools that count instructions and system calls:
/// `cargo bench -p redislock-client -- count ours 20000`.
async fn count(bench: &Bench, name: &str, pairs: u64) {
    let before = own_usage();
    for _ in 0..pairs {
        match name {
            "bare" => bench.bare_pair().await,
            "ours" => bench.our_pair().await,
            _ => bench.rslock_pair().await,
        }
    }
    let after = own_usage();
    println!(
        "{name}, a pair: CPU {:.1} µs of the client, its threads slept {:.2} times",
        (after.0 - before.0) * 1e6 / pairs as f64,
        (after.1 - before.1) as f64 / pairs as f64
    );
}

#[tokio::main]
async fn main() {
    let bench = Bench::start().await;
    let mut words = std::env::args().skip_while(|word| word != "count").skip(1);
    if let (Some(name), Some(pairs)) = (words.next(), words.next()) {
        return count(&bench, &name, pairs.parse().unwrap()).await;
    }
    uncontended(&bench).await;
    latency(&bench).await;
    contended(&bench).await;
    dead_masters(&bench).await;
}
