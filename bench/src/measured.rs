//! The server that is measured, and commands that are prepared before the measurement and whose
//! replies are checked.

use redislock_testkit::{Connection, Options, Server, Value, encode};

use crate::Outcome;

/// Relative to the server's folder.
const SOCKET: &str = "socket";

/// A server without persistence, except for what these lines of redis.conf set.
pub fn start(settings: &[&str]) -> Outcome<Server> {
    Ok(options(settings).try_start()?)
}

/// What [`start`] starts.
pub fn options(settings: &[&str]) -> Options {
    Server::options()
        .config("auto-aof-rewrite-percentage 0")
        .config(&format!("unixsocket {SOCKET}"))
        .configs(settings)
}

/// Through its Unix socket, which takes no port: for thousands of connections.
pub fn connect_unix(server: &Server) -> Outcome<Connection> {
    Ok(Connection::try_open_unix(&server.folder().join(SOCKET))?)
}

/// Adds a command to what will be sent.
pub fn put(buffer: &mut Vec<u8>, words: &[&str]) {
    buffer.extend_from_slice(&encode(words));
}

/// Sends a pipeline; each reply must be a success, or something else would be measured.
pub fn pipeline(connection: &mut Connection, bytes: &[u8], replies: usize) -> Outcome<()> {
    connection.try_send_raw(bytes)?;
    (0..replies).try_for_each(|_| check_yes(&connection.try_receive()?))
}

/// An error unless the reply is a success of the measured commands: `OK`, or a number above
/// 0, or several of them.
pub fn check_yes(reply: &Value) -> Outcome<()> {
    if is_yes(reply) {
        Ok(())
    } else {
        Err(format!("not a yes: {reply:?}").into())
    }
}

fn is_yes(reply: &Value) -> bool {
    match reply {
        Value::Status(text) => text == "OK",
        Value::Integer(number) => *number > 0,
        Value::Array(all) => !all.is_empty() && all.iter().all(is_yes),
        _ => false,
    }
}

/// The server that is measured: "Redis 7.0.15".
pub fn server_name() -> Outcome<String> {
    let server = start(&[])?;
    let info = server.try_connect()?.try_info("server")?;
    let version = |name: &str, field| Some(format!("{name} {}", info.field(field)?));
    let found = version("Valkey", "valkey_version").or_else(|| version("Redis", "redis_version"));
    Ok(found.ok_or("INFO server has no version")?)
}

/// The processor of this machine, and how many cores of it this process may use.
pub fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let about = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = about
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    let model = model.and_then(|model| model.split_once(':'));
    let model = model.map_or(std::env::consts::ARCH, |(_, model)| model.trim());
    let plural = if cores == 1 { "core" } else { "cores" };
    format!("{cores} {plural} of {model}")
}

/// The load average of the last minute; 0 if the system does not report it.
pub fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = text.split(' ').next().and_then(|load| load.parse().ok());
    load.unwrap_or(0.0)
}
