#!/bin/bash
# Proves that llane bench runs in every mode on the emulation, says which way each size went, finds
# wrong elements, writes JSON, CSV and a plot, refuses bad options, and that Ctrl-C, SIGTERM, a dead
# rank and a stuck rank each end it with nothing left. Reports TAP.
set -u
cd "$(dirname "$0")/../.." || exit 1
export LLANE_BUILD=${LLANE_BUILD:?set by make test}
out=$LLANE_BUILD/tests/bench
rm -rf "$out" && mkdir -p "$out" || exit 1

# shellcheck source=tests/tap.bash
. tests/tap.bash
explain() { cat "$out/stdout" "$out/stderr"; }
bench() { timeout -k 5 100 tools/llane bench --emulate --reps 2 --ops 4 "$@" >"$out/stdout" 2>"$out/stderr"; }
# Rows of the table: a size, eight cells, wrong elements, a route.
rows() { grep -cE "^ +[0-9]+ ( +([0-9.]+|-)){8} +$1" "$out/stdout"; }

bench --ranks 3 --sizes 8:512K:256 && [ "$(rows '0  lane')" -eq 2 ] &&
    [ "$(rows '0  NCCL, ')" -eq 1 ] && grep -q '^EMULATED' "$out/stdout" &&
    grep -q '^floor: [0-9.]* us = ' "$out/stdout"
report $? "graph: the lane's sizes, NCCL's sizes, the floor, marked as emulated"
bench --mode eager --sizes 8:4K:8 --type bfloat16 --op avg && [ "$(rows '0  lane')" -eq 4 ]
report $? "eager"
bench --mode producer --sizes 64:4K:8 --type float16 && [ "$(rows '0  lane')" -eq 3 ] &&
    grep -q 'producer kernels' "$out/stdout"
report $? "producer"
bench --breakdown --sizes 64:4K:8 && [ "$(rows '0  lane')" -eq 3 ] && grep -q 'CPU lane' "$out/stdout"
report $? "breakdown"
# Of each row: all = launch + push + polling + reduce + end, and what was stamped took some time.
awk '$2 ~ /^(spin|sleep)$/ && NF == 9 {
    rest = $3 - $4 - $5 - $6 - $8 - $9; stamped = $5 + $6 + $8 + $9
    if (rest > -0.06 && rest < 0.06 && stamped > 0 && $6 >= 0 && $8 >= 0) rows[$2]++
} END { exit rows["spin"] != 3 || rows["sleep"] != 3 }' "$out/stdout"
report $? "breakdown inside the kernels, spinning and sleeping"
bench --gpus 1 --sizes 64 --env LLANE_ENABLE=0 && [ "$(rows 0)" -eq 1 ] && [ "$(rows '0  lane')" -eq 0 ]
report $? "several ranks on one GPU; --env reaches the ranks; no llane is said"
# The bench reads what rank 0 logs, wherever and whatever the user has it log.
bad=0
export NCCL_DEBUG=VERSION NCCL_DEBUG_SUBSYS=NET NCCL_DEBUG_FILE="$out/log" LLANE_STATS="$out/stats"
for setting in NCCL_DEBUG=WARN NCCL_DEBUG_SUBSYS=NET "NCCL_DEBUG_FILE=$out/log" LLANE_STATS=0; do
    if ! bench --sizes 64 --env "$setting" || [ "$(rows '0  lane')" -ne 1 ] ||
        ! grep -q '^lane: active from ' "$out/stdout" || grep -q 'not loaded' "$out/stdout"; then
        bad=1
        echo "# with --env $setting"
    fi
done
bench --overhead --env LLANE_STATS=0 && grep -q 'added' "$out/stdout" && [ ! -s "$out/stderr" ] || bad=1
report $bad "what NCCL is to log, and LLANE_STATS: no matter"
timeout -k 5 100 tools/llane demo --emulate 2 >"$out/stdout" 2>"$out/stderr" &&
    grep -q '; rank 0 of 2: active from ' "$out/stdout" && grep -q ' ok  *lane: ' "$out/stdout"
report $? "demo: the same"
unset NCCL_DEBUG NCCL_DEBUG_SUBSYS NCCL_DEBUG_FILE LLANE_STATS

# Host memory: 8 B is one LL packet, 3000 B of float32 188 sentinel packets, whose lines are 192; both are
# stored for each of two readers. 24000 B are 1500, stored once, two-shot of 3000 B in shards of 63.
bench --ranks 3 --memory host --sizes 8:3000:375 --env LLANE_ALGO=one-shot &&
    grep -q '^lane: .* over host memory, ' "$out/stdout" &&
    grep -q '^host memory of rank 0: not placed: ' "$out/stdout" &&
    grep -q '^floor: .* through host memory' "$out/stdout" &&
    grep -qE '^ +8 .*0  lane: one-shot LL; over the link 32 out, 32 in$' "$out/stdout" &&
    grep -qE '^ +3000 .*0  lane: one-shot sentinel; over the link 12160 out, 6016 in$' "$out/stdout" &&
    bench --ranks 3 --memory host --sizes 24000 --env LLANE_ALGO=one-shot &&
    grep -qE '^ +24000 .*0  lane: one-shot sentinel; over the link 48000 out, 48000 in$' "$out/stdout"
report $? "--memory host: lane and floor over it, placement, what crosses the link"
bench --ranks 3 --memory host --sizes 3000 --env LLANE_ALGO=two-shot --env LLANE_PACKET=sentinel \
    --json="$out/host.json" &&
    grep -q '"link_bytes": {"out": 6048, "in": 4032}' "$out/host.json" &&
    grep -q '"placement": "not placed: ' "$out/host.json"
report $? "--memory host: two-shot moves fewer bytes in"
EMU_FAULTS='no_peer:*>*' bench --sizes 64 && grep -q '^floor: .* through host memory' "$out/stdout" &&
    grep -q '^lane: .* over host memory, ' "$out/stdout"
report $? "no peer access: lane and floor over host memory"
bench --memory disk
[ $? -eq 2 ] && grep -q 'auto, p2p, host are known' "$out/stderr"
report $? "--memory: what is not known is refused"
bench --skip-nccl --sizes 64 --env LLANE_MAX_BYTES=32 && [ "$(rows '0  NCCL, above LLANE_MAX_BYTES')" -eq 1 ]
report $? "--skip-nccl"
bench --overhead && grep -qE 'NCCL directly [0-9]+ ns, through llane [0-9]+ ns, added -?[0-9]+ ns' "$out/stdout" &&
    [ ! -s "$out/stderr" ]
report $? "overhead: a million calls that llane saw"
# 100 ns is the aim, on a machine with nothing else to do; this notices a lock or a search.
added=$(sed -nE 's/.*added (-?[0-9]+) ns.*/\1/p' "$out/stdout")
case ${LLANE_V:-} in
asan | tsan) report 77 "overhead: little" "of a sanitizer, most of it" ;;
*)
    [ -n "$added" ] && [ "$added" -lt 400 ]
    report $? "overhead: little"
    ;;
esac
bench --overhead --env NCCL_TUNER_PLUGIN=none && grep -q 'llane saw 0 of 1020000 calls' "$out/stderr"
report $? "overhead without llane: said to be worth nothing"

# Results are compared with the tests' NCCL, which shares no code with the reference here.
for type in int8 uint8 int32 uint32 int64 uint64 float16 float32 float64 bfloat16 float8e4m3 float8e5m2; do
    bad=0
    for op in sum prod max min avg; do
        bench --ranks 3 --sizes 8:1000:19 --type $type --op $op --reps 1 --ops 2 || bad=1
        [ "$(rows '0 ')" -eq 2 ] || bad=1
        [ $bad -eq 0 ] || break
    done
    report $bad "$type: every operation is what the reference says"
done
bench --sizes 64:4K:64 --plant-error 1
status=$?
[ $status -eq 1 ] && [ "$(rows 0)" -eq 0 ] && [ "$(rows '[1-9][0-9]*  lane')" -eq 2 ] &&
    grep -q 'wrong elements' "$out/stderr"
report $? "a damaged element is found, at every size, and fails the run"
bad=0
for type in int8 uint64 float64 bfloat16 float8e4m3; do
    bench --sizes 64 --plant-error 0 --type $type && bad=1
done
report $bad "in other types too"

bench --sizes 8:2K:16 --json && python3 - "$out/stdout" <<'PY'
import json, sys
b = json.load(open(sys.argv[1]))
assert b["emulated"] and b["ranks"] == 2 and b["type"] == "float32" and b["threshold_bytes"] == 262144, b
assert [s["bytes"] for s in b["sizes"]] == [8, 128, 2048], b
for s in b["sizes"]:
    lane, nccl = s["lane_us"], s["nccl_us"]
    assert s["is_lane"] and s["wrong"] == 0 and s["checked"] > 0, s
    assert 0 < lane["min"] <= lane["median"] <= lane["p99"] and nccl["median"] > 0, s
    assert abs(s["ratio"] - nccl["median"] / lane["median"]) < 0.01 * s["ratio"] + 1e-3, s
    assert abs(s["lane_over_floor"] * b["floor_us"]["sum"] - lane["median"]) < 0.02 * lane["median"] + 1e-2, s
PY
report $? "JSON says what was measured"
bench --sizes 8:2K:16 --json="$out/b.json" --csv "$out/b.csv" && [ "$(rows '0  lane')" -eq 3 ] &&
    python3 -m json.tool "$out/b.json" >/dev/null && [ "$(wc -l <"$out/b.csv")" -eq 4 ] &&
    [ "$(awk -F, '{print NF}' "$out/b.csv" | sort -u)" = 17 ]
report $? "JSON and CSV files beside the table"
python3 - "$out/b.json" "$out/b.csv" >>"$out/stderr" 2>&1 <<'PY'
import csv, json, sys
b, rows = json.load(open(sys.argv[1])), list(csv.DictReader(open(sys.argv[2])))
assert [int(r["bytes"]) for r in rows] == [8, 128, 2048], rows
for r, s in zip(rows, b["sizes"]):
    assert (r["emulated"], r["ranks"], r["type"], r["op"], r["mode"]) == ("1", "2", "float32", "sum", "graph"), r
    for way in ("lane", "nccl"):
        for what in ("median", "p99", "min"):
            assert abs(float(r[f"{way}_{what}_us"]) - s[f"{way}_us"][what]) < 2e-3, (r, s)
    assert abs(float(r["floor_us"]) - b["floor_us"]["sum"]) < 2e-3, (r, b["floor_us"])
    assert (int(r["wrong"]), int(r["checked"]), r["route"]) == (0, s["checked"], s["route"]), (r, s)
PY
report $? "CSV says what JSON says"
if command -v script >/dev/null; then
    script -qec "tools/llane bench --emulate --reps 5000 --ops 4 --sizes 8:128:16" "$out/typed" >/dev/null 2>&1 &&
        grep -q 'size 1 of 2: ' "$out/typed" && grep -q 'size 2 of 2: ' "$out/typed" &&
        ! sed 's/.*\x1b\[K//' "$out/typed" | grep -q 'size . of 2'
    report $? "on a terminal it shows where it is, and nothing stays of that"
else
    report 77 "on a terminal it shows where it is" "no script(1)"
fi
bench --sizes 8:128:16 && ! grep -q 'size . of 2' "$out/stderr"
report $? "elsewhere it does not"
if scripts/plot --check 2>"$out/stderr"; then
    bench --sizes 8:2K:16 --plot "$out/b.svg" && grep -q '</svg>' "$out/b.svg"
    report $? "a plot"
else
    bench --sizes 8 --plot "$out/b.svg"
    [ $? -eq 1 ] && grep -q 'matplotlib is missing' "$out/stderr"
    report $? "no matplotlib: said before anything is measured"
fi

bad=0
for option in --json= '--csv ' '--plot '; do
    # shellcheck disable=SC2086 # words on purpose
    bench --sizes 8 $option"$out/none/x.svg"
    [ $? -eq 1 ] && [ ! -s "$out/stdout" ] && [ "$(wc -l <"$out/stderr")" -eq 1 ] || bad=1
done
report $bad "a file that cannot be written: said before anything is measured"
LLANE_MAX_BYTE=1K LLANE_MAX_BYTES=abc bench --ranks 3 --sizes 8 --env LLANE_ALGOS=two-shot &&
    [ "$(grep -c 'LLANE_MAX_BYTE is not a variable' "$out/stderr")" -eq 1 ] &&
    [ "$(grep -c 'LLANE_MAX_BYTES=abc is not accepted' "$out/stderr")" -eq 1 ] &&
    [ "$(grep -c 'LLANE_ALGOS is not a variable' "$out/stderr")" -eq 1 ]
report $? "what llane warns about in the ranks is shown, once"

refused() { # refused WORD OPTION...
    local word=$1
    shift
    bench "$@"
    [ $? -eq 2 ] && grep -qe "$word" "$out/stderr" && [ ! -s "$out/stdout" ]
}
bad=0
for sizes in 8:4 x 0 8:64:1 8:64:x 8:64:2x 2G 8: :8 8:64: -8 1:1G:1 8,16; do
    refused "--sizes $sizes: MIN:MAX:FACTOR" --sizes "$sizes" || { bad=1; echo "# accepted: $sizes"; }
done
report $bad "sizes that make no sense are refused by name"
refused '--type float31' --type float31 && refused '--op' --op mean && refused '--mode' --mode fast &&
    refused '--ranks 17' --ranks 17 && refused '--plot' --plot x.gif && refused '--env' --env X &&
    refused 'not expected' 64 && refused 'lists the options' --frob
report $? "so are other options"

# ---- ends ----
# start OPTION...: a long run in the background; returns when it measures. Background jobs of a script
# ignore SIGINT from their birth; env gives it back.
start() {
    env --default-signal=INT tools/llane bench --emulate --ranks 3 --reps 10000 --sizes 8:4K:2 "$@" \
        >"$out/stdout" 2>"$out/stderr" &
    bench_pid=$!
    for _ in $(seq 200); do
        ranks=$(pgrep -P $bench_pid | tr '\n' ' ')
        [ "$(wc -w <<<"$ranks")" -eq 3 ] && sleep 0.7 && return 0
        sleep 0.05
    done
    return 1
}
# A process that only waits for somebody to read its status is none.
is_left() { grep -qs '^State:[[:space:]]*[^ZX]' "/proc/$1/status"; }
# ended SECONDS: the bench and its ranks are gone by then; its exit status is in $status.
ended() {
    local gone=0 pid
    for _ in $(seq $((10 * $1))); do
        kill -0 $bench_pid 2>/dev/null || { gone=1; break; }
        sleep 0.1
    done
    [ $gone -eq 1 ] || { kill -KILL $bench_pid; wait $bench_pid; return 1; }
    wait $bench_pid
    status=$?
    for pid in $ranks; do
        for _ in $(seq 20); do is_left "$pid" || continue 2; sleep 0.1; done
        echo "# rank process $pid is left"
        return 1
    done
}
start && kill -TERM $bench_pid && ended 5 && [ $status -eq $((128 + 15)) ]
report $? "SIGTERM leaves no process"
start && kill -INT $bench_pid && ended 5 && [ $status -eq $((128 + 2)) ]
report $? "Ctrl-C leaves no process"
start && kill -KILL $bench_pid && ended 5 2>/dev/null
report $? "neither does the death of the bench itself"
start && kill -KILL "${ranks%% *}" && ended 5 && [ $status -eq 1 ] &&
    grep -q 'was killed by signal 9' "$out/stderr"
report $? "a rank that dies ends the run, which says so"
start --timeout 2 && kill -STOP "${ranks%% *}" && ended 10 && [ $status -eq 1 ] &&
    grep -q 'no progress for 2 s' "$out/stderr" && grep -q 'rank 2: ' "$out/stderr"
report $? "a stuck rank ends the run after the time limit, and places are named"

echo "1..$n"
