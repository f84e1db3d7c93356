#!/bin/sh
# Fails on lines of Markdown with two sentences: with one sentence per line, a diff shows one sentence.
# Code blocks and tables are exempt.
set -eu
cd "$(dirname "$0")/.."

# shellcheck disable=SC2016 # fields of awk
double=$(git ls-files '*.md' | xargs awk '
    FNR == 1 { code = 0 }
    /^ *```/ { code = !code }
    !code && !/^ *\|/ && /[a-z`)*][.!?] +[A-Z`]/ { print FILENAME ":" FNR ": " $0 }')
[ -z "$double" ] || {
    echo "$double" >&2
    echo "sentences: write one sentence per line" >&2
    exit 1
}
