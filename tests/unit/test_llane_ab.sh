#!/bin/bash
# Proves that `llane ab` runs a command without and with llane in turns, takes the right numbers, and
# computes the interval as the textbook does. TAP.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/tap.bash
explain() { cat "$folder/out" "$folder/err"; }
: "${LLANE_BUILD:?run it through make test}"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
unset NCCL_TUNER_PLUGIN LD_PRELOAD LLANE_STATS LLANE_ENABLE LLANE_AB

ab() { tools/llane ab --emulate "$@" >"$folder/out" 2>"$folder/err"; }

# A program whose number is the next of a list, one list without llane and one with it.
cat >"$folder/program" <<'SH'
#!/bin/sh
way=off
case ${NCCL_TUNER_PLUGIN:-} in *llane*) way=on ;; esac
[ "$way:${LLANE_ENABLE:-1}" != off:1 ] || exit 9
echo "$way ${LLANE_MAX_BYTES:-}" >>"$1/turns"
[ ! -e "$1/fails-$way" ] || exit 3
echo "step 1: 999 ms"
echo "step 2: $(sed -n "$(grep -c "^$way" "$1/turns")p" "$1/$way") ms"
SH
chmod +x "$folder/program"
printf '%s\n' 100 110 95 105 >"$folder/off"
printf '%s\n' 80 85 81 79 >"$folder/on"

ab --pairs 4 --warm-up 0 --max-bytes 1M --value 'step \d: (\S+) ms' --json "$folder/json" -- "$folder/program" "$folder"
status=$?
[ $status = 0 ] && [ "$(tr '\n' ' ' <"$folder/turns")" = "off  on 1M on 1M off  off  on 1M on 1M off  " ]
report $? ab__pairs__take_turns_and_options_reach_the_runs_with_llane
# Student's interval of the four log ratios with t(3) = 3.182446, computed with bc.
cat >"$folder/compare.py" <<'PYTHON'
import json, sys
with open(sys.argv[1], encoding="utf-8") as file:
    result = json.load(file)
got = [result["speedup"], *result["speedup_95"]]
want = [float(line) for line in sys.stdin]
assert len(want) == 3 and all(abs(g - w) < 2e-4 for g, w in zip(got, want)), (got, want)
assert result["off"] == {"median": 102.5, "min": 95.0, "max": 110.0}, result
assert result["on"] == {"median": 80.5, "min": 79.0, "max": 85.0}, result
PYTHON
printf '%s\n' 1.260147 1.156278 1.373346 | python3 "$folder/compare.py" "$folder/json" 2>>"$folder/err"
report $? ab__interval__is_students
grep -q 'with llane 1.260 times as fast (1.156 to 1.373' "$folder/out"
report $? ab__text__says_so

# 40 ratios of 1.25 and 0.8 in turns: exp(-+ t(39) ln 1.25 / sqrt(39)) with the tables' t(39) = 2.0227.
for _ in {1..20}; do echo 80 && echo 125; done >"$folder/on"
for _ in {1..40}; do echo 100; done >"$folder/off"
rm "$folder/turns"
ab --pairs 40 --warm-up 0 --value 'step \d: (\S+) ms' --json "$folder/json" -- "$folder/program" "$folder"
printf '%s\n' 1 0.930277 1.074949 | python3 -c 'import json, sys
result = json.load(open(sys.argv[1], encoding="utf-8"))
got, want = [result["speedup"], *result["speedup_95"]], [float(line) for line in sys.stdin]
assert all(abs(g - w) < 2e-4 for g, w in zip(got, want)), (got, want)' "$folder/json" 2>>"$folder/err"
report $? ab__interval_of_many_pairs__is_students
printf '%s\n' 80 85 81 79 >"$folder/on"
printf '%s\n' 100 110 95 105 >"$folder/off"

rm "$folder/turns"
ab --pairs 4 --warm-up 0 --higher-is-better --value 'step \d: (\S+) ms' -- "$folder/program" "$folder" &&
    grep -q 'with llane slower: 0.794 times' "$folder/out"
report $? ab__higher_is_better__ratio_turned_round
printf '%s\n' 100 90 110 100 >"$folder/on"
printf '%s\n' 100 100 100 100 >"$folder/off"
rm "$folder/turns"
ab --pairs 4 --warm-up 0 --value 'step \d: (\S+) ms' -- "$folder/program" "$folder" &&
    grep -q 'no difference can be told' "$folder/out"
report $? ab__interval_around_one__no_difference_claimed

ab --pairs 2 --warm-up 1 -- sh -c 'exit 0' && grep -q 'median .* seconds' "$folder/out"
report $? ab__no_value__seconds
rm "$folder/turns"
touch "$folder/fails-on"
ab --pairs 2 --warm-up 0 -- "$folder/program" "$folder"
[ $? = 1 ] && grep -q 'the command ended with 3, with llane' "$folder/err"
report $? ab__command_fails__ends_and_says_which_way
for wrong in '' '--pairs 1 -- true' '--value step -- true' '--higher-is-better -- true' '--pairs 2 --value (x) -- true' \
    '--sideways -- true'; do
    # shellcheck disable=SC2086 # words on purpose
    ab $wrong
    status=$?
    [ $status != 0 ] && [ -s "$folder/err" ]
    report $? "ab__wrong_${wrong// /_}__refused"
done

# Known before anything runs, and in one line.
rm -f "$folder/fails-on" "$folder/turns"
for option in "--json $folder/none/x" "--plot $folder/none/x.svg" '--value ('; do
    # shellcheck disable=SC2086 # words on purpose
    ! ab --pairs 2 $option -- "$folder/program" "$folder" && [ "$(wc -l <"$folder/err")" = 1 ] && [ ! -e "$folder/turns" ]
    report $? "ab__${option%% *}_that_cannot_be__said_before_a_run"
done

# The plot needs matplotlib, which may be missing: said before anything runs.
rm -f "$folder/fails-on" "$folder/turns"
if scripts/plot --check 2>/dev/null; then
    ab --pairs 2 --plot "$folder/ab.svg" -- true && grep -q '<svg' "$folder/ab.svg"
    report $? ab__plot__is_drawn
else
    ab --pairs 2 --plot "$folder/ab.svg" -- "$folder/program" "$folder"
    [ $? = 1 ] && grep -q 'matplotlib is missing' "$folder/err" && [ ! -e "$folder/turns" ]
    report $? ab__plot__matplotlib_missing_is_said_first
fi
echo "1..$n"
