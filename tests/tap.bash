# shellcheck shell=bash
# Sourced by tests that report in TAP, and close with `echo "1..$n"`. What belongs under a failure is the
# end of the file $out; a test that knows better has an explain() of its own.
n=0

explain() { tail -n 40 "${out:?}"; }

report() { # report STATUS NAME
    n=$((n + 1))
    if [ "$1" = 0 ]; then
        echo "ok $n - $2"
    else
        echo "not ok $n - $2"
        explain | sed 's/^/# /'
    fi
}
