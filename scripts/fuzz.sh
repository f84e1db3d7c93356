#!/bin/sh
# Fuzzes what reads input: fuzz.sh [seconds for each target] [target ...]
#
# New inputs are collected in target/fuzz/corpus; fuzz/corpus has the ones to start with. An input that fails is
# kept in fuzz/artifacts, and `cargo +nightly fuzz run TARGET FILE` repeats it. Below each target are its shares of
# inputs that reach what it tests (fuzz/share.rs): one below its floor fails too, and no single input is its cause.
set -eu
cd "$(dirname "$0")/.."

seconds=${1:-600}
[ "$#" -eq 0 ] || shift
[ "$#" -gt 0 ] || set -- saved_form effects replies restore arguments
scripts/setup.sh fuzz
work=$PWD/target/fuzz
# The module for the targets that start a server.
export REDISLOCK_SO="$PWD/redislock.so" REDIS_SERVER="${REDIS_SERVER:-$(scripts/server.sh)}"
export CARGO_TARGET_DIR="$work/build"
cargo +nightly fuzz build

# libFuzzer ends without a clean-up: the folders of the servers would stay.
TMPDIR=$work/tmp
export TMPDIR
clean_up() {
    rm -rf "$TMPDIR" || :
    find fuzz/artifacts -type d -empty -delete 2>/dev/null || :
}
trap clean_up EXIT
trap 'exit 1' HUP INT TERM
rm -rf "$TMPDIR"
mkdir -p "$TMPDIR"

# `cargo test` would build every dependency once more, and this file has none.
rustc +nightly --edition 2024 --test fuzz/share.rs -o "$work/share"
"$work/share" --quiet >"$work/share.log" 2>&1 || {
    cat "$work/share.log"
    echo "FAILED: the tests of fuzz/share.rs"
    exit 1
}

# The last line of each share in a log, and whether its floor was checked.
shares() {
    awk '
        !sub(/^share: /, "") || / only [0-9]+ of / { next }
        { what = $0; sub(/:.*/, "", what) }
        !(what in last) { order[++count] = what }
        { last[what] = $0 }
        END {
            for (at = 1; at <= count; at++) print "            " last[order[at]]
            if (!count) print "            too few inputs: no share was counted, and NO FLOOR WAS CHECKED"
        }' "$1"
}

failed=
for target; do
    mkdir -p "$work/corpus/$target" "fuzz/artifacts/$target"
    log=$work/$target.log
    # The parser of the server sees the same bytes again and again: short inputs find more.
    if cargo +nightly fuzz run "$target" "$work/corpus/$target" "fuzz/corpus/$target" -- \
        -max_total_time="$seconds" -timeout=60 -print_final_stats=1 -max_len=4096 >"$log" 2>&1; then
        runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
        covered=$(sed -n 's/.*cov: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)
        printf '%-11s %s s, %s inputs, %s edges covered: nothing found\n' "$target" "$seconds" "$runs" "$covered"
    else
        failed="$failed $target"
        tail -n 40 "$log"
        printf '%-11s FAILED: %s\n' "$target" "$log"
        grep '^share: .* only ' "$log" || :
    fi
    shares "$log"
done
[ -z "$failed" ]
