#!/bin/sh
# Changes one expression at a time in the code that decides who holds a lock, and expects a test to fail:
# mutants.sh [lock queue fence quarantine replication_lease quorum]   SHARD=0/4: only the first quarter
#
# Each mutant is first given to the quick tests of its crate; the ones that survive get all of them.
# A mutant that survives both must be explained in sabotage/mutants.md, by its name.
# It works in a copy of the project in target/mutants, so a second run compiles only what has changed.
set -eu
cd "$(dirname "$0")/.."

[ "$#" -gt 0 ] || set -- lock queue fence quarantine replication_lease quorum
scripts/setup.sh mutants
root=$PWD
work=$(realpath -m "${CARGO_TARGET_DIR:-target}")/mutants
tree=$work/tree
export CARGO_TARGET_DIR="$work/build" CARGO_PROFILE_DEV_DEBUG=0 CARGO_INCREMENTAL=1
# The same random cases for every mutant. A case that fails need not be made smaller.
export PROPTEST_RNG_SEED=1 PROPTEST_MAX_SHRINK_ITERS=0

# A run that was stopped leaves a mutant in the copy.
mkdir -p "$tree"
find "$tree" -type f ! -path "$tree/Cargo.lock" -name '*.rs' -delete
git ls-files -z --cached --others --exclude-standard | tar --null --ignore-failed-read -cf - -T - | tar -C "$tree" -xf -

# Left out: what tests the tests, what is slow and about other code, and, but for its own part, the replication lease.
elsewhere="--skip very_many --skip every_planted_bug --skip every_wrong_rule --skip every_single_changed_byte"
models="--skip no_order_of_events --skip nor_if_one_replica --skip neither_with_two_nodes"
# shellcheck disable=SC2086 # they are words
core() {
    case $part in replication_lease) others= ;; *) others="--skip replication" ;; esac
    PROPTEST_CASES=64 mutate --baseline run "$@" -p redislock-core -- --lib --test main -- $elsewhere $models $others
    [ -s "$out/mutants.out/missed.txt" ] || return 0
    echo "$part: $(wc -l <"$out/mutants.out/missed.txt") survive the quick tests; now all of them"
    PROPTEST_CASES=512 mutate --baseline skip --iterate "$@" -p redislock-core -- --lib --test main -- $elsewhere $others
}
client() { mutate --baseline run "$@" -p redislock-client -- --lib; }

# A mutant that never ends counts as caught. Exit codes 2 and 3 say that some survived or did not end.
mutate() {
    code=0
    (cd "$tree" && cargo mutants --in-place --no-config --no-times --colors never \
        --timeout 300 --build-timeout 600 ${SHARD:+--shard "$SHARD"} --output "$out" "$@") || code=$?
    case $code in 0 | 2 | 3) ;; *) exit "$code" ;; esac
}

count() { cat "$out"/mutants.out*/"$1".txt | wc -l; }

failed=
for part; do
    out=$work/$part
    rm -rf "$out"
    mkdir -p "$out"
    echo "mutants of $part"
    case $part in
    quorum) client -f client/src/quorum.rs ;;
    lock) core -f 'core/src/lock/*.rs' ;;
    *) core -f "core/src/$part.rs" ;;
    esac
    # The place of a mutant changes with every line above it: only file and change count.
    sed -E 's/:[0-9]+:[0-9]+: /: /' "$out/mutants.out/missed.txt" | sort | uniq -c >"$out/survivors"
    while read -r times name; do
        explained=$(grep -cF "\`$name\`" "$root/sabotage/mutants.md" || true)
        [ "$times" -le "$explained" ] || {
            echo "NOT CAUGHT and not explained: $name"
            failed=yes
        }
    done <"$out/survivors"
    # With a second round, the first one is in mutants.out.old.
    echo "$part: $(count caught) caught, $(count timeout) do not end, $(count unviable) do not compile," \
        "$(wc -l <"$out/mutants.out/missed.txt") survive"
done
[ -z "$failed" ]
