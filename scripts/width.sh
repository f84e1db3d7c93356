#!/bin/sh
# Fails on lines of Rust code and comments that are wider than 100 columns. rustfmt leaves strings, comments
# and the insides of macros as they are. Rows of tables in comments cannot be broken, so they are exempt.
set -eu
cd "$(dirname "$0")/.."

wide=$(git ls-files -z '*.rs' | LC_ALL=C.UTF-8 xargs -0 grep -nE '^.{101,}' /dev/null | grep -v ':[0-9]*: *//[/!] |' || true)
[ -z "$wide" ] || {
    echo "$wide" >&2
    echo "width: break these lines at 100 columns" >&2
    exit 1
}
