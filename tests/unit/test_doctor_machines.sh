#!/bin/bash
# Proves that llane doctor finds in every machine of tests/machines exactly what it should, nothing on
# the healthy ones, and that recordings which make no sense end with exit status 2 and a plain error.
# Reports TAP. LLANE_MACHINES=name picks.
set -u
cd "$(dirname "$0")/../.." || exit 1
doctor=${LLANE_BUILD:?set by make test}/llane-doctor
out=$LLANE_BUILD/tests/machines
rm -rf "$out" && mkdir -p "$out" || exit 1
# shellcheck disable=SC2086 # several names
tests/machines/make_machines "$out" ${LLANE_MACHINES:-} || exit 1

number=0 failed=0
report() { # NAME STATUS
    number=$((number + 1))
    [ "$2" -eq 0 ] && echo "ok $number - $1" && return
    sed 's/^/# /' "$out/text" "$out/stderr" "$out/why"
    echo "not ok $number - $1"
    failed=1
}

# One line of ids in alphabetical order, and the exit status that the JSON names.
ids() {
    python3 - "$1" <<'PY'
import json, sys
report = json.load(open(sys.argv[1]))
print(report["exit"], " ".join(sorted(f["id"] for f in report["findings"])))
PY
}

judge() { # NAME: compares what the doctor says with NAME.expected
    local root=$out/$1 status ids words bad=0
    local expected=$out/$1.expected
    : >"$out/why"
    timeout 20 "$doctor" --root "$root" >"$out/text" 2>"$out/stderr"
    status=$?
    [ "$status" -eq "$(sed -n 1p "$expected")" ] || { echo "exit status $status" >>"$out/why"; bad=1; }
    ids=$(sed -n 2p "$expected")
    if [ "$ids" = hostile ]; then
        [ ! -s "$out/text" ] || { echo "a report of a machine that makes no sense" >>"$out/why"; bad=1; }
    else
        timeout 20 "$doctor" --root "$root" --json >"$out/json" 2>>"$out/stderr"
        [ "$(ids "$out/json")" = "$status $ids" ] ||
            { echo "found: $(ids "$out/json"), expected: $(sed -n 1,2p "$expected")" >>"$out/why"; bad=1; }
        [ ! -s "$out/stderr" ] || bad=1
        # Commands may be long, and are copied whole.
        grep -v '^    \$ ' "$out/text" | awk 'length > 100' | grep . >>"$out/why" && bad=1
    fi
    while read -r words; do
        tr -s ' \n' ' ' <"$out/text" | cat - "$out/stderr" | grep -qF -- "$words" ||
            { echo "not said: $words" >>"$out/why"; bad=1; }
    done < <(sed -n 's/^says //p' "$expected")
    report "$1" $bad
}

for expected in "$out"/*.expected; do
    judge "$(basename "$expected" .expected)"
done

if [ -z "${LLANE_MACHINES:-}" ]; then
    "$doctor" --root "$out/healthy_4_on_2_sockets" >"$out/text" 2>"$out/stderr"
    : >"$out/why"
    [ "$(wc -l <"$out/text")" -le 40 ]
    report "four GPUs fit on one screen" $?

    : >"$out/why"
    for id in $(sed -n 2p -s "$out"/*.expected | tr ' ' '\n' | sort -u | grep -v hostile); do
        grep -q "\`$id\`" docs/doctor.md || echo "docs/doctor.md lacks $id" >>"$out/why"
    done
    [ ! -s "$out/why" ]
    report "every finding is explained in docs/doctor.md" $?

    # This machine, whatever it is: recorded, and the recording says the same.
    "$doctor" --no-measure --record "$out/this" --json >"$out/live" 2>"$out/stderr"
    status=$?
    "$doctor" --root "$out/this" --json >"$out/text" 2>>"$out/stderr"
    [ $? -eq $status ] && [ $status -le 2 ] && [ ! -s "$out/stderr" ] &&
        diff <(ids "$out/live") <(ids "$out/text") >"$out/why" && grep -q '"kernel": "[0-9]' "$out/text"
    report "this machine and its recording are judged alike" $?
    : >"$out/why"
    "$doctor" --no-measure >"$out/text" 2>"$out/stderr"
    grep -qE 'PCI: [0-9]|^GPU ' "$out/text"
    report "a machine without a GPU shows its PCI and system part" $?

    "$doctor" --root "$out/none" >"$out/text" 2>"$out/stderr"
    [ $? -eq 2 ] && grep -q 'no folder' "$out/stderr"
    report "a recording that is not there" $?
    "$doctor" --frob >"$out/text" 2>"$out/stderr"
    [ $? -eq 2 ] && "$doctor" --help | grep -q -- --record
    report "unknown options, help" $?
    "$doctor" --no-measure --program "$doctor" >"$out/text" 2>"$out/stderr"
    grep -q 'NCCL' "$out/text"
    report "a program's NCCL is named" $?

    # A launcher that binds its ranks: the doctor finds them, their CPUs and no one else.
    # shellcheck disable=SC2016 # expanded by the job
    "$doctor" --no-measure --after 1 --json -- bash -c '
        LOCAL_RANK=0 CUDA_VISIBLE_DEVICES=0 taskset -c 0 sleep 3 &
        LOCAL_RANK=1 CUDA_VISIBLE_DEVICES=1 sleep 3 & sleep 3 & wait' >"$out/text" 2>"$out/stderr"
    python3 - "$out/text" >"$out/why" 2>&1 <<'PY'
import json, sys
ranks = json.load(open(sys.argv[1]))["ranks"]
assert [r["rank"] for r in ranks] == [0, 1], ranks
assert ranks[0]["cpus"] == "0", ranks
PY
    report "the ranks of a job that it starts" $?

    # Every rank of a job runs a doctor: one report, of all.
    for rank in 0 1 2; do
        LOCAL_RANK=$rank "$doctor" --no-measure --after 3 --json >"$out/rank$rank" 2>"$out/stderr" &
    done
    wait
    cp "$out/rank0" "$out/text"
    [ ! -s "$out/rank1" ] && [ ! -s "$out/rank2" ] && python3 - "$out/text" >"$out/why" 2>&1 <<'PY'
import json, sys
ranks = json.load(open(sys.argv[1]))["ranks"]
assert [r["rank"] for r in ranks] == [0, 1, 2], ranks
PY
    report "inside a job the first rank reports on all" $?
fi

echo "1..$number"
exit $failed
