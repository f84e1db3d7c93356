//! What to do about a node that does not reply as it should.

/// Says what to change, by what the problem says.
pub fn remedy(problem: &str) -> &'static str {
    let has = |word: &&str| problem.contains(*word);
    if has(&"module") {
        "load the module of this release: loadmodule /path/to/redislock.so in redis.conf, then \
         restart the server"
    } else if ["NOPERM", "NOAUTH", "WRONGPASS"].iter().any(has) {
        "check the user and the password in the URL; the user needs the commands LOCK.NODE and INFO"
    } else {
        "check the address, that the server runs, and that no firewall drops the connection"
    }
}
