#!/bin/sh
# Installs the .deb of target/package in Debian roots made by debootstrap, and does there what an
# administrator does: install, load, alert, break, repair, upgrade with locks held, remove.
# There is no systemd in such a root. The server runs under what its unit file and the drop-ins say:
# NoExecPaths, ExecPaths, ProtectSystem, ReadWritePaths, PrivateTmp, User, NoNewPrivileges.
# SystemCallFilter, MemoryDenyWriteExecute and PrivateDevices are not applied.
#
#   package-test.sh trixie bookworm     needs root; PACKAGE_ROOTS=folder keeps the roots (./.matrix)
set -eu
cd "$(dirname "$0")/.."

say() { printf 'package-test: %s\n' "$*"; }
die() {
    say "FAILED: $*" >&2
    exit 1
}

roots=${PACKAGE_ROOTS:-$PWD/.matrix}
out=${CARGO_TARGET_DIR:-$PWD/target}/package
inside=$PWD/scripts/package-test-inside.sh

[ "$(id -u)" -eq 0 ] || exec sudo PACKAGE_ROOTS="$roots" CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-}" "$0" "$@"
[ $# -gt 0 ] || die "name one or more Debian releases, as in: package-test.sh trixie bookworm"
for tool in debootstrap dpkg-deb ip curl setpriv unshare; do
    command -v "$tool" >/dev/null || die "$tool is missing: apt-get install debootstrap dpkg iproute2 curl util-linux"
done

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
deb=$out/redislock_${version}_$(dpkg --print-architecture).deb
[ -f "$deb" ] || die "$deb is missing: run make package first"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# A newer build: the same code that calls itself by the next version.
newer=${version%.*}.$((${version##*.} + 1))
[ ${#newer} -eq ${#version} ] || die "the version $newer does not fit in the place of $version"
dpkg-deb -R "$deb" "$work/newer"
old=$(echo "$version" | sed 's/\./\\./g')
for file in usr/lib/redis/modules/redislock.so usr/bin/redlock DEBIAN/control; do
    LC_ALL=C sed -i "s/$old/$newer/g" "$work/newer/$file"
done
dpkg-deb --root-owner-group --build "$work/newer" "$work/newer.deb" >/dev/null

make_root() {
    [ ! -d "$roots/package-$1" ] || return 0
    servers=redis-server
    [ "$1" = bookworm ] || servers=redis-server,valkey-server
    mkdir -p "$roots"
    rm -rf "$roots/package-$1.unfinished"
    say "making a root of Debian $1"
    debootstrap --variant=minbase --include="$servers,prometheus,prometheus-redis-exporter" \
        "$1" "$roots/package-$1.unfinished" >"$work/debootstrap.log" 2>&1 || {
        tail -n 5 "$work/debootstrap.log"
        die "debootstrap $1"
    }
    mv "$roots/package-$1.unfinished" "$roots/package-$1"
}

for release; do
    make_root "$release"
    for server in redis valkey; do
        [ -x "$roots/package-$release/usr/bin/$server-server" ] || continue
        say "Debian $release, $server-server"
        # Mounts, ports and processes of a run are its own, and end with it.
        unshare --mount --net --pid --fork --kill-child "$inside" \
            "$roots/package-$release" "$server" "$deb" "$work/newer.deb" "$newer" ||
            die "Debian $release, $server-server"
    done
done
say "passed"
