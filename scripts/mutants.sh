#!/bin/sh
# Changes one expression at a time in the code that decides who holds a lock, and expects a test to fail:
# mutants.sh [lock queue steady fence quarantine replication_lease quorum]   SHARD=0/4: only the first quarter
#
# Each mutant is first given to the unit tests of its part, which are built and run in seconds; those that
# survive get all tests of the crate. A mutant that survives both must be explained in sabotage/mutants.md, by its name.
# It works in a copy of the project in target/mutants, so a second run compiles only what has changed.
set -eu
cd "$(dirname "$0")/.."

[ "$#" -gt 0 ] || set -- lock queue steady fence quarantine replication_lease quorum
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
# The copy keeps the times of the project, which are older than a mutant that was built last: build these again.
find "$tree/core/src" "$tree/client/src" -name '*.rs' -exec touch {} +
# Most mutants end with the first tests: compiling takes longer than running, even without optimization.
sed -i '/^\[profile\.dev\.package\./,/^$/ s/^opt-level = .*/opt-level = 0/' "$tree/Cargo.toml"

# Left out: what tests the tests, what is slow and about other code, and, but for its own part, the replication lease.
elsewhere="--skip very_many --skip every_planted_bug --skip every_wrong_rule --skip every_single_changed_byte"
# What is to be tested is said by -C, because only that counts when a mutant is built, too.
# shellcheck disable=SC2086 # they are words
core() {
    case $part in replication_lease) others= ;; *) others="--skip replication" ;; esac
    quickly -p redislock-core "$@" -C --lib -- -- "$part::"
    slowly -p redislock-core "$@" -C --lib -C --test=main -- -- $elsewhere $others
}
client() {
    quickly -p redislock-client -f "$1" -C --lib -- -- "$part::tests"
    slowly -p redislock-client -f "$1" -C --lib
}

# All mutants of a part, or one shard of them. One that never ends counts as caught.
quickly() { mutate --baseline run --timeout 60 ${SHARD:+--shard "$SHARD"} "$@"; }

# Those that survived. (With --iterate, --shard would choose among them once more.)
slowly() {
    [ -s "$out/mutants.out/missed.txt" ] || return 0
    echo "$part: $(wc -l <"$out/mutants.out/missed.txt") survive the unit tests; now all of them"
    these=$(sed 's/[][\\.*+?(){}|^$]/\\&/g; s/.*/^&$/' "$out/mutants.out/missed.txt" | paste -sd '|')
    mutate --baseline skip --timeout 300 --re "$these" "$@"
}

# Exit codes 2 and 3 say that some survived or did not end.
mutate() {
    code=0
    (cd "$tree" && cargo mutants --in-place --no-config --no-times --colors never \
        --build-timeout 600 --output "$out" "$@") || code=$?
    case $code in 0 | 2 | 3) ;; *) exit "$code" ;; esac
}

# The second round also runs some mutants of the first one: cargo-mutants selects changes of fields by no name.
count() { sort -u "$out"/mutants.out*/"$1".txt | wc -l; }

failed=
for part; do
    out=$work/$part
    rm -rf "$out"
    mkdir -p "$out"
    echo "mutants of $part"
    case $part in
    quorum) client client/src/quorum.rs ;;
    lock) core -f 'core/src/lock/*.rs' ;;
    queue) core -f core/src/queue.rs -f core/src/queue/arrivals.rs ;;
    *) core -f "core/src/$part.rs" ;;
    esac
    # The place of a mutant changes with every line above it: only file and change count.
    sed -E 's/:[0-9]+:[0-9]+: /: /' "$out/mutants.out/missed.txt" | sort | uniq -c >"$out/survivors"
    while read -r times name; do
        # In a table of Markdown, | is written as \|.
        explained=$(sed 's/\\|/|/g' "$root/sabotage/mutants.md" | grep -cF "\`$name\`" || true)
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
