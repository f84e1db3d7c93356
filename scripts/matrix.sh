#!/bin/sh
# Runs the end-to-end tests on one server after the other and prints a table of the results.
#
# REDIS_SERVER=path runs only that one. Otherwise: the server of this machine, and those of Debian.
# Each Debian release is a root folder made by debootstrap in MATRIX_ROOT (default ./.matrix),
# made once and used again.
set -eu
cd "$(dirname "$0")/.."

roots=${MATRIX_ROOT:-$PWD/.matrix}
work=$PWD/target/matrix
table=$work/table
mkdir -p "$work"
: >"$table"

say() { printf 'matrix: %s\n' "$*"; }

as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}

# make_root trixie redis-server valkey-server: makes a Debian release with these servers, once.
make_root() {
    release=$1
    root=$roots/$1
    shift
    lacking=
    for package; do
        [ -x "$root/usr/bin/$package" ] || lacking="$lacking $package"
    done
    [ -n "$lacking" ] || return 0
    if [ -e "$root" ]; then
        say "$root exists but lacks$lacking: remove it to make it again"
        return 1
    fi
    scripts/setup.sh matrix || return 1
    mkdir -p "$roots"
    as_root rm -rf "$root.unfinished"
    set -- debootstrap --variant=minbase --include="$(echo "$*" | tr ' ' ,)" "$release" "$root.unfinished"
    say "as root: $*"
    if ! as_root "$@" >"$work/debootstrap-$release.log" 2>&1; then
        tail -n 5 "$work/debootstrap-$release.log"
        return 1
    fi
    as_root mv "$root.unfinished" "$root"
}

# server_in trixie valkey-server: writes a script that starts that server with the loader and the
# libraries of its own release. Without chroot, paths stay the same and root is not needed.
server_in() {
    root=$roots/$1
    for loader in "$root"/lib64/ld-linux*.so.? "$root"/lib/ld-linux*.so.?; do
        [ ! -e "$loader" ] || break
    done
    for libraries in "$root"/usr/lib/*-linux-gnu*; do
        [ ! -d "$libraries" ] || break
    done
    script=$work/$1-$2
    cat >"$script" <<SCRIPT
#!/bin/sh
exec '$loader' --library-path '$libraries:$root/usr/lib' '$root/usr/bin/$2' "\$@"
SCRIPT
    chmod +x "$script"
    echo "$script"
}

version_of() { "$1" --version | sed 's/ server v=/ /; s/ sha=.*//'; }

# run_against path where: runs the end-to-end tests, keeps their output, adds a line to the table.
run_against() {
    version=$(version_of "$1")
    log=$work/$(echo "$version" | tr ' ' -).log
    say "$version ($2)"
    { REDIS_SERVER=$1 cargo test -p redislock-module --test main 2>&1 && echo 'suite: passed'; } | tee "$log"
    verdict=FAILED
    [ "$(tail -n 1 "$log")" != 'suite: passed' ] || verdict=passed
    counts=$(sed -n 's/^test result: [^.]*\. \([0-9]* passed; [0-9]* failed\).*/\1/p' "$log")
    printf '%-20s %-16s %-7s %s\n' "$version" "$2" "$verdict" "${counts:-did not run}" >>"$table"
}

# run_release trixie redis-server valkey-server: runs the tests on these servers of the release.
run_release() {
    if ! make_root "$@"; then
        printf '%-20s %-16s %-7s %s\n' "-" "Debian $1" FAILED "no root folder" >>"$table"
        return
    fi
    release=$1
    shift
    for package; do
        run_against "$(server_in "$release" "$package")" "Debian $release"
    done
}

# refused_by bullseye redis-server: a server that is too old refuses the module with one line.
# It uses the libraries of this machine, and only the missing ones of its own release.
refused_by() {
    make_root "$@" || return 0
    root=$roots/$1
    for libraries in "$root"/usr/lib/*-linux-gnu*; do
        [ ! -d "$libraries" ] || break
    done
    script=$work/$1-$2
    cat >"$script" <<SCRIPT
#!/bin/sh
LD_LIBRARY_PATH='/lib/${libraries##*/}:/usr/lib/${libraries##*/}:$libraries' exec '$root/usr/bin/$2' "\$@"
SCRIPT
    chmod +x "$script"
    version=$(version_of "$script")
    say "$version (Debian $1), which is too old"
    verdict=FAILED
    # It must end by itself with an error, not by a signal.
    module=$PWD/redislock.so
    status=0
    (cd "$work" && "$script" --port 0 --unixsocket too-old.sock --save '' --loadmodule "$module") >"$work/too-old.log" 2>&1 ||
        status=$?
    grep redislock "$work/too-old.log" || true
    if [ "$status" -eq 1 ] && [ "$(grep -c 'redislock was not loaded: this server is too old' "$work/too-old.log")" -eq 1 ]; then
        verdict=passed
    fi
    printf '%-20s %-16s %-7s %s\n' "$version" "Debian $1" "$verdict" "the module refuses to be loaded" >>"$table"
}

if [ -n "${REDIS_SERVER:-}" ]; then
    run_against "$(scripts/server.sh)" REDIS_SERVER
else
    here=$(scripts/server.sh)
    run_against "$here" "this machine"
    case $(version_of "$here") in
    Redis\ 7.0.*) ;;
    *) run_release bookworm redis-server ;;
    esac
    run_release trixie redis-server valkey-server
    run_release sid valkey-server
    refused_by bullseye redis-server
fi

echo
cat "$table"
! grep -q FAILED "$table"
