#!/bin/sh
# Makes target/release/redislock.so, the module that is installed: with a recorded profile (see trained.sh), or, with
# TRAINED=no, without rustup or with musl, the one of `make build`.
set -eu
cd "$(dirname "$0")/.."

released=${CARGO_TARGET_DIR:-target}/release/redislock.so
# If something fails, no older module is installed.
rm -f "$released"
module=redislock.so
plain() { echo "release: $1, the module is built without a profile: it needs about a tenth more CPU time"; }
if [ "${TRAINED:-}" = no ]; then
    plain "with TRAINED=no"
elif ! command -v rustup >/dev/null; then
    plain "without rustup"
elif rustc -vV | grep -q '^host: .*-musl$'; then
    # The flags of a profile replace those of .cargo/config.toml, which bindgen needs there.
    plain "with musl"
else
    scripts/trained.sh "$1"
    module=redislock-trained.so
fi
cp "$module" "$released.new"
mv "$released.new" "$released"
