#!/bin/sh
# Runs the conformance suite against the client libraries of every language whose tools are installed,
# the programs of docs/CLIENTS.md and, with Python, the recipes of docs/RECIPES.md.
#
#   clients.sh [language ...]     python, node, go, java, rust; all without arguments
#
# A missing tool skips its language with one line. With CI=true it is installed, or the run fails.
set -eu
cd "$(dirname "$0")/.."

[ "${CI:-}" != true ] || scripts/setup.sh clients

have() { command -v "$1" >/dev/null 2>&1; }
# What is missing for a language; nothing is printed when all is there.
missing() {
    case $1 in
    python) python3 -c 'import sys, venv, ensurepip; assert sys.version_info >= (3, 11)' 2>/dev/null ||
        echo "Python 3.11 or newer with venv" ;;
    node) have node && have npm || echo "node and npm" ;;
    go) have go || echo go ;;
    java) have javac && have mvn || echo "a JDK and Maven" ;;
    esac
}

chosen=
[ $# -gt 0 ] || set -- python node go java rust
for language; do
    [ -e "clients/$language/drivers.json" ] || continue
    lacking=$(missing "$language")
    if [ -z "$lacking" ]; then
        chosen="$chosen $language"
    elif [ "${CI:-}" = true ]; then
        echo "clients: $lacking is missing" >&2
        exit 1
    else
        echo "clients: skipping $language: $lacking is missing"
    fi
done
[ -n "$chosen" ] || {
    echo "clients: no language to run" >&2
    exit 1
}
REDIS_SERVER=$(scripts/server.sh)
export REDIS_SERVER
failed=
# shellcheck disable=SC2086 # languages are words
python3 clients/conformance/run.py $chosen || failed=yes
# shellcheck disable=SC2086
python3 clients/conformance/snippets.py $chosen || failed=yes
# shellcheck disable=SC2086
[ -z "${PLANTED:-}" ] || python3 clients/conformance/run.py --planted $chosen || failed=yes
case " $chosen " in *" python "*) python3 clients/recipes/tests/run.py || failed=yes ;; esac
[ -z "$failed" ]
