//! What the client says by `tracing`, at every level, for the whole process: a subscriber of one
//! thread would miss what other threads have looked up before.

use std::sync::{Mutex, Once};

static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());
static START: Once = Once::new();
static TRAPS: Mutex<Vec<(&str, String)>> = Mutex::new(Vec::new());

struct Log;

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LOG.lock().unwrap().extend_from_slice(bytes);
        let line = String::from_utf8_lossy(bytes).into_owned();
        let is_about = |name: &str| line.split_whitespace().any(|word| word == name);
        let is_here = |trap: &mut (&str, String)| line.contains(trap.0) && is_about(&trap.1);
        let met = TRAPS.lock().unwrap().extract_if(.., is_here).count();
        assert_eq!(met, 0, "a trap: {line}");
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Writes down what is said from now on.
pub fn start() {
    START.call_once(|| {
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
            .with_writer(|| Log)
            .with_ansi(false);
        tracing::subscriber::set_global_default(subscriber.finish()).unwrap();
    });
}

/// The lines that contain this.
pub fn lines(about: &str) -> Vec<String> {
    lines_since(0, about)
}

/// How much has been written so far.
pub fn size() -> usize {
    LOG.lock().unwrap().len()
}

/// The lines since then that contain this. A port can be that of another server before.
pub fn lines_since(size: usize, about: &str) -> Vec<String> {
    let text = String::from_utf8(LOG.lock().unwrap()[size..].to_vec()).unwrap();
    let lines = text.lines().filter(|line| line.contains(about));
    lines.map(str::to_owned).collect()
}

/// The next line with this text about the node at this port panics while it is written.
pub fn panic_once_at(text: &'static str, port: u16) {
    TRAPS.lock().unwrap().push((text, name_of(port)));
}

/// Whether that has not happened yet.
pub fn will_panic_at(port: u16) -> bool {
    let name = name_of(port);
    TRAPS.lock().unwrap().iter().any(|trap| trap.1 == name)
}

fn name_of(port: u16) -> String {
    format!("node=127.0.0.1:{port}")
}
