//! What to do about a node that does not reply as it should.

/// Says what to change, by what the problem says.
pub fn remedy(problem: &str) -> &'static str {
    known(problem).unwrap_or(
        "check the address, that the server runs, and that no firewall drops the connection",
    )
}

/// The same, for problems that say more than that there is no reply.
pub fn known(problem: &str) -> Option<&'static str> {
    const USER: &str = "check the user and the password in the URL; the user needs the \
                        commands LOCK.NODE and INFO";
    const ADVICE: [(&str, &str); 9] = [
        (
            "module",
            "load the module of this release: loadmodule /path/to/redislock.so in redis.conf, \
             then restart the server",
        ),
        ("NOPERM", USER),
        ("NOAUTH", USER),
        ("WRONGPASS", USER),
        (
            "protected mode",
            "give the users of the server passwords and name them in the URL; only then set \
             protected-mode no",
        ),
        (
            "max number of clients",
            "raise maxclients and the limit of open files (LimitNOFILE, ulimit -n), or lower \
             lock.max-waiters",
        ),
        (
            "LOADING",
            "wait until the server has loaded its data (INFO persistence)",
        ),
        (
            "certificate",
            "give the certificate of the authority with --ca-cert (REDLOCK_CA_CERT); the host of \
             the URL must be in the certificate of the server",
        ),
        (
            "broken pipe",
            "check the port: a port with TLS needs a rediss:// URL, and a port without it redis://",
        ),
    ];
    let found = ADVICE.iter().find(|(word, _)| problem.contains(word));
    found.map(|(_, advice)| *advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_says_decides_the_advice() {
        for (problem, advice) in [
            ("the module is not loaded", "loadmodule"),
            ("refused: WRONGPASS invalid", "password in the URL"),
            (
                "refused: DENIED Redis is running in protected mode",
                "users",
            ),
            ("refused: ERR max number of clients reached", "maxclients"),
            ("refused: LOADING Redis is loading", "wait until"),
            (
                "unreachable: invalid peer certificate: UnknownIssuer",
                "--ca-cert",
            ),
            ("unreachable: broken pipe", "rediss://"),
            ("no reply within 500 ms", "firewall"),
        ] {
            assert!(remedy(problem).contains(advice), "{problem}");
        }
    }
}
