#!/bin/sh
# Makes target/release/redislock.so, the module that is installed: with a recorded profile (see trained.sh), or, with
# TRAINED=no or without llvm-profdata, the one of `make build`.
set -eu
cd "$(dirname "$0")/.."

module=redislock.so
if [ "${TRAINED:-}" = no ]; then
    :
elif scripts/setup.sh trained; then
    scripts/trained.sh "$1"
    module=redislock-trained.so
else
    echo "release: the module is built without a profile: it needs about an eighth more CPU time"
fi
# The old file is removed first: a server may have it mapped.
install -m 755 "$module" "${CARGO_TARGET_DIR:-target}/release/redislock.so"
