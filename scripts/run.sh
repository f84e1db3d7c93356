#!/bin/sh
# Starts a server with the module and redis.conf in the foreground, on PORT, or on the first free
# port from 6379.
set -eu
cd "$(dirname "$0")/.."

die() {
    printf 'run: %s\n' "$*" >&2
    exit 1
}

# Is this port in use? Reads the kernel's own table if there is one, because tools may be missing.
taken() {
    if [ -r /proc/net/tcp ]; then
        cat /proc/net/tcp /proc/net/tcp6 2>/dev/null |
            awk -v port="$(printf ':%04X' "$1")" '$4 == "0A" && substr($2, length($2) - 4) == port { found = 1 } END { exit !found }'
    else
        netstat -an | grep -q "[.:]$1 .*LISTEN"
    fi
}

port=${PORT:-}
if [ -n "$port" ]; then
    case $port in *[!0-9]* | ??????*) die "PORT=$port is not a port: give a number from 1 to 65535" ;; esac
    if [ "$port" -lt 1 ] || [ "$port" -gt 65535 ]; then
        die "PORT=$port is not a port: give a number from 1 to 65535"
    fi
    ! taken "$port" || die "port $port is in use: choose another one, make run PORT=..."
else
    port=6379
    while taken "$port"; do
        port=$((port + 1))
        [ "$port" -le 6479 ] || die "no free port from 6379 to 6479, choose one: make run PORT=..."
    done
fi

# Two servers must not use one folder.
data=data
[ "$port" -eq 6379 ] || data=data-$port
mkdir -p data "$data"

server=$(scripts/server.sh)
client=redis-cli
command -v redis-cli >/dev/null || client=valkey-cli
cat <<EOT
$("$server" --version | sed 's/ sha=.*//'), port $port, data in ./$data. Ctrl-C stops it. Try in another window:

  $client -p $port LOCK.ACQUIRE door alice 60000
  $client -p $port LOCK.INFO door
  $client -p $port LOCK.RELEASE door alice

EOT
exec "$server" ./redis.conf --port "$port" --dir "$PWD/$data"
