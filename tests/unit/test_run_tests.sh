#!/bin/bash
# Proves that the test runner counts results, fails what must fail, and leaves nothing running.
set -u
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
number=0

# program NAME LINES...: a shell test of these lines.
program() {
    local path=$here/$1
    shift
    printf '%s\n' '#!/bin/sh' "$@" >"$path"
    chmod +x "$path"
}
# runs NAME STATUS LAST_LINE [VARIABLE=VALUE...] -- TEST...
runs() {
    local name=$1 status=$2 last=$3 settings=()
    shift 3
    while [ "$1" != -- ]; do
        settings+=("$1")
        shift
    done
    shift
    local output
    output=$(env -u LLANE_REQUIRE_GPUS "${settings[@]}" scripts/run_tests "$here" "${@/#/$here/}" 2>&1)
    local got=$?
    number=$((number + 1))
    if [ $got -eq "$status" ] && [ "$(tail -1 <<<"$output")" = "$last" ]; then
        echo "ok $number - $name"
    else
        echo "# status $got, output:"
        echo "# ${output//$'\n'/$'\n# '}"
        echo "not ok $number - $name"
    fi
}

mkdir -p "$here/tests/gpu1"
program good 'echo "1..2"; echo "ok 1 - a"; echo "ok 2 - b"'
program cmocka_skip 'echo "1..2"; echo "ok 1 - a"; echo "why"; echo "not ok 2 # SKIP b"'
program bad 'echo "ok 1 - a"; echo "not ok 2 - b"; exit 1'
program bad_with_status_0 'echo "not ok 1 - a"'
program silent 'exit 0'
program silent_bad 'exit 3'
program skips 'echo "no such thing here"; exit 77'
program stops_early 'echo "1..2"; echo "ok 1 - a"'
# shellcheck disable=SC2016 # the program expands it
program dies 'echo "ok 1 - a"; kill -SEGV $$'
program hangs 'echo "ok 1 - a"; sleep 1000'
program leaves "sleep 1000 & echo \$! >$here/left; echo 'ok 1 - a'"
program tests/gpu1/gpu 'echo "no GPU"; exit 77'

runs results__tap__are_counted 0 "2 passed, 0 failed, 0 skipped" -- good
runs skip__as_cmocka_says_it__is_a_skip 0 "1 passed, 0 failed, 1 skipped" -- cmocka_skip
runs failure__among_passes__fails_the_run 1 "3 passed, 1 failed, 0 skipped" -- good bad
runs failure__with_status_0__fails_the_run 1 "0 passed, 1 failed, 0 skipped" -- bad_with_status_0
runs status__alone__is_one_result 1 "1 passed, 1 failed, 0 skipped" -- silent silent_bad
runs status__77__is_a_skip_and_nothing_passed_is_a_failure 1 "0 passed, 0 failed, 1 skipped" -- skips
runs plan__not_kept__is_a_failure 1 "1 passed, 1 failed, 0 skipped" -- stops_early
runs signal__after_passes__is_a_failure 1 "1 passed, 1 failed, 0 skipped" -- dies
runs timeout__after_passes__is_a_failure 1 "1 passed, 1 failed, 0 skipped" LLANE_TEST_TIMEOUT=1 -- hangs
runs gpu_skip__not_required__is_a_skip 0 "2 passed, 0 failed, 1 skipped" -- tests/gpu1/gpu good
runs gpu_skip__required__is_a_failure 1 "2 passed, 1 failed, 0 skipped" LLANE_REQUIRE_GPUS=1 -- tests/gpu1/gpu good
runs missing_program__is_a_failure 1 "2 passed, 1 failed, 0 skipped" -- good absent

runs leftover__of_a_passed_test__does_not_fail_it 0 "1 passed, 0 failed, 0 skipped" -- leaves
number=$((number + 1))
# Killed it may still be a zombie for whoever adopts it.
state=$(cut -d' ' -f3 "/proc/$(cat "$here/left")/stat" 2>/dev/null)
case ${state:-gone} in
gone | Z | X) echo "ok $number - leftover__of_a_passed_test__is_killed" ;;
*) echo "not ok $number - leftover__of_a_passed_test__is_killed" ;;
esac
echo "1..$number"
