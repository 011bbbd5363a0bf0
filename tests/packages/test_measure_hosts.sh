#!/bin/bash
# Proves that scripts/measure_hosts, tried on the emulation, writes its results, records a step that
# fails or takes too long, goes on, and keeps its time limit. TAP.
set -u
# shellcheck source=tests/packages/common.bash
. "$(dirname "$0")/common.bash"

measure() { # measure FOLDER OPTION...
    BUILD=$(dirname "$build") timeout -k 5 150 scripts/measure_hosts --emulate --ranks 2 "${@:2}" "$out/$1" \
        >"$out/said" 2>&1
}
result() { awk -F, -v step="$2" '$1 == step { print $2 }' "$out/$1/steps.csv"; } # result FOLDER STEP

measure all --soak 2
status=$?
bad=0
for step in build pairs doctor demo bench-2-graph-peer bench-2-graph-host correct-2-peer-graph correct-2-host-eager \
    calibrate abort kill demo-after-kill soak; do
    [ "$(result all "$step")" = ok ] || { echo "$step: $(result all "$step")" >>"$out/said"; bad=1; }
done
report $bad steps__on_the_emulation__end_well
[ "$(result all torch-2-peer-llane)" = skipped ] && grep -q 'torch-2-peer-llane.*no GPU' "$out/all/steps.csv"
report $? step__impossible_here__is_skipped_with_its_reason
failures=$(grep -c ',failed,' "$out/all/steps.csv")
[ $status -eq $((failures > 0)) ]
report $? status__is_1_where_a_step_failed
python3 - "$out/all" >"$out/said" 2>&1 <<'PY'
import json, sys
bench = json.load(open(sys.argv[1] + "/bench-2-graph-peer.json"))
assert bench["ranks"] == 2 and all(s["is_lane"] and s["wrong"] == 0 for s in bench["sizes"]), bench
pairs = [line.split() for line in open(sys.argv[1] + "/pairs.log") if line.startswith("pair ")]
assert len(pairs) == 8 * 7 and all(float(p[3]) > 0 and float(p[4]) > 0 for p in pairs), pairs
assert "findings" in json.load(open(sys.argv[1] + "/doctor.json"))
summary = open(sys.argv[1] + "/summary.md").read()
assert "## bench-2-graph-peer" in summary and "times say nothing about a GPU" in summary, summary
PY
report $? results__are_files

# One GPU and four ranks: a host of its own for each, as NCCL before 2.30 asks, and no MPS where ranks are killed.
mkdir "$out/bin"
printf '#!/bin/sh\necho "GPU 0: of this test"\n' >"$out/bin/nvidia-smi"
chmod +x "$out/bin/nvidia-smi"
PATH=$out/bin:$PATH timeout -k 5 60 scripts/measure_hosts --no-build --limit 6 --ranks 2,4 "$out/shared" >"$out/said" 2>&1
[ $? -eq 1 ] && grep -q 'e 3:NCCL_HOSTID=llane-3 4 .*allreduce' "$out/shared/correct-4-peer-eager.log" &&
    [ -s "$out/shared/summary.md" ]
report $? more_ranks_than_gpus__share_them

measure short --limit 4
[ $? -eq 1 ] && grep -q ',failed,.*no time left' "$out/short/steps.csv" && [ -s "$out/short/summary.md" ]
report $? limit__ends_the_run__with_a_summary
measure all
[ $? -eq 1 ] && grep -q 'is not empty' "$out/said"
report $? folder__with_files__is_left_alone
echo "1..$n"
