#!/usr/bin/env bash
# Runs chaos on real servers: CHAOS_SECONDS, SEED, FAULTS and REPORT say how (see `make help`). bash
# itself counts in SECONDS.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-target}
report=${REPORT:-$target/chaos}
cargo build -q -p redislock-chaos
mkdir -p "$report"

words=(--report "$report")
[ -z "${CHAOS_SECONDS:-}" ] || words+=(--seconds "$CHAOS_SECONDS")
[ -z "${SEED:-}" ] || words+=(--seed "$SEED")
[ -z "${FAULTS:-}" ] || words+=(--faults "$FAULTS")
if command -v go >/dev/null; then
    check=$(realpath "$target")/porcupine-check
    (cd chaos/porcupine && go build -o "$check" .)
    words+=(--porcupine "$check")
elif [ "${CI:-}" = true ]; then
    echo "Go is missing: porcupine cannot check the histories" >&2
    exit 1
else
    echo "Go is missing: the histories are checked by our checker only" >&2
fi
exec "$target/debug/redislock-chaos" run "${words[@]}"
