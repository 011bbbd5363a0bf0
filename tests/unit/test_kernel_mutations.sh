#!/bin/bash
# Proves that test_kernels catches each way to break the protocol: the kernels are built with one
# LLANE_MUTATE_* switch at a time, and the test must then fail, or hang and be bitten by its watchdog.
set -u
emu=$LLANE_BUILD/emu
out=$LLANE_BUILD/mutations
mkdir -p "$out"

# The switch, and the tests that are there to catch it (what else they catch is not asked).
mutations="
NOTHING        *
HALF_FLAG      kernels__many_operations*
ANY_FLAG       kernels__many_operations*
ONE_GENERATION kernels__many_operations*
SKIP_ONE       kernels__counter_wraps__*
NO_STRIPE      kernels__counter_wraps_over*
CLEAN_OWN      kernels__*
OWN_CELL       kernels__many_operations*
NO_BUSY        kernels__two_at_once*
NO_LOOK        kernels__aborted*
RAW_NAN        kernels__types_ops*
"
case ${LLANE_V:-release} in
asan) sanitize="-fsanitize=address,undefined" ;;
tsan) sanitize="-fsanitize=thread --param tsan-instrument-func-entry-exit=0" ;;
*) sanitize="" ;;
esac

for file in kernels/*.cu; do
    echo "#include \"$PWD/$file\""
done >"$out/kernels.cc"
# shellcheck disable=SC2086
if ! ${CC:-gcc} -std=gnu11 -O1 -D_GNU_SOURCE= $sanitize -Iplugin -Ikernels -c \
    tests/unit/test_kernels.c -o "$out/test.o"; then
    echo "not ok - test_kernels compiles"
    exit 1
fi

number=0 planted=0 caught=0
while read -r mutation tests; do
    [ -n "$mutation" ] || continue
    number=$((number + 1))
    program=$out/test_$mutation
    # shellcheck disable=SC2086
    if ! ${CXX:-g++} -std=gnu++17 -O1 -w $sanitize -DLLANE_EMU "-DLLANE_MUTATE_$mutation" -Ikernels \
        -Itests/emu_gpu "$out/kernels.cc" -x none "$out/test.o" -o "$program" -L"$emu" \
        -lllane-emu -Wl,-rpath,"$emu" -lcmocka -lm -pthread; then
        echo "not ok $number - $mutation compiles"
        continue
    fi
    CMOCKA_MESSAGE_OUTPUT=STDOUT LLANE_TEST_WATCHDOG=$([ "$mutation" = NOTHING ] && echo 60 || echo 4) \
        "$program" "$tests" >"$out/$mutation.log" 2>&1
    status=$?
    if [ "$mutation" = NOTHING ]; then
        if [ $status -eq 0 ]; then
            echo "ok $number - unbroken kernels pass"
        else
            sed 's/^/# /' "$out/$mutation.log"
            echo "not ok $number - unbroken kernels pass"
        fi
        continue
    fi
    planted=$((planted + 1))
    # A failure that the tests found, not one to start.
    if [ $status -ne 0 ] && grep -qE "^\[  FAILED  \]|^watchdog:" "$out/$mutation.log"; then
        caught=$((caught + 1))
        echo "ok $number - $mutation is caught"
    else
        sed 's/^/# /' "$out/$mutation.log"
        echo "not ok $number - $mutation is caught (status $status)"
    fi
done <<<"$mutations"
echo "1..$number"
echo "mutations: $planted planted, $caught caught"
