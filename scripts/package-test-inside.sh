#!/bin/sh
# The steps of package-test.sh, in namespaces of their own: root server deb newer.deb newer-version.
set -eu
cd "$(dirname "$0")/.."
lower=$1 server=$2 deb=$3 newer_deb=$4 newer=$5

ok() { printf '  ok: %s\n' "$*"; }
fail() {
    printf '  FAILED: %s\n' "$*" >&2
    for log in "$work"/*.log "$root$server_log"; do
        [ ! -s "$log" ] || { echo "--- $log" >&2 && tail -n 15 "$log" >&2; }
    done
    exit 1
}
# until_true seconds what command...
until_true() {
    left=$(($1 * 5)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        left=$((left - 1))
        [ "$left" -gt 0 ] || fail "$what"
        sleep 0.2
    done
}

# ---- the root: nothing that happens in it is kept ------------------------------------------------

mount --make-rprivate /
mount -t proc proc /proc
work=/tmp/redislock-package-test
mkdir -p "$work"
mount -t tmpfs tmpfs "$work"
mkdir "$work/upper" "$work/lower" "$work/root"
mount -t overlay overlay -o "lowerdir=$lower,upperdir=$work/upper,workdir=$work/lower" "$work/root"
root=$work/root
mount -t proc proc "$root/proc"
ip link set lo up
cp "$deb" "$root/root/redislock.deb"
cp "$newer_deb" "$root/root/newer.deb"

inside() { chroot "$root" env PATH=/usr/bin:/usr/sbin:/bin:/sbin HOME=/root "$@"; }
cli() { inside "$server-cli" "$@"; }
conf=/etc/$server/$server.conf
server_log=/var/log/$server/$server-server.log
modules=/usr/lib/redis/modules
[ "$server" = redis ] || modules=/usr/lib/valkey/modules

# ---- the service, as its unit file and the drop-ins restrict it ----------------------------------

unit_files() {
    for folder in /usr/lib/systemd/system /usr/local/lib/systemd/system; do
        unit=$root$folder/$server-server.service
        cat "$unit" "$unit.d"/*.conf 2>/dev/null || true
    done
}
# The paths of a setting, without links.
unit_paths() {
    for path in $(unit_files | sed -n "s/^$1=//p" | tr ' ' '\n' | sed 's/^-//'); do
        inside readlink -e "$path" || true
    done | sort -u
}
unit_value() { unit_files | sed -n "s/^$1=//p" | tail -n 1; }

start_server() {
    [ "$(unit_paths NoExecPaths)" = / ] ||
        fail "the unit file has no NoExecPaths=/: nothing to show here"
    [ "$(unit_value ProtectSystem)" = strict ] || fail "the unit file has no ProtectSystem=strict"
    user=$(unit_value User)
    : >"$work/server.log"
    [ ! -e "$root$server_log" ] || : >"$root$server_log"
    inside install -d -o "$user" -g "$user" -m 2755 "/run/$server"
    exec_paths=$(unit_paths ExecPaths) write_paths=$(unit_paths 'ReadWrite[A-Za-z]*')
    export root user exec_paths write_paths
    start=$(unit_value ExecStart) files=$(unit_value LimitNOFILE)
    export start files
    # The variables are those of the inner shell.
    # shellcheck disable=SC2016
    unshare --mount sh -eu -c '
        for path in $exec_paths; do
            mount --bind "$root$path" "$root$path" && mount -o remount,bind,ro,exec "$root$path"
        done
        for path in $write_paths; do
            mount --bind "$root$path" "$root$path" && mount -o remount,bind,noexec "$root$path"
        done
        mount -t tmpfs -o noexec tmpfs "$root/tmp"
        mount -o remount,bind,ro,noexec "$root"
        # Not every machine allows as many.
        if (ulimit -n "$files") 2>/dev/null; then ulimit -n "$files"; fi
        umask 007
        exec setpriv --no-new-privs --bounding-set=-all,+sys_chroot,+setuid,+setgid -- \
            chroot --userspec="$user:$user" "$root" $start' >"$work/server.log" 2>&1 &
    server_pid=$!
}
# The server has ended because it may not map the code of the module.
must_not_map() {
    ! wait "$server_pid" || fail "$1"
    cat "$work/server.log" "$root$server_log" | grep -q 'failed to map segment' ||
        fail "the server ended for another reason"
}
serving() { [ "$(cli PING)" = PONG ]; }
stop_server() {
    kill "$server_pid"
    wait "$server_pid" || true
}
grants() { [ "$(cli LOCK.NODE | sed -n '/^quarantine$/{n;p;}')" = 0 ]; }

# ---- 1. a file that somebody put there by hand ---------------------------------------------------

mkdir -p "$root$modules"
echo by hand >"$root$modules/redislock.so"
! inside dpkg -i /root/redislock.deb >"$work/dpkg.log" 2>&1 ||
    fail "the package replaced a file made by hand"
grep -q "$modules/redislock.so was not installed by a package: move it away" "$work/dpkg.log" ||
    fail "no sentence about the file"
[ "$(cat "$root$modules/redislock.so")" = 'by hand' ] || fail "the file made by hand was changed"
[ ! -e "$root/usr/bin/redlock" ] || fail "half of the package was installed"
! inside dpkg-query -W redislock 2>/dev/null | grep -q '[0-9]' ||
    fail "dpkg believes that the package is there"
rm -r "$root/usr/lib/${server}"
ok "a module made by hand is not replaced, and nothing is half-installed"

# ---- 2. install ----------------------------------------------------------------------------------

inside dpkg -i /root/redislock.deb >"$work/dpkg.log" 2>&1 || fail "dpkg -i"
grep -q 'to load the module: cat /usr/share/redislock/redislock.conf' "$work/dpkg.log" ||
    fail "the package does not say how to go on"
inside redlock --version >/dev/null || fail "redlock does not start"
for file in "$modules/redislock.so" /usr/share/man/man1/redlock-doctor.1.gz \
    /usr/share/bash-completion/completions/redlock /usr/share/redislock/grafana/redislock.json; do
    [ -s "$root$file" ] || fail "$file is missing"
done
for file in "$root/usr/lib/redis/modules/redislock.so" "$root/usr/bin/redlock"; do
    ! readelf -S "$file" | grep -q '\.symtab' || fail "$file is not stripped"
done
rule_tests=/usr/share/redislock/prometheus/alerts.test.yml
inside promtool test rules "$rule_tests" >"$work/promtool.log" 2>&1 ||
    fail "promtool test rules"
ok "the package installs, says how to go on, and its alert rules pass their tests"

# ---- 2b. the command of the container file, and its health check, without a container engine -----

container_file=packaging/container/Containerfile
healthy() { inside sh -c "$(sed -n 's/^    CMD //p' "$container_file")"; }
cp "$root$conf" "$work/conf"
if [ "$server" = valkey ]; then
    inside install -d -o valkey -g valkey /data
    inside sh -c "cat /usr/share/redislock/redislock.conf >>$conf"
    # The words are quoted, as in a shell.
    eval "set -- $(sed -n '/^ENTRYPOINT/,$p' "$container_file" | grep -o '"[^"]*"' | tr '\n' ' ')"
    chroot --userspec=valkey:valkey "$root" "$@" >"$work/container.log" 2>&1 &
    server_pid=$!
    until_true 30 "the command of the container file serves, and is healthy" healthy
    stop_server
    ! healthy 2>/dev/null || fail "the health check finds a server that has ended healthy"
    cat "$work/conf" >"$root$conf"
    ok "the command and the health check of the container file work"
fi

# ---- 3. a module where the service must not map code ---------------------------------------------

install -m 755 "$root/usr/lib/redis/modules/redislock.so" "$root/var/lib/$server/redislock.so"
echo "loadmodule /var/lib/$server/redislock.so" >>"$root$conf"
start_server
must_not_map "the server runs a module of /var/lib: the restrictions are not in force"
rm "$root/var/lib/$server/redislock.so"
cat "$work/conf" >"$root$conf"
ok "the restrictions are in force: a module in /var/lib cannot be loaded"

# ---- 4. load it as the package says; the quarantine after the start raises an alert --------------

inside sh -c "cat /usr/share/redislock/redislock.conf >>$conf"
start_server
until_true 30 "the server serves" serving
cli LOCK.ACQUIRE job me 1000 | grep -q '^QUARANTINE' || fail "no quarantine after the start"

env_file=$root/etc/default/redlock-exporter
# shellcheck disable=SC2046 # each line of the file is one variable
chroot --userspec=nobody "$root" env $(grep -v '^#' "$env_file") \
    redlock exporter >"$work/exporter.log" 2>&1 &
until_true 30 "the exporter serves" curl -fs http://127.0.0.1:9936/healthz
{
    printf 'global:\n  evaluation_interval: 1s\n'
    sed 's/scrape_interval: .*/scrape_interval: 1s/' \
        "$root/usr/share/redislock/prometheus/scrape.yml"
} >"$root/root/prometheus.yml"
inside prometheus --config.file=/root/prometheus.yml --storage.tsdb.path=/root/tsdb \
    --web.listen-address=127.0.0.1:9090 >"$work/prometheus.log" 2>&1 &
alerts() { curl -fs http://127.0.0.1:9090/api/v1/alerts >"$work/alerts"; }
alerting() { alerts && grep -q "\"alertname\":\"$1\".*\"state\":\"firing\"" "$work/alerts"; }
until_true 60 "Prometheus raises RedislockQuarantined" alerting RedislockQuarantined
ok "Prometheus raises an alert for the quarantine"

inside prometheus-redis-exporter -redis.addr redis://127.0.0.1:6379 \
    -script /usr/share/redislock/redis_exporter.lua >"$work/redis_exporter.log" 2>&1 &
script_values() {
    curl -fs http://127.0.0.1:9121/metrics | grep -q 'redis_script_values{.*key="lock_up".*} 1$'
}
until_true 30 "redis_exporter has the values of the script" script_values
ok "redis_exporter reads the module with the script"

until_true 60 "the quarantine ends" grants
calm() { alerts && ! grep -q RedislockQuarantined "$work/alerts"; }
until_true 60 "the alert ends" calm
ok "the alert ends with the quarantine"

# ---- 5. break something, and be told -------------------------------------------------------------

nodes=redis://127.0.0.1:6379
doctor() { inside redlock doctor --node "$nodes" 2>&1; }
doctor >"$work/doctor.log" || fail "doctor finds problems in a new installation"
cli CONFIG SET maxmemory-policy allkeys-lru >/dev/null
! doctor >"$work/doctor.log" || fail "doctor finds nothing"
grep -q 'fix: set maxmemory-policy noeviction' "$work/doctor.log" ||
    fail "doctor does not say what to change"
cli CONFIG SET maxmemory-policy noeviction >/dev/null
doctor >"$work/doctor.log" || fail "doctor finds problems after the repair"
ok "doctor says what is wrong and what to change"

cli CONFIG SET maxmemory 1 >/dev/null
until_true 60 "Prometheus raises RedislockRefused" alerting RedislockRefused
! doctor >"$work/doctor.log" || fail "doctor finds nothing in a server without memory"
grep -q 'raise maxmemory' "$work/doctor.log" || fail "doctor does not say to raise maxmemory"
! inside redlock nodes --node "$nodes" >"$work/nodes.log" 2>&1 ||
    fail "redlock nodes calls a server without memory fit"
cli CONFIG SET maxmemory 0 >/dev/null
calm_again() { alerts && ! grep -q RedislockRefused "$work/alerts"; }
until_true 60 "the alert about memory ends" calm_again
ok "a server without memory raises an alert, and doctor and nodes tell it"

# ---- 6. upgrade with a lock held, and after CONFIG REWRITE ---------------------------------------

cli CONFIG REWRITE >/dev/null
fence=$(cli LOCK.ACQUIRE held me 30000)
inside dpkg -i /root/newer.deb >"$work/dpkg.log" 2>&1 || fail "dpkg -i of the newer package"
grep -q "$conf loads the module: restart that server" "$work/dpkg.log" ||
    fail "the upgrade does not say to restart"
[ "$(cli LOCK.RELEASE nothing me)" = '' ] ||
    fail "the running server does not serve during the upgrade"
stop_server
start_server
until_true 30 "the server serves after the upgrade" serving
cli LOCK.NODE | grep -qx "$newer" || fail "the server does not run version $newer"
[ "$(cli LOCK.INFO held me | sed -n '/^fence$/{n;p;}')" = "$fence" ] ||
    fail "the lock was lost by the upgrade"
ok "an upgrade to $newer keeps the lock that is held"

# ---- 7. remove -----------------------------------------------------------------------------------

# As if the exporter had been enabled.
wants=$root/etc/systemd/system/multi-user.target.wants
mkdir -p "$wants"
ln -s /usr/lib/systemd/system/redlock-exporter.service "$wants/redlock-exporter.service"
inside dpkg -r redislock >"$work/dpkg.log" 2>&1 || fail "dpkg -r"
grep -q "$conf still loads the module" "$work/dpkg.log" ||
    fail "no word about the server that needs the module"
[ "$(cli LOCK.RELEASE held me)" = 1 ] || fail "the running server lost the module"
stop_server
inside dpkg -P redislock >"$work/dpkg.log" 2>&1 || fail "dpkg -P"
left=$(cd "$root" && find usr etc lib -name '*redislock*' -o -name '*redlock*' | sort)
[ -z "$left" ] || fail "left behind: $left"
ok "nothing is left after it was removed"

# ---- 8. make install into /usr/local, where only the drop-in lets the server map code ------------

PREFIX=/opt/redislock DESTDIR=$work/opt scripts/install.sh >"$work/install.log"
grep -q 'copy what is there to /etc/systemd/system' "$work/install.log" ||
    fail "make install does not say that systemd does not read its drop-ins in /opt"
(umask 077 && PREFIX=/usr/local DESTDIR=$root scripts/install.sh)
for file in bin/redlock lib/redis/modules/redislock.so share/redislock/redislock.conf; do
    chroot --userspec=nobody "$root" test -r "/usr/local/$file" ||
        fail "with a strict umask, only root can read /usr/local/$file"
done
cat "$work/conf" >"$root$conf"
rm -f "$root/var/lib/$server"/*.rdb
inside sh -c "cat /usr/local/share/redislock/redislock.conf >>$conf"
drop_in=$root/usr/local/lib/systemd/system/$server-server.service.d/redislock.conf
mv "$drop_in" "$work/drop-in"
start_server
must_not_map "the server runs a module of /usr/local without the drop-in"
mv "$work/drop-in" "$drop_in"
start_server
until_true 30 "the server serves with the drop-in" serving
cli LOCK.NODE | grep -qx quarantine || fail "the module of /usr/local is not loaded"
stop_server
ok "make install works with its drop-in, and would not without"

# ---- 9. the tar.gz over it, with the commands of docs/OPERATIONS.md ------------------------------

# shellcheck disable=SC2016 # backquotes of Markdown
extract=$(sed -n 's/.*`sudo \(tar -xzf [^`]*\)`.*/\1/p' docs/OPERATIONS.md)
keep=$(sed -n "s/^For an upgrade, add \`\([^\`]*\)\`.*/\1/p" docs/OPERATIONS.md)
[ -n "$extract" ] && [ -n "$keep" ] || fail "docs/OPERATIONS.md does not name the commands"
cp "$(dirname "$deb")"/redislock-*.tar.gz "$root/root/"
rm "$root/usr/local/bin/redlock"
echo '# edited' >"$root/usr/local/etc/default/redlock-exporter"
chmod 2775 "$root/usr/local/share"
inside sh -c "cd /root && $extract $keep" || fail "$extract $keep"
inside /usr/local/bin/redlock --version >/dev/null || fail "the tool of the tar.gz does not start"
[ "$(cat "$root/usr/local/etc/default/redlock-exporter")" = '# edited' ] ||
    fail "the tar.gz replaced the settings of the exporter"
[ "$(stat -c %a "$root/usr/local/share")" = 2775 ] ||
    fail "the tar.gz changed the permissions of /usr/local/share"
rm "$root/usr/local/etc/default/redlock-exporter"
inside sh -c "cd /root && $extract" || fail "$extract"
[ -s "$root/usr/local/etc/default/redlock-exporter" ] || fail "the tar.gz lacks the settings"
ok "the tar.gz installs and upgrades, and keeps settings and the permissions of directories"
