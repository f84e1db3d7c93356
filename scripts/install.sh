#!/bin/sh
# Installs what `make release` has built: module, tool, man pages, completions, files for systemd,
# Prometheus and Grafana.
#
#   PREFIX=/usr/local   where it will be
#   DESTDIR=            a folder in front of it, for packages
set -eu
cd "$(dirname "$0")/.."
# Servers and users must be able to read what is installed, also if root has a stricter umask.
umask 022

prefix=${PREFIX:-/usr/local}
dest=${DESTDIR:-}
etc=/etc
[ "$prefix" = /usr ] || etc=$prefix/etc
module=${CARGO_TARGET_DIR:-target}/release/redislock.so
tool=${CARGO_TARGET_DIR:-target}/release/redlock

die() {
    printf 'install: %s\n' "$*" >&2
    exit 1
}
for file in "$module" "$tool"; do
    [ -f "$file" ] || die "$file is missing: run make release first"
done
case $prefix in /*) ;; *) die "PREFIX=$prefix must begin with /" ;; esac

# put mode file place: the new file takes the place of the old one in one step, because a running
# server has the old one mapped.
put() {
    mkdir -p "$(dirname "$dest$3")" || die "cannot write to $dest$3: use sudo, or another PREFIX"
    if ! { install -m "$1" "$2" "$dest$3.new" && mv "$dest$3.new" "$dest$3"; }; then
        rm -f "$dest$3.new"
        die "cannot write to $dest$3: use sudo, another PREFIX, or free disk space"
    fi
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# fill mode template place: the same for a file that names paths.
fill() {
    sed "s|@PREFIX@|$prefix|g; s|@ETC@|$etc|g" "$2" >"$scratch/filled"
    put "$1" "$scratch/filled" "$3"
}

# Servers refuse a module that is not executable.
put 755 "$module" "$prefix/lib/redis/modules/redislock.so"
mkdir -p "$dest$prefix/lib/valkey/modules"
ln -sfn ../../redis/modules/redislock.so "$dest$prefix/lib/valkey/modules/redislock.so"
put 755 "$tool" "$prefix/bin/redlock"

man() { put 644 "$scratch/page" "$prefix/share/man/man1/$1.1"; }
"$tool" man >"$scratch/page"
man redlock
for verb in $("$tool" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z]*\) .*/\1/p'); do
    [ "$verb" != help ] || continue
    "$tool" man "$verb" >"$scratch/page"
    man "redlock-$verb"
done

completion() {
    "$tool" completions "$1" >"$scratch/script"
    put 644 "$scratch/script" "$prefix/share/$2"
}
completion bash bash-completion/completions/redlock
# Debian's zsh looks into vendor-completions, others into site-functions.
zsh=site-functions
[ "$prefix" != /usr ] || zsh=vendor-completions
completion zsh "zsh/$zsh/_redlock"
completion fish fish/vendor_completions.d/redlock.fish

fill 644 packaging/redislock.conf "$prefix/share/redislock/redislock.conf"
put 644 packaging/redis_exporter.lua "$prefix/share/redislock/redis_exporter.lua"
put 644 packaging/grafana/redislock.json "$prefix/share/redislock/grafana/redislock.json"
fill 644 packaging/prometheus/scrape.yml "$prefix/share/redislock/prometheus/scrape.yml"
for file in alerts.yml alerts.test.yml; do
    put 644 "packaging/prometheus/$file" "$prefix/share/redislock/prometheus/$file"
done

units=$prefix/lib/systemd/system
for unit in redis-server redis-server@ valkey-server valkey-server@; do
    fill 644 packaging/systemd/redislock.conf "$units/$unit.service.d/redislock.conf"
done
fill 644 packaging/systemd/redlock-exporter.service "$units/redlock-exporter.service"
# An administrator has edited it: it stays.
[ -e "$dest$etc/default/redlock-exporter" ] ||
    put 640 packaging/redlock-exporter.default "$etc/default/redlock-exporter"

for file in README.md CHANGELOG.md SECURITY.md docs/*.md; do
    put 644 "$file" "$prefix/share/doc/redislock/$file"
done
put 644 LICENSE "$prefix/share/doc/redislock/copyright"
case $prefix in /usr | /usr/local) ;; *)
    echo "install: systemd does not read $units: copy what is there to /etc/systemd/system"
    ;;
esac
