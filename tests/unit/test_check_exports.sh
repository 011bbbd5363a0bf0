#!/bin/bash
# Proves that check_exports notices an export too many, one too few, and an undefined symbol.
set -u
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
number=0

names=$(grep -o 'nccl[A-Za-z0-9_]*' plugin/exports.map)
# object NAME SOURCE...: a library that exports the names, with further source lines.
object() {
    local name=$here/$1.so
    shift
    {
        for n in $names; do echo "int $n;"; done
        printf '%s\n' "$@"
    } | ${CC:-gcc} -shared -fPIC -x c - -o "$name"
}
# finds NAME OBJECT EXPECTED: a pattern that the report has ("" for a clean report).
finds() {
    local output
    output=$(scripts/check_exports "$here/$2.so")
    local status=$?
    number=$((number + 1))
    if { [ -z "$3" ] && [ $status -eq 0 ]; } ||
        { [ -n "$3" ] && [ $status -ne 0 ] && grep -q "$3" <<<"$output"; }; then
        echo "ok $number - $1"
    else
        echo "# status $status, output:"
        echo "# ${output//$'\n'/$'\n# '}"
        echo "not ok $number - $1"
    fi
}

object whole
object more 'int llane_secret;'
object undefined 'int llane_nowhere(void); static int (*volatile p)(void) = llane_nowhere;' \
    '__attribute__((constructor)) static void use(void) { if (!p) p(); }'
finds exports__as_the_map__pass whole ""
finds exports__one_more__is_named more "not wanted: llane_secret"
finds symbols__undefined__are_named undefined "undefined symbol: llane_nowhere"
names=$(grep -vx ncclAllReduce <<<"$names")
object less
finds exports__one_less__is_named less "missing: ncclAllReduce"
echo "1..$number"
