//! The processes of the clients, and what they write.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use redislock_testkit::history::{Entry, read};
use redislock_testkit::process::end_with_this_process;
use rustix::process::{Pid, Signal, kill_process};

use super::worker::Job;

/// What all of them have written so far.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<Entry>>>);

impl Log {
    /// Looks at it.
    pub fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A client process, ended when dropped.
pub struct Client {
    child: Child,
    journal: Option<JoinHandle<()>>,
    complaints: Option<JoinHandle<String>>,
}

impl Client {
    /// Starts the program `worker` with a job.
    pub fn start(program: &[String], job: &Job, log: &Log) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("cannot start a client: {error}");
        let job = serde_json::to_string(job).map_err(|error| error.to_string())?;
        let (name, words) = program.split_first().ok_or("no program for the clients")?;
        let mut command = Command::new(name);
        command
            .args(words)
            .arg(job)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        end_with_this_process(&mut command);
        let mut child = command.spawn().map_err(failed)?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let log = log.clone();
        let journal = std::thread::spawn(move || {
            let lines = out.into_iter().flat_map(|out| BufReader::new(out).lines());
            let mut broken = None;
            for line in lines.map_while(Result::ok) {
                if let Some(error) = broken {
                    panic!("a line of the journal cannot be read: {error}");
                }
                match read(&line) {
                    Ok(entry) => log.entries().push(entry),
                    // The process was killed while it wrote this, or the next line fails.
                    Err(error) => broken = Some(error),
                }
            }
        });
        let complaints = std::thread::spawn(move || {
            let lines = err.into_iter().flat_map(|err| BufReader::new(err).lines());
            lines.map_while(Result::ok).collect::<Vec<_>>().join("; ")
        });
        Ok(Self {
            child,
            journal: Some(journal),
            complaints: Some(complaints),
        })
    }

    fn signal(&self, signal: Signal) {
        // It may have just ended; then its exit code shows why.
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    /// Whether the process runs.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// SIGSTOP.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// SIGKILL: nothing is released.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.check_journal();
    }

    /// Tells it that the faults are over: it acquires every lock once and ends.
    pub fn recover(&mut self) {
        if let Some(mut input) = self.child.stdin.take() {
            // It fails only if the process has ended; then its exit code shows why.
            let _ = input.write_all(b"\n");
            self.child.stdin = Some(input);
        }
    }

    /// Waits for its end; returns what it reports as an error.
    pub fn end(mut self, patience: Duration) -> Result<(), String> {
        let start = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => {
                    self.check_journal();
                    return Ok(());
                }
                Ok(Some(status)) => return Err(format!("{status}: {}", self.read_all())),
                Ok(None) if start.elapsed() < patience => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                _ => return Err("it does not end".to_owned()),
            }
        }
    }

    /// Fails if the journal of a process that has ended is not complete.
    fn check_journal(&mut self) {
        let journal = self.journal.take().map(JoinHandle::join);
        assert!(!matches!(journal, Some(Err(_))), "see the message above");
    }

    /// Reads what is left in the pipes of a process that has ended.
    fn read_all(&mut self) -> String {
        if let Some(journal) = self.journal.take() {
            let _ = journal.join();
        }
        let complaints = self.complaints.take().map(JoinHandle::join);
        complaints.and_then(Result::ok).unwrap_or_default()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.read_all();
    }
}
