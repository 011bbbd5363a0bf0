# shellcheck shell=bash
# Sourced by tests that report in TAP, and close with `echo "1..$n"`. What belongs under a failure is the
# text that came with it, else the end of the file $out; a test that knows better has an explain() of its
# own.
n=0

explain() { tail -n 40 "${out:?}"; }

report() { # report STATUS NAME [TEXT]; status 77 is a skip, for the reason TEXT
    n=$((n + 1))
    if [ "$1" = 0 ]; then
        echo "ok $n - $2"
    elif [ "$1" = 77 ] && [ $# = 3 ]; then
        echo "ok $n - $2 # SKIP $3"
    else
        echo "not ok $n - $2"
        if [ $# = 3 ]; then echo "$3"; else explain; fi | sed 's/^/# /'
    fi
}
