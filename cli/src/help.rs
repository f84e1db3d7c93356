//! The longer texts of `--help` and of the man pages.

pub const OVERVIEW: &str = "\
Examples:
  export REDLOCK_NODES=redis://10.0.0.1,redis://10.0.0.2,redis://10.0.0.3

  redlock run --key nightly -- ./backup.sh     # one host at a time
  redlock run -n --key nightly -- ./backup.sh  # skip it if another host runs it
  redlock status nightly                       # who holds it, who waits
  redlock ls 'backup:*'                        # all locks whose names match
  redlock nodes                                # can every node grant locks?
  redlock top                                  # nodes and locks, live
  redlock serve                                # the same on a web page

One node is enough to start with. With three or five independent masters,
the lock survives the failure of one or two. List the same nodes in the
same order on every host.

Exit codes:
  run: the exit code of the command, or 128 + n if signal n ended it
  1    status --check: the lock is held; force: not confirmed;
       doctor: warnings (2: errors)
  64   usage error
  69   too few nodes can be reached or can grant locks
  70   the lock was lost
  74   input/output error
  75   the lock is held by another client
  126  the command cannot be executed
  127  command not found";

pub const NODE: &str = "\
A master: redis://[user:password@]host[:port][/db], rediss:// for TLS, unix:///path. Repeat the \
option, or separate URLs with commas. For Sentinel, use one URL \
redis+sentinel://host[:port][,host...]/NAME[/db], for a cluster one URL \
redis+cluster://host[:port][,host...] (rediss+ for TLS) [default: REDLOCK_NODES, separated by \
commas or spaces]";

pub const OWNER: &str = "The name that other clients see as the holder [default: user@host:pid]";

pub const RUN: &str = "\
Examples:
  redlock run --node redis://127.0.0.1 --key nightly -- ./backup.sh --full
  redlock run --key report --ttl 10s --wait forever -- make report
  redlock run --key cache --shared -- ./read-only-job
  redlock run --key gpu --limit 4 -- ./train    # at most four at a time
  redlock run --key db -- sh -c 'migrate --fence \"$REDLOCK_FENCE\"'
  redlock run -nq --min-hold 50s --key hourly -- ./job
                                # from cron on several hosts: one runs it

The command gets REDLOCK_KEY and REDLOCK_FENCE. Each holder has a higher
fence than the holders before it. A resource that stores the highest fence
it has seen can refuse a holder that lost its lock without noticing.

If too few nodes confirm the lock, the process group of the command gets
SIGTERM and then SIGKILL, before the lease ends and another client can
acquire the lock. If the lock is already gone (an administrator released
it), the group gets both at once.";

pub const ACQUIRE: &str = "\
Examples:
  eval \"$(redlock acquire --key nightly --ttl 10m)\" || exit
  ... the work, at most ten minutes ...
  redlock release

The first line sets REDLOCK_KEY, REDLOCK_TOKEN and REDLOCK_FENCE; `extend`
and `release` read them. If the lock is not acquired, standard output is
`false`, so that `|| exit` (or `set -e`) ends the script.

Nothing renews this lock, and nothing stops the script when the lease
ends: use `redlock run` wherever you can wrap a command. Do not pass the
token on a command line: every user of the host can read it.";

pub const EXTEND: &str = "\
Examples:
  redlock extend --ttl 10m || exit

Reads the token from REDLOCK_TOKEN or from standard input. The exit code
is 70 if the lock is no longer held.";

pub const RELEASE: &str = "\
Examples:
  redlock release
  jq -r .token hold.json | redlock release --key nightly

Reads the token from REDLOCK_TOKEN or from standard input. The exit code
is 70 if the lock is no longer held.";

pub const STATUS: &str = "\
Examples:
  redlock status nightly
  redlock status nightly --json | jq -r '.holders[].owner'
  redlock status --check -q nightly && echo free

All nodes are queried. The lock is held if a majority of all nodes
reports a holder, partly held if fewer do (it is being acquired or
released, or a client crashed), free, or unknown if too few nodes reply.
Without --check, the exit code is 0 in all these cases.";

pub const LS: &str = "\
Examples:
  redlock ls
  redlock ls 'backup:*'                       # quoted for the shell
  redlock ls --json | jq -r '.locks[].key'

This scans all keys of all nodes: do not run it in a loop.";

pub const FORCE: &str = "\
Examples:
  redlock force nightly                       # asks for confirmation
  redlock force nightly --yes                 # for scripts

The holder is not stopped: it notices at its next renewal, and another
client can acquire the lock before that. It is safer to end the holder
itself; `redlock status` shows who it is.";

pub const NODES: &str = "\
Examples:
  redlock nodes
  redlock nodes --node redis://10.0.0.1 redis://10.0.0.2 --json

The exit code is 69 unless every node can grant locks now.

QUARANTINE: the time until the node grants locks again; for example, it
was restarted and may have lost locks. DURABLE: yes if a restart does not
lose locks. CLOCK: how far its clock is ahead of the clock of this host.";

pub const DOCTOR: &str = "\
Examples:
  redlock doctor
  redlock doctor --key lock:orders --key lock:stock
  redlock doctor --json | jq -r '.findings[] | .problem'

It checks versions, roles, quarantine and persistence, replicas, eviction,
limits, clocks, reply times and permissions, and changes nothing.

The exit code is 0 if there are no problems, 1 if there are warnings, 2 if
there are errors (locks are not granted, or two clients may hold one
lock), and 69 if no node replies.";

pub const EXPORTER: &str = "\
Examples:
  redlock exporter
  redlock exporter --listen 10.0.0.7:9936     # for a Prometheus elsewhere
  curl http://127.0.0.1:9936/metrics

/metrics serves the metrics of all nodes as OpenMetrics text; /healthz
replies ok while the exporter runs. A node that does not reply has
redislock_up 0, and standard error says why. Reading the metrics needs no
password; they contain addresses, but no keys and no tokens.

The user of the URLs needs the commands LOCK.NODE and INFO.";

pub const TOP: &str = "\
Examples:
  redlock top
  redlock top --filter backup --sort waiters
  redlock top --once                          # print one screen, for a log
  redlock top --once --json | jq .locks

Keys: arrows, PgUp, PgDn, Home, End to move, Enter for one lock, Esc back,
s for the next order, / to filter, f to release a lock by force (asks
first), ? for help, q to quit.

In each second, a node is queried for at most 500 locks and 2,000 keys,
which is less than 1 % of its CPU. With more locks, those on the screen and
those with waiters come first, and the age of the others is shown.

The user of the URLs needs the commands LOCK.NODE, LOCK.INFO, SCAN and INFO,
and LOCK.FORCE for f.";

pub const SERVE: &str = "\
Examples:
  redlock serve                               # http://127.0.0.1:9937/
  redlock serve --notes refused.log           # with the lines of a file
  redlock serve --listen 0.0.0.0:9937 --token-file token \\
    --tls-cert cert.pem --tls-key key.pem     # for other hosts

The page only reads. It shows nodes, locks, holders, waits, and a timeline
of each lock since redlock serve was started. /api/locks and /api/nodes
serve the same data as JSON (parameters of /api/locks: sort, filter,
page), /metrics the metrics of redlock exporter; /healthz replies ok.

An address that other hosts can reach needs a token and TLS. A browser asks
for the token; other clients send Authorization: Bearer TOKEN.

In the file of --notes, a line that begins with # is a heading, and one
that begins with ! is important.

In each second, a node is queried for at most 500 locks and 2,000 keys,
which is less than 1 % of its CPU. The user of the URLs needs the commands
LOCK.NODE, LOCK.INFO, SCAN and INFO.";

pub const COMPLETIONS: &str = "\
Examples:
  redlock completions bash > ~/.local/share/bash-completion/completions/redlock
  redlock completions zsh > ~/.zfunc/_redlock  # a directory of $fpath
  redlock completions fish > ~/.config/fish/completions/redlock.fish";

pub const MAN: &str = "\
Examples:
  redlock man | man -l -
  redlock man run > redlock-run.1             # the page of one subcommand";
