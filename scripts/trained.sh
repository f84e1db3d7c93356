#!/bin/sh
# Builds ./redislock-trained.so: the module, optimized with a profile of its use. The profile is recorded first,
# with a module that counts which code runs, while `redislock-bench train` uses it on a real server.
# What runs rarely is then moved out of the way: less of the processor's cache is needed for what runs often.
set -eu
cd "$(dirname "$0")/.."

scripts/setup.sh trained
mkdir -p "${CARGO_TARGET_DIR:-target}/trained"
work=$(cd "${CARGO_TARGET_DIR:-target}/trained" && pwd)
host=$(rustc -vV | sed -n 's/^host: //p')
library=$work/$host/release/$(basename "$1")
tools=$(rustc --print target-libdir)/../bin
say() { printf 'trained: %s\n' "$*"; }

# What make build makes changes if, and only if, the code or the compiler has changed.
made_from=$work/made-from
training=bench/src/training.rs
if [ -f redislock-trained.so ] && cat "$1" $training | cmp -s - "$made_from"; then
    say "redislock-trained.so is up to date"
    exit
fi

# With --target, the flags are not for build scripts, which would record profiles, too.
module() { CARGO_TARGET_DIR=$work RUSTFLAGS="${RUSTFLAGS:-} $1" cargo build -q --release -p redislock-module --lib --target "$host"; }

cargo build -q --release -p redislock-bench
say "building the module that records a profile"
rm -rf "$work/profile" && mkdir -p "$work/profile"
module "-Cprofile-generate=$work/profile"
say "recording the profile"
REDISLOCK_SO=$library "${CARGO_TARGET_DIR:-target}/release/redislock-bench" train
"$tools/llvm-profdata" merge -o "$work/module.profdata" "$work/profile"
say "building the module with the profile"
module "-Cprofile-use=$work/module.profdata"
cp "$library" redislock-trained.so.new
mv redislock-trained.so.new redislock-trained.so
cat "$1" $training >"$made_from"
say "done: redislock-trained.so"
