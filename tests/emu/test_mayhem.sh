#!/bin/bash
# Proves for ten seconds what `make soak` proves for longer: ranks that are killed, aborted and created at
# random neither hang, nor leak, nor sum wrongly. TAP.
set -u
export LLANE_BUILD=${LLANE_BUILD:?run it through make test}
out=$(mktemp)
trap 'rm -f "$out"' EXIT
tests/emu/mayhem 10 1 >"$out" 2>&1
status=$?
sed 's/^/# /' "$out"
[ $status = 0 ] && grep -Eq ' [1-9][0-9]* sums .* nothing left' "$out" && echo 'ok 1 - mayhem__ten_seconds__survived' ||
    echo 'not ok 1 - mayhem__ten_seconds__survived'
echo "1..1"
