#!/bin/sh
# Runs tests under tools that see errors of memory: sanitize.sh [miri address valgrind]
#
#   miri      the unit tests of core, in an interpreter that finds undefined behaviour; large
#             counts in these tests are smaller, and each property is tested with PROPTEST_CASES (2)
#   address   the end-to-end tests (TESTS: only these) with AddressSanitizer in server and module, leaks too
#   valgrind  the end-to-end tests of SUBSET (files of tests/) under memcheck, leaks too
#
# The server of `address` is built from the source package of Debian or Ubuntu. What is built and downloaded
# is in target/sanitize; the sources of the system are only read.
set -eu
cd "$(dirname "$0")/.."

[ "$#" -gt 0 ] || set -- miri address valgrind
SUBSET=${SUBSET:-acquire extend release shared fences payloads saved_forms persistence}
work=$(realpath -m "${CARGO_TARGET_DIR:-target}")/sanitize
reports=$work/reports
mkdir -p "$work"
export REDISLOCK_LEAK_CHECK=1
say() { printf 'sanitize: %s\n' "$*"; }

# Every process of a server writes a file of its own if it finds something.
fail_on_reports() {
    unknown=0
    for report in "$reports"/*; do
        [ -s "$report" ] || continue
        # Other lines than that a request for memory was refused. The server asks for as much as a malformed payload
        # names, and expects that it may get none.
        found=$(grep -v 'WARNING: AddressSanitizer failed to allocate' "$report" | grep -c 'Sanitizer' || true)
        if [ "$1" = address ] && [ "$found" -eq 0 ]; then
            continue
        fi
        # The checker itself ends now and then while it looks for leaks: it says nothing of the server then.
        if grep -q 'LeakSanitizer has encountered a fatal error' "$report" &&
            ! grep -q -e 'ERROR: AddressSanitizer' -e 'detected memory leaks' "$report"; then
            unknown=$((unknown + 1))
            continue
        fi
        head -n 60 "$report"
        say "$1: FAILED, see $reports"
        exit 1
    done
    if [ "$unknown" -gt 0 ]; then
        say "$1: no error, no leak; leaks of $unknown of all server processes could not be looked for"
    else
        say "$1: no error, no leak"
    fi
}

miri() {
    say "miri: core"
    MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=${PROPTEST_CASES:-2} CARGO_TARGET_DIR="$work/miri" \
        cargo +nightly miri test -p redislock-core --lib
}

# A private configuration of apt: the system's sources, but for source packages.
source_of_redis() {
    mkdir -p "$work/apt/lists/partial" "$work/apt/cache/archives/partial"
    # shellcheck disable=SC2016 # apt replaces these
    apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
        sort -u | sed 's/^/deb-src /' >"$work/apt/sources.list"
    for step in update 'source redis'; do
        # shellcheck disable=SC2086 # step is words
        (cd "$work" && apt-get -qq -o Dir::Etc::SourceList="$work/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null \
            -o Dir::State::Lists="$work/apt/lists" -o Dir::Cache="$work/apt/cache" -o APT::Sandbox::User=root $step)
    done
    mv "$work"/redis-[0-9]* "$work/source"
}

# build_server NAME SETTINGS...: the server as it is packaged, but with these settings of its Makefile.
build_server() {
    server=$work/$1/src/redis-server
    [ ! -x "$server" ] || return 0
    say "$1: building a server from its source package"
    name=$1
    shift
    [ -e "$work/source" ] || source_of_redis >"$work/apt.log" 2>&1 || { cat "$work/apt.log" && exit 1; }
    rm -rf "${work:?}/$name"
    cp -r "$work/source" "$work/$name"
    make -C "$work/$name" -j"$(nproc)" MALLOC=libc BUILD_TLS=no USE_SYSTEMD=no OPTIMIZATION=-O1 "$@" redis-server \
        >"$work/$name.log" 2>&1 || { tail -n 40 "$work/$name.log" && exit 1; }
}

module_with_address() {
    say "address: building the module"
    host=$(rustc -vV | sed -n 's/^host: //p')
    RUSTFLAGS='-Zsanitizer=address -Cforce-frame-pointers=yes' CARGO_TARGET_DIR="$work/build" CARGO_PROFILE_DEV_OPT_LEVEL=1 \
        CARGO_PROFILE_DEV_DEBUG=line-tables-only cargo +nightly build -q --target "$host" -p redislock-module --lib
    module=$work/build/$host/debug/libredislock.so
}

# What may stay: the payload of a panic, which the module never drops, and what belongs to a module that the
# server has refused and unloaded.
suppress() {
    cat >"$work/leaks" <<LEAKS
leak:rust_start_panic
leak:RM_CreateDataType
leak:moduleLoadFromQueue
LEAKS
}

# A run that finds nothing counts only if the tool finds what is there: the server can leak on demand.
find_a_planted_leak() {
    rm -rf "$reports" && mkdir -p "$reports/server"
    socket=$reports/server/socket
    "$1" --port 0 --unixsocket "$socket" --dir "$reports/server" --save '' --enable-debug-command local --loadmodule "$2" \
        >"$reports/server/log" &
    planted=$!
    # Also after an error or Ctrl-C.
    trap 'kill -9 "$planted" 2>/dev/null || true' EXIT
    trap 'exit 1' HUP INT TERM
    tries=0
    until redis-cli -s "$socket" ping >/dev/null 2>&1 || [ "$tries" -ge 60 ]; do
        tries=$((tries + 1))
        sleep 1
    done
    redis-cli -s "$socket" debug leak planted >/dev/null
    redis-cli -s "$socket" shutdown nosave || true
    wait "$planted" || true
    trap - EXIT HUP INT TERM
    rm -r "$reports/server"
    grep -qs 'debugCommand' "$reports"/* || { say "$3: a planted leak was not found" && exit 1; }
    rm -rf "$reports" && mkdir -p "$reports"
    say "$3: a planted leak is found"
}

# Left out: limits of CPU time, which do not hold in this build, and a test that loads the module itself.
address() {
    # The runtime is in the program itself: a library that a test preloads would come before it.
    build_server address SANITIZER=address REDIS_LDFLAGS=-static-libasan
    module_with_address
    suppress
    export ASAN_OPTIONS="log_path=$reports/address:detect_leaks=1:detect_stack_use_after_return=0:allocator_may_return_null=1"
    export LSAN_OPTIONS="suppressions=$work/leaks:print_suppressions=0"
    find_a_planted_leak "$server" "$module" address
    say "address: the end-to-end tests"
    # shellcheck disable=SC2086 # TESTS is words
    REDIS_SERVER="$server" REDISLOCK_SO="$module" RUST_TEST_THREADS="${RUST_TEST_THREADS:-4}" \
        cargo test -q -p redislock-module --test main -- --skip stalls:: --skip older:: ${TESTS:-} || failed=address
    fail_on_reports address
}

# Module and core without optimization, in a server whose memory comes from the C library. Optimized code may read
# a value that is not set and ignore it afterwards, which memcheck reports.
valgrind() {
    build_server valgrind
    say "valgrind: building the module"
    CARGO_TARGET_DIR=$work/build cargo build -q -p redislock-module --lib \
        --config profile.dev.package.redislock-core.opt-level=0
    module=$work/build/debug/libredislock.so
    cat >"$work/run-by-valgrind" <<RUN
#!/bin/sh
exec valgrind -q --suppressions=$work/source/src/valgrind.sup --leak-check=full --errors-for-leak-kinds=definite \\
    --show-leak-kinds=definite --child-silent-after-fork=yes --log-file=$reports/valgrind.%p $server "\$@"
RUN
    chmod +x "$work/run-by-valgrind"
    find_a_planted_leak "$work/run-by-valgrind" "$module" valgrind
    say "valgrind: the end-to-end tests of $SUBSET"
    # shellcheck disable=SC2046 # they are words
    REDIS_SERVER="$work/run-by-valgrind" REDISLOCK_SO="$module" \
        RUST_TEST_THREADS="${RUST_TEST_THREADS:-2}" cargo test -q -p redislock-module --test main -- \
        $(for file in $SUBSET; do echo "$file::"; done) || failed=valgrind
    fail_on_reports valgrind
}

scripts/setup.sh sanitize
failed=
for part; do
    case $part in
    miri | address | valgrind) "$part" ;;
    *) say "unknown part: $part" && exit 2 ;;
    esac
done
[ -z "$failed" ] || say "tests failed: $failed"
[ -z "$failed" ]
