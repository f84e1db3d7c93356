#!/bin/sh
# Installs the missing tools of this project with the system's package manager.
#
#   setup.sh          to build, run and test: cargo, a C compiler, libclang, a Redis or Valkey server
#   setup.sh lint     rustfmt, clippy and cargo-deny too
#   setup.sh test     zsh, fish, tmux and Chromium too, for the tests of the tool
#   setup.sh matrix   debootstrap too
#   setup.sh clients  Python 3, Node, Go, a JDK, Maven and PostgreSQL too
#   setup.sh fuzz     a nightly toolchain, cargo-fuzz and a C++ compiler too
#   setup.sh mutants  cargo-mutants too
#   setup.sh soak     valgrind too
#   setup.sh trained  llvm-profdata too
#   setup.sh sanitize a nightly toolchain with Miri, valgrind, and what unpacks a source package, too
#
# It prints every command that changes the system before it runs it, and nothing else.
set -eu
cd "$(dirname "$0")/.."

scratch=$(mktemp -d)
policy=/usr/sbin/policy-rc.d
policy_before=$policy.before-redislock
policy_ours=

say() { printf 'setup: %s\n' "$*" >&2; }
die() {
    say "$@"
    exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }
exists() { [ -e "$1" ]; }

clean_up() {
    rm -rf "$scratch"
    [ -z "$policy_ours" ] || let_services_start
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# at_least 7.0.15 7.0: is the first version the second one or newer (major and minor)?
at_least() {
    major=${1%%.*} && minor=${1#*.} && minor=${minor%%[!0-9]*}
    [ "$major" -gt "${2%%.*}" ] || { [ "$major" -eq "${2%%.*}" ] && [ "${minor:-0}" -ge "${2#*.}" ]; }
}

# ---- what is there ----------------------------------------------------------------------------------------------

check_cargo() {
    wanted=$(sed -n 's/^rust-version = "\([0-9.]*\)"/\1/p' Cargo.toml)
    how="install it with rustup (package rustup, or as rustup.rs says), then: rustup default stable"
    have cargo || die "cargo is missing: this project needs Rust $wanted or newer; $how"
    found=$(cargo --version 2>/dev/null) || die "cargo does not start because no toolchain is selected: this project needs Rust $wanted or newer; $how"
    found=${found#cargo }
    found=${found%% *}
    at_least "$found" "$wanted" || die "cargo $found is too old: this project needs Rust $wanted or newer; run rustup update, or $how"
}

compiler_works() {
    have cc || return 1
    printf '#include <stdio.h>\nint main(void) { return 0; }\n' >"$scratch/try.c"
    cc -o "$scratch/try" "$scratch/try.c" >/dev/null 2>&1
}

# Looks where bindgen looks. The library also needs its own headers (stddef.h and others).
libclang_works() {
    [ -z "${LIBCLANG_PATH:-}" ] || return 0
    if [ "$(uname)" = Darwin ]; then
        exists "$(xcode-select -p 2>/dev/null)/usr/lib/libclang.dylib" ||
            exists "$(xcode-select -p 2>/dev/null)/Toolchains/XcodeDefault.xctoolchain/usr/lib/libclang.dylib"
        return
    fi
    libraries=''
    headers=''
    for file in /usr/lib*/libclang.so* /usr/lib*/libclang-[0-9]*.so* /usr/lib*/*/libclang.so* /usr/lib*/*/libclang-[0-9]*.so* \
        /usr/lib*/*/*/libclang.so* /usr/local/lib*/libclang.so* /usr/local/lib*/*/*/libclang.so*; do
        exists "$file" && libraries=yes && break
    done
    for file in /usr/lib*/clang/*/include/stddef.h /usr/lib*/llvm*/lib*/clang/*/include/stddef.h /usr/local/lib*/clang/*/include/stddef.h; do
        exists "$file" && headers=yes && break
    done
    [ "$libraries$headers" = yesyes ]
}

server_works() {
    scripts/server.sh >/dev/null || return 1
    [ -n "${REDIS_SERVER:-}" ] || have redis-cli || have valkey-cli
}

# Debian keeps the programs of each version in a directory of their own.
postgresql_works() {
    for file in /usr/lib/postgresql/*/bin/initdb; do
        ! exists "$file" || return 0
    done
    have initdb
}

find_missing() {
    missing=
    compiler_works || missing="$missing compiler"
    libclang_works || missing="$missing libclang"
    server_works || missing="$missing server"
    [ "$purpose" != matrix ] || have debootstrap || missing="$missing debootstrap"
    [ "$purpose" != test ] || { have zsh && have fish; } || missing="$missing shells"
    [ "$purpose" != fuzz ] || have c++ || missing="$missing c++"
    { [ "$purpose" != sanitize ] && [ "$purpose" != soak ]; } || have valgrind || missing="$missing valgrind"
    [ "$purpose" != sanitize ] || have dpkg-source || missing="$missing dpkg-source"
    [ "$purpose" != test ] || have tmux || missing="$missing tmux"
    [ "$purpose" != test ] || have chromium || have chromium-browser || have google-chrome || missing="$missing chromium"
    [ "$purpose" = clients ] || return 0
    python3 -c 'import venv, ensurepip' 2>/dev/null || missing="$missing python"
    { have node && have npm; } || missing="$missing node"
    have go || missing="$missing go"
    { have javac && have mvn; } || missing="$missing java"
    postgresql_works || missing="$missing postgresql"
}

# Describes what is missing, for people who install it by hand.
in_words() {
    for part in $missing; do
        case $part in
        compiler) echo "  a C compiler (cc) with the headers of the C library" ;;
        libclang) echo "  libclang with its headers (bindgen reads redismodule.h with it)" ;;
        server) echo "  Redis 7.0 or Valkey 7.2 or newer: server and command line client (or REDIS_SERVER=path of a server)" ;;
        debootstrap) echo "  debootstrap" ;;
        shells) echo "  zsh and fish" ;;
        c++) echo "  a C++ compiler (c++)" ;;
        valgrind) echo "  valgrind" ;;
        dpkg-source) echo "  dpkg-source, on Debian or Ubuntu" ;;
        tmux) echo "  tmux" ;;
        chromium) echo "  Chromium" ;;
        python) echo "  Python 3.11 or newer with venv and pip" ;;
        node) echo "  Node 20 or newer with npm" ;;
        go) echo "  Go 1.21 or newer" ;;
        java) echo "  a JDK of Java 17 or newer, and Maven" ;;
        postgresql) echo "  PostgreSQL, the server" ;;
        esac
    done
}
give_up() {
    say "$@" "Please install:"
    in_words >&2
    exit 1
}

# ---- how each system calls it -----------------------------------------------------------------------------------

package_manager() {
    if [ "$(uname)" = Darwin ]; then
        ! have brew || echo brew
        return
    fi
    for manager in apt-get dnf apk; do
        ! have "$manager" || { echo "$manager" && return; }
    done
}

# The Redis of Ubuntu 22.04 and Debian 11 is too old.
apt_server_package() {
    for pair in redis-server:7.0 valkey-server:7.2; do
        candidate=$(LC_ALL=C apt-cache policy "${pair%:*}" | sed -n 's/^ *Candidate: \([0-9]*:\)\{0,1\}\([0-9.]*\).*/\2/p')
        [ -n "$candidate" ] && at_least "$candidate" "${pair#*:}" && echo "${pair%:*}" && return
    done
    return 1
}

packages() {
    for part in $missing; do
        case $manager:$part in
        *:shells) echo zsh fish ;;
        dnf:c++) echo gcc-c++ ;;
        brew:c++) echo command-line-tools ;;
        *:c++) echo g++ ;;
        *:tmux) echo tmux ;;
        *:valgrind) echo valgrind ;;
        apt-get:dpkg-source) echo dpkg-dev ;;
        brew:chromium) echo unknown:chromium ;;
        *:chromium) echo chromium ;;
        dnf:postgresql) echo postgresql-server ;;
        *:postgresql) echo postgresql ;;
        apt-get:compiler) echo gcc libc6-dev ;;
        apt-get:libclang) echo libclang-dev ;;
        apt-get:server) apt_server_package || echo too-old ;;
        apt-get:debootstrap) echo debootstrap debian-archive-keyring ;;
        apt-get:python) echo python3 python3-venv ;;
        apt-get:node) echo nodejs npm ;;
        apt-get:go) echo golang-go ;;
        apt-get:java) echo default-jdk-headless maven ;;
        dnf:compiler) echo gcc glibc-devel ;;
        dnf:libclang) echo clang-devel ;;
        dnf:server) echo valkey ;;
        dnf:debootstrap) echo debootstrap ;;
        dnf:python) echo python3 ;;
        dnf:node) echo nodejs npm ;;
        dnf:go) echo golang ;;
        dnf:java) echo java-devel maven ;;
        apk:compiler) echo gcc musl-dev ;;
        apk:libclang) echo clang-dev ;;
        apk:server) echo valkey valkey-cli ;;
        apk:python) echo python3 ;;
        apk:node) echo nodejs npm ;;
        apk:go) echo go ;;
        apk:java) echo openjdk17 maven ;;
        brew:compiler | brew:libclang) echo command-line-tools ;;
        brew:server) echo redis ;;
        brew:python) echo python ;;
        brew:node) echo node ;;
        brew:go) echo go ;;
        brew:java) echo openjdk maven ;;
        *) echo "unknown:$part" ;;
        esac
    done | tr '\n' ' '
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}

# Prints a command as it runs, then runs it.
run() {
    if [ "$1" = as_root ]; then
        shift
        if [ "$(id -u)" -eq 0 ]; then say "$*"; else say "sudo $*"; fi
        as_root "$@"
    else
        say "$*"
        "$@"
    fi
}

# ---- Debian starts and enables a service at once when it is installed: prevent that -------------

keep_services_stopped() {
    policy_ours=yes
    ! exists "$policy" || exists "$policy_before" || as_root mv "$policy" "$policy_before"
    cat >"$scratch/policy" <<POLICY
#!/bin/sh
# Exists only while the setup of redislock installs a server.
for word; do case \$word in redis-server* | valkey-server* | postgresql*) exit 101 ;; esac; done
[ ! -x $policy_before ] || exec $policy_before "\$@"
exit 0
POLICY
    as_root install -m 755 "$scratch/policy" "$policy"
}

let_services_start() {
    policy_ours=
    as_root rm -f "$policy"
    ! exists "$policy_before" || as_root mv "$policy_before" "$policy"
}

# A server that was installed before keeps the choice of its administrator.
disable_service() {
    if have systemctl; then
        run as_root systemctl --quiet disable "$1.service"
    else
        run as_root env DPKG_MAINTSCRIPT_PACKAGE="$1" deb-systemd-helper disable "$1.service"
    fi
    run as_root update-rc.d "$1" disable
}

installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

# Debian's PostgreSQL comes with a cluster that is started at every boot: prevent that, too.
# Where clusters are managed already, their administrator has decided.
cluster_settings=/etc/postgresql-common/createcluster.conf
install_postgresql_without_cluster() {
    as_before=
    if ! installed postgresql-common; then
        install_packages postgresql-common || return 1
        run as_root pg_conftool "$cluster_settings" set create_main_cluster false || return 1
        as_before=yes
    fi
    install_packages postgresql || return 1
    [ -z "$as_before" ] || run as_root pg_conftool "$cluster_settings" remove create_main_cluster
}

install_packages() {
    run as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "$@"
}

install_by_apt() {
    run as_root apt-get -q update || say "apt-get update failed: continuing with the existing package lists"
    names=$(packages)
    case $names in *too-old*) die "the packages of this system have no Redis 7.0 or Valkey 7.2 or newer: install one, then set REDIS_SERVER=path" ;; esac
    fresh=
    for name in $names; do
        case $name in redis-server | valkey-server) installed "$name" || fresh=$name ;; esac
    done
    keep_services_stopped
    case " $names " in *" postgresql "*) install_postgresql_without_cluster || return 1 ;; esac
    # shellcheck disable=SC2086 # names are words
    install_packages $names || return 1
    [ -z "$fresh" ] || disable_service "$fresh"
}

install_missing() {
    names=$(packages)
    case $manager:$names in
    *unknown:*) return 1 ;;
    brew:*command-line-tools*)
        say "the compiler and libclang come with Apple's command line tools: xcode-select --install"
        return 1
        ;;
    esac
    # shellcheck disable=SC2086 # names are words
    case $manager in
    apt-get) install_by_apt ;;
    dnf) run as_root dnf install -y $names ;;
    apk) run as_root apk add $names ;;
    brew) run brew install $names ;;
    esac
}

# ---- rustfmt, clippy and cargo-deny -------------------------------------------------------------

check_lint_tools() {
    cargo deny --version >/dev/null 2>&1 || run cargo install --quiet --locked cargo-deny
    cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 && return
    if have rustup; then run rustup component add rustfmt clippy && return; fi
    die "rustfmt and clippy are missing: rustup component add rustfmt clippy, or the packages rustfmt and clippy (rust-clippy) of the system"
}

# ---- what only cargo installs -------------------------------------------------------------------

check_cargo_tool() {
    cargo "$1" --version >/dev/null 2>&1 || run cargo install --quiet --locked "cargo-$1"
}

check_nightly() {
    cargo +nightly --version >/dev/null 2>&1 && return
    have rustup || die "a nightly toolchain is missing, and only rustup can install one"
    run rustup toolchain install nightly --profile minimal
}

check_miri() {
    cargo +nightly miri --version >/dev/null 2>&1 || run rustup +nightly component add miri rust-src
}

# It must be of the same LLVM as rustc.
check_profdata() {
    exists "$(rustc --print target-libdir)/../bin/llvm-profdata" && return
    have rustup || die "llvm-profdata is missing, and only rustup can install the one of this rustc"
    run rustup component add llvm-tools
    exists "$(rustc --print target-libdir)/../bin/llvm-profdata" ||
        die "llvm-profdata is missing: $(command -v rustc) is not of the toolchain of rustup"
}

purpose=${1:-build}
check_cargo
find_missing
if [ -n "$missing" ]; then
    if [ -n "${REDIS_SERVER:-}" ] && ! scripts/server.sh >/dev/null; then
        die "REDIS_SERVER=$REDIS_SERVER is not Redis 7.0, Valkey 7.2 or newer"
    fi
    manager=$(package_manager)
    say "missing:$missing"
    [ -n "$manager" ] || give_up "found no known package manager (apt, dnf, apk, brew)."
    [ "$manager" = brew ] || [ "$(id -u)" -eq 0 ] || have sudo ||
        die "this needs root or sudo. Please install with $manager, as root: $(packages)"
    install_missing || give_up "the installation failed."
    find_missing
    [ -z "$missing" ] || give_up "still missing after the installation:$missing."
fi
case $purpose in
lint) check_lint_tools ;;
fuzz)
    check_nightly
    check_cargo_tool fuzz
    ;;
mutants) check_cargo_tool mutants ;;
trained) check_profdata ;;
sanitize)
    check_nightly
    check_miri
    ;;
esac
