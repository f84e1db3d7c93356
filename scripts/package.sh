#!/bin/sh
# Makes target/package/redislock_VERSION_ARCH.deb (where dpkg-deb is installed) and
# redislock-VERSION-linux-MACHINE.tar.gz from what `make release` has built.
# VERSION=... overrides the version of Cargo.toml.
set -eu
cd "$(dirname "$0")/.."
umask 022

version=${VERSION:-$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)}
machine=$(uname -m)
out=${CARGO_TARGET_DIR:-$PWD/target}/package
mkdir -p "$out"
# The container file and `apt install` take every package that is here: keep only this version.
rm -f "$out"/redislock_*.deb "$out"/redislock-*.tar.gz
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT

say() { printf 'package: %s\n' "$*"; }

make_tar() {
    name=redislock-$version-linux-$machine
    PREFIX=/usr/local DESTDIR=$tree/tar scripts/install.sh
    mv "$tree/tar/usr/local" "$tree/$name"
    tar -czf "$out/$name.tar.gz" --owner=0 --group=0 -C "$tree" "$name"
    say "$out/$name.tar.gz"
}

# The oldest C library that has every function that the module and the tool use.
glibc() {
    objdump -T "$1/usr/bin/redlock" "$1/usr/lib/redis/modules/redislock.so" |
        sed -n 's/.*(\{0,1\}GLIBC_\([0-9][0-9.]*\).*/\1/p' | sort -uV | tail -n 1
}

make_deb() {
    root=$tree/deb
    PREFIX=/usr DESTDIR=$root scripts/install.sh
    gzip -9n "$root"/usr/share/man/man1/*.1
    mkdir "$root/DEBIAN"
    for script in preinst postinst prerm postrm; do
        install -m 755 "packaging/debian/$script" "$root/DEBIAN/$script"
    done
    echo /etc/default/redlock-exporter >"$root/DEBIAN/conffiles"
    arch=$(dpkg --print-architecture)
    cat >"$root/DEBIAN/control" <<CONTROL
Package: redislock
Version: $version
Architecture: $arch
Maintainer: redislock developers <redislock@localhost>
Section: database
Priority: optional
Installed-Size: $(du -sk "$root/usr" | cut -f 1)
Depends: libc6 (>= $(glibc "$root")), libgcc-s1
Recommends: redis-server (>= 5:7.0) | valkey-server (>= 7.2)
Suggests: prometheus
Description: distributed locks as a native ability of Redis and Valkey
 A module (LOCK.ACQUIRE, LOCK.RELEASE, LOCK.EXTEND and others) with fair
 waiting, fencing tokens and a quarantine after possible data loss, and
 redlock, a tool for the shell: run a command under a lock, check a
 deployment, export metrics for Prometheus.
CONTROL
    dpkg-deb --root-owner-group --build "$root" "$out/redislock_${version}_$arch.deb" >/dev/null
    say "$out/redislock_${version}_$arch.deb"
}

make_tar
if command -v dpkg-deb >/dev/null; then make_deb; else say "no dpkg-deb here: no .deb is made"; fi
