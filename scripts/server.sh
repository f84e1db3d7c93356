#!/bin/sh
# Prints the path of the server to use: REDIS_SERVER if it is set, else redis-server, else
# valkey-server of PATH, if it is new enough for the module (Redis 7.0, Valkey 7.2).
# Prints nothing and fails if there is none.
set -u

new_enough() {
    said=$("$1" --version 2>/dev/null) || return 1
    version=${said#*v=}
    major=${version%%.*}
    rest=${version#*.}
    minor=${rest%%.*}
    case $major:$minor in *[!0-9:]* | :* | *:) return 1 ;; esac
    case $said in Valkey*) least=2 ;; *) least=0 ;; esac
    [ "$major" -gt 7 ] || { [ "$major" -eq 7 ] && [ "$minor" -ge "$least" ]; }
}

if [ -n "${REDIS_SERVER:-}" ]; then set -- "$REDIS_SERVER"; else set -- redis-server valkey-server; fi
for server; do
    path=$(command -v "$server") || continue
    if new_enough "$path"; then
        case $path in /*) echo "$path" ;; *) echo "$PWD/$path" ;; esac
        exit 0
    fi
done
exit 1
