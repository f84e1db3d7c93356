#!/bin/sh
# Builds the image of packaging/container with buildah, which needs no daemon, and runs what is in
# it: the command, the health check, and the three masters and the exporter of the compose file.
#
# The base image is a Debian root made by debootstrap, so no registry is needed: it has what
# debian:trixie-slim has, and some documentation more. There is no container engine: processes run
# in chroots of the image, with a network of their own. What is not tried: the volumes, the ports
# and the restarts of the compose file, which an engine makes.
#
#   container-test.sh     needs root, buildah and debootstrap; PACKAGE_ROOTS=folder keeps the root
set -eu
cd "$(dirname "$0")/.."

say() { printf 'container-test: %s\n' "$*"; }
die() {
    say "FAILED: $*" >&2
    exit 1
}

stage=${1:-prepare}
if [ "$stage" = prepare ]; then
    [ "$(id -u)" -eq 0 ] || exec sudo PACKAGE_ROOTS="${PACKAGE_ROOTS:-}" "$0"
    for tool in buildah debootstrap python3 ip curl; do
        command -v "$tool" >/dev/null ||
            die "$tool is missing: apt-get install buildah debootstrap python3 iproute2 curl"
    done
    ls "$PWD"/target/package/redislock_*.deb >/dev/null 2>&1 ||
        die "the package is missing: run make package first"
    roots=${PACKAGE_ROOTS:-$PWD/.matrix}
    if [ ! -d "$roots/container-trixie" ]; then
        say "making a root of Debian trixie"
        mkdir -p "$roots"
        rm -rf "$roots/container-trixie.unfinished"
        debootstrap --variant=minbase trixie "$roots/container-trixie.unfinished" >/dev/null ||
            die "debootstrap trixie"
        mv "$roots/container-trixie.unfinished" "$roots/container-trixie"
    fi
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    export work roots
    # Mounts and processes of a run are its own, and end with it.
    unshare --mount --pid --fork --kill-child "$0" build || die "see above"
    say "passed"
    exit 0
fi

# ---- the image -----------------------------------------------------------------------------------

buildah() { command buildah --root "$work/root" --runroot "$work/run" --storage-driver vfs "$@"; }

build() {
    mount --make-rprivate /
    mount -t proc proc /proc
    base=$(buildah from scratch)
    tar -C "$roots/container-trixie" --exclude='./proc/*' -cf "$work/base.tar" .
    buildah add "$base" "$work/base.tar" / >/dev/null
    rm "$work/base.tar"
    buildah commit --rm "$base" debian:trixie-slim >"$work/base.log" 2>&1 || die "the base image"
    buildah bud --isolation chroot --pull-never --format docker -t redislock \
        -f packaging/container/Containerfile . >"$work/build.log" 2>&1 || {
        tail -n 15 "$work/build.log"
        die "the image cannot be built"
    }
    say "the image is built from packaging/container/Containerfile"
}
if [ "$stage" = build ]; then
    build
    # The build needs the network, the masters get one of their own.
    exec unshare --net "$0" run
fi
ip link set lo up

# ---- what the image and the compose file say -----------------------------------------------------

buildah inspect --type image redislock >"$work/image.json"
# image python-expression, with `c` for the configuration of the image
image() {
    python3 -c "import json, shlex, sys
c = json.load(open('$work/image.json'))['Docker']['config']
print($1)"
}
user=$(image "c['User']")
start=$(image "shlex.join(c['Entrypoint'] + c['Cmd'])")
check=$(image "c['Healthcheck']['Test'][1]")
[ "$user" = valkey ] || die "the image runs as $user"

# ---- three masters and the exporter, each with its own files and address -------------------------

# An engine gives each a network of its own, with port 6379; here each has an address of its own.
run_in() {
    root=$1 name=$2
    shift 2
    chroot --userspec="$user:$user" "$root" env PATH=/usr/bin:/usr/sbin:/bin:/sbin "$@" \
        >"$work/$name.log" 2>&1 &
}
# healthy root host: what the engine runs, with the address of this master
healthy() {
    chroot --userspec="$user:$user" "$1" sh -c "$(echo "$check" | sed "s/valkey-cli/& -h $2/")"
}
# until_true seconds what command...
until_true() {
    left=$(($1 * 5)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        left=$((left - 1))
        [ "$left" -gt 0 ] || {
            tail -n 5 "$work"/*.log
            die "$what"
        }
        sleep 0.2
    done
}

masters=$(grep -o '^  master-[0-9]' packaging/container/compose.yml | tr -d ' ')
[ "$(echo "$masters" | wc -l)" -eq 3 ] || die "the compose file has other masters: $masters"
number=0
for master in $masters; do
    number=$((number + 1))
    container=$(buildah from --pull-never redislock)
    mounted=$(buildah mount "$container")
    mount -t proc proc "$mounted/proc"
    for other in 1 2 3; do echo "127.0.1.$other master-$other"; done >>"$mounted/etc/hosts"
    # The last --bind counts.
    eval "run_in '$mounted' '$master' $start --bind 127.0.1.$number"
    until_true 60 "$master is healthy" healthy "$mounted" "127.0.1.$number"
    eval "root_$number=\$mounted"
done
say "three masters run as $user, and their health check passes"
! healthy "$mounted" 127.0.1.9 2>/dev/null || die "the health check passes without a server"
eval "run_in '$mounted' locked $start --bind 127.0.1.4 --dir /tmp --requirepass secret"
guarded() { (export REDISCLI_AUTH=secret && healthy "$mounted" 127.0.1.4); }
until_true 60 "a master with a password is healthy" guarded
! healthy "$mounted" 127.0.1.4 2>/dev/null || die "the health check needs no password"

# shellcheck disable=SC2154 # root_1 is set by eval
exporter=$root_1
nodes=$(sed -n 's/^ *REDLOCK_NODES: //p' packaging/container/compose.yml)
words=$(sed -n 's/^ *entrypoint: \[\(.*\)\]$/\1/p' packaging/container/compose.yml | tr -d ',')
eval "run_in '$exporter' exporter REDLOCK_NODES='$nodes' $words"
up() { [ "$(curl -fs http://127.0.0.1:9936/metrics | grep -c '^redislock_up{.*} 1')" -eq 3 ]; }
until_true 30 "the exporter of the compose file reaches all masters" up
run_in "$exporter" tool env REDLOCK_NODES="$nodes" redlock run --key job --wait 60s -- echo locked
until_true 90 "a lock is acquired over the three masters" grep -qx locked "$work/tool.log"
say "the exporter reaches the masters by the names of the compose file, and a lock is acquired"
