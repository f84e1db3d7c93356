//! Runs the tasks of all clients on one thread. Of those that can run, the seed decides which does
//! next; tasks of a machine that is paused do not run, and those of a process that is gone are
//! dropped.

use std::cell::{Cell, RefCell};
use std::io::ErrorKind;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use redislock_client::simulation::{Flaw, Host, Stream, Task, on};

use super::plan::Planted;
use super::stream::Connecting;
use super::workload;
use super::world::{Order, Shared};

/// The first port; node number 0 listens there.
pub const PORT: usize = 7_000;

/// Tasks that have just been started, and by which process.
type Spawned = Rc<RefCell<Vec<(usize, Task<()>)>>>;

/// A process on a machine, as its client sees it.
struct Process {
    world: Shared,
    machine: usize,
    number: usize,
    flaw: Option<Planted>,
    alive: Cell<bool>,
    rng: RefCell<fastrand::Rng>,
    spawned: Spawned,
}

impl Host for Process {
    fn now(&self) -> Duration {
        self.world.lock().clock_of(self.machine)
    }

    fn random(&self) -> [u8; 16] {
        self.rng.borrow_mut().u128(..).to_le_bytes()
    }

    fn spawn(&self, task: Task<()>) {
        if self.alive.get() {
            self.spawned.borrow_mut().push((self.number, task));
        }
    }

    fn connect(&self, address: &str) -> Task<std::io::Result<Box<dyn Stream>>> {
        let port = address
            .rsplit(':')
            .next()
            .and_then(|port| port.parse::<usize>().ok());
        let node = port.and_then(|port| port.checked_sub(PORT));
        let mut world = self.world.lock();
        match node.filter(|node| *node < world.nodes.len() && self.alive.get()) {
            Some(node) => {
                let id = Some(world.connect(self.machine, self.number, node));
                let world = self.world.clone();
                Box::pin(Connecting { world, id })
            }
            None => Box::pin(std::future::ready(Err(ErrorKind::AddrNotAvailable.into()))),
        }
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(Planted::Client(flaw))
    }
}

/// Which tasks can run.
#[derive(Default)]
struct Ready {
    set: Mutex<Set>,
}

#[derive(Default)]
struct Set {
    bits: Vec<u64>,
    outside: Option<Waker>,
}

impl Set {
    /// A member at or after a random place.
    fn take(&mut self, rng: &mut fastrand::Rng) -> Option<usize> {
        let words = self.bits.len();
        if self.bits.iter().all(|word| *word == 0) {
            return None;
        }
        let (start, shift) = (rng.usize(0..words), rng.u32(0..64));
        for step in 0..=words {
            let at = (start + step) % words;
            // In the first word only what is not before the place; in the last round the rest.
            let from = if step == 0 {
                u64::MAX << shift
            } else {
                u64::MAX
            };
            let found = self.bits[at] & from;
            if found != 0 {
                let bit = found.trailing_zeros() as usize;
                self.bits[at] &= !(1 << bit);
                return Some(at * 64 + bit);
            }
        }
        None
    }

    fn insert(&mut self, task: usize) {
        if task / 64 >= self.bits.len() {
            self.bits.resize(task / 64 + 1, 0);
        }
        self.bits[task / 64] |= 1 << (task % 64);
        if let Some(waker) = self.outside.take() {
            waker.wake();
        }
    }
}

impl Ready {
    fn with<R>(&self, act: impl FnOnce(&mut Set) -> R) -> R {
        act(&mut self.set.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

struct TaskWaker {
    task: usize,
    ready: Arc<Ready>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ready.with(|set| set.insert(self.task));
    }
}

/// A task; the world's own belongs to no process.
struct Running {
    process: Option<usize>,
    future: Pin<Box<dyn Future<Output = ()>>>,
    waker: Waker,
}

/// Described at the top of this file.
pub struct Executor {
    world: Shared,
    rng: fastrand::Rng,
    ready: Arc<Ready>,
    tasks: Vec<Option<Running>>,
    free: Vec<usize>,
    /// Tasks of paused machines that can run when their machines continue.
    parked: Vec<Vec<usize>>,
    processes: Vec<Rc<Process>>,
    spawned: Spawned,
}

impl Executor {
    pub fn new(world: Shared) -> Self {
        let (seed, machines) = {
            let world = world.lock();
            (world.plan.seed, world.machines.len())
        };
        Self {
            world,
            rng: fastrand::Rng::with_seed(seed ^ 0x5441_534b),
            ready: Arc::default(),
            tasks: Vec::new(),
            free: Vec::new(),
            parked: vec![Vec::new(); machines],
            processes: Vec::new(),
            spawned: Rc::default(),
        }
    }

    /// Adds a task.
    pub fn spawn(&mut self, process: Option<usize>, future: Pin<Box<dyn Future<Output = ()>>>) {
        let task = self.free.pop().unwrap_or(self.tasks.len());
        if task == self.tasks.len() {
            self.tasks.push(None);
        }
        let ready = Arc::clone(&self.ready);
        let waker = Waker::from(Arc::new(TaskWaker { task, ready }));
        self.tasks[task] = Some(Running {
            process,
            future,
            waker,
        });
        self.ready.with(|set| set.insert(task));
    }

    /// Runs what can run. `Ready`: a promise is broken.
    pub fn run(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            self.follow_orders();
            if self.world.lock().history.violation.is_some() {
                return Poll::Ready(());
            }
            let rng = &mut self.rng;
            let task = self.ready.with(|set| {
                let task = set.take(rng);
                if task.is_none() {
                    set.outside = Some(cx.waker().clone());
                }
                task
            });
            match task {
                Some(task) => self.step(task),
                None => return Poll::Pending,
            }
        }
    }

    fn step(&mut self, task: usize) {
        let Some(mut running) = self.tasks[task].take() else {
            return;
        };
        let process = running
            .process
            .map(|process| Rc::clone(&self.processes[process]));
        if let Some(process) = &process
            && self.world.lock().machines[process.machine].paused > 0
        {
            self.parked[process.machine].push(task);
            self.tasks[task] = Some(running);
            return;
        }
        let mut cx = Context::from_waker(&running.waker);
        let future = running.future.as_mut();
        let done = match process {
            Some(process) => on(process, || future.poll(&mut cx)),
            None => future.poll(&mut cx),
        };
        match done {
            Poll::Pending => self.tasks[task] = Some(running),
            Poll::Ready(()) => self.finish(task, running),
        }
    }

    /// What a task drops may start others.
    fn finish(&mut self, task: usize, running: Running) {
        self.free.push(task);
        match running
            .process
            .map(|process| Rc::clone(&self.processes[process]))
        {
            Some(process) => on(process, || drop(running)),
            None => drop(running),
        }
    }

    fn follow_orders(&mut self) {
        loop {
            let spawned = std::mem::take(&mut *self.spawned.borrow_mut());
            let orders = std::mem::take(&mut self.world.lock().orders);
            if spawned.is_empty() && orders.is_empty() {
                return;
            }
            for (process, task) in spawned {
                if self.processes[process].alive.get() {
                    self.spawn(Some(process), task);
                }
            }
            for order in orders {
                match order {
                    Order::Thaw(machine) => {
                        let parked = std::mem::take(&mut self.parked[machine]);
                        self.ready
                            .with(|set| parked.into_iter().for_each(|task| set.insert(task)));
                    }
                    Order::Kill(process) => self.kill(process),
                    Order::Boot(machine) => self.boot(machine),
                }
            }
        }
    }

    /// Drops the tasks of a process. What they do while they are dropped has no effect.
    fn kill(&mut self, process: usize) {
        self.processes[process].alive.set(false);
        for task in 0..self.tasks.len() {
            let is_of = |running: &Running| running.process == Some(process);
            if self.tasks[task].as_ref().is_some_and(is_of)
                && let Some(running) = self.tasks[task].take()
            {
                self.finish(task, running);
            }
        }
    }

    /// Starts a process on a machine.
    fn boot(&mut self, machine: usize) {
        let number = self.processes.len();
        let plan = {
            let mut world = self.world.lock();
            world.machines[machine].process = Some(number);
            Arc::clone(&world.plan)
        };
        let mut rng = fastrand::Rng::with_seed(plan.seed ^ ((number as u64 + 1) << 32));
        let mut chances: Vec<_> = (0..plan.workers).map(|_| rng.fork()).collect();
        let process = Rc::new(Process {
            world: self.world.clone(),
            machine,
            number,
            flaw: plan.flaw,
            alive: Cell::new(true),
            rng: RefCell::new(rng),
            spawned: Rc::clone(&self.spawned),
        });
        self.processes.push(Rc::clone(&process));
        let Ok(client) = on(process, || workload::client(&plan)) else {
            return;
        };
        for rng in chances.drain(..) {
            let worker = workload::Worker::new(self.world.clone(), client.clone(), machine, rng);
            self.spawn(Some(number), Box::pin(worker.work()));
        }
        let recovery = workload::recover(self.world.clone(), client, machine);
        self.spawn(Some(number), Box::pin(recovery));
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        for process in 0..self.processes.len() {
            self.world.lock().lose_client(process, true);
            self.kill(process);
        }
    }
}
