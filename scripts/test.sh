#!/bin/sh
# Runs every test. Most tests wait for a lease or a server, so three groups of test programs run side
# by side. The first group is shown as it runs, the others when they have ended.
set -u
cd "$(dirname "$0")/.." || exit

REDIS_SERVER=$(scripts/server.sh)
RUST_TEST_THREADS=${RUST_TEST_THREADS:-4}
export REDIS_SERVER RUST_TEST_THREADS
output=$(mktemp -d) || exit
trap 'rm -rf "$output"' EXIT
trap 'exit 1' HUP INT TERM

# Always of the whole workspace: a part of it would be built again, with other features.
run() { # name, programs
    name=$1
    shift
    { cargo test --workspace --no-fail-fast "$@" || echo "$name" >>"$output/failed"; } 2>&1
}

run build --no-run | tee "$output/built"
[ ! -e "$output/failed" ] || exit 1
# Tests of panics build this module themselves. If it is built now, they do not wait for it, and no
# group waits for the lock of cargo.
cargo build -p redislock-module --lib --features failpoints || exit 1
echo "test: modules, clients and tools are tested side by side; clients and tools are shown at the end"
run clients --test servers >"$output/clients" &
{
    run tools --test tool --test demo
    run rest --lib --bins --test simulation --test porcupine
    run documentation --doc
} >"$output/tools" &
run modules --test main | tee "$output/modules"
wait
cat "$output/clients" "$output/tools"

# A program that is in no group would never run.
built=$(grep -c '^ *Executable ' "$output/built")
ran=$(cat "$output/modules" "$output/clients" "$output/tools" | grep -c '^ *Running ')
if [ "$built" -ne "$ran" ]; then
    echo "test: $built test programs were built and $ran ran: add the others to a group of scripts/test.sh" >&2
    exit 1
fi
if [ -s "$output/failed" ]; then
    echo "test: failed: $(tr '\n' ' ' <"$output/failed")" >&2
    exit 1
fi
echo "test: all $ran test programs passed"
