#!/bin/bash
# Proves that `llane tune` takes into its table what wins every time, and nothing else, against a bench
# whose times are known; and that llane reads such a table from a run on the emulation. TAP.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/tap.bash
explain() { cat "$folder/out" "$folder/err"; }
build=${LLANE_BUILD:?run it through make test}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
unset NCCL_TUNER_PLUGIN LD_PRELOAD LLANE_STATS LLANE_ENABLE LLANE_NCCL_TUNING

# A bench that takes 10 us without a table. With one: ring ll halves the small sizes, tree simple with 8
# channels the large ones; tree ll wins by 3 %; ring simple wins the first time only; tree ll128 wins
# alone, and not in company.
cat >"$folder/llane" <<'PYTHON'
#!/usr/bin/env python3
import json, os, sys
assert sys.argv[1] == "bench" and "--json" in sys.argv, sys.argv
path, folder = os.environ.get("LLANE_NCCL_TUNING"), os.path.dirname(sys.argv[0])
with open(folder + "/calls", "a") as file:
    file.write(" ".join(sys.argv[1:]) + "\n")
rows = [r.strip().split(",") for r in open(path)][1:] if path else []
def us(size):
    for func, low, high, ranks, nodes, algorithm, protocol, channels in rows:
        assert (func, ranks, nodes) == ("allreduce", "*", "*")
        if (low != "*" and size < int(low)) or (high != "*" and size > int(high)):
            continue
        key = (algorithm, protocol, channels)
        if key == ("ring", "ll", "*") and size <= 4096:
            return 5
        if key == ("tree", "simple", "8") and size >= 16384:
            return 4
        if key == ("tree", "ll", "*"):
            return 9.7
        if key == ("tree", "ll128", "*") and size == 65536:
            return 3 if len(rows) == 1 and low == "*" else 12
        if key == ("ring", "simple", "*") and size == 8192:
            once = folder + "/once"
            if not os.path.exists(once):
                open(once, "w").close()
                return 1
    return 10
sizes = [{"bytes": s, "nccl_us": {"median": us(s)}} for s in (1024, 4096, 8192, 16384, 65536)]
json.dump({"nccl": "2.30.7", "gpus": 1, "emulated": False, "sizes": sizes}, sys.stdout)
PYTHON
chmod +x "$folder/llane"
tune() { tools/llane-tune --llane "$folder/llane" "$@" >"$folder/out" 2>"$folder/err"; }

tune --ranks 4 --channels '*,8' --out "$folder/table.csv" -- --reps 7
status=$?
grep -v '^#' "$folder/table.csv" | sed 's/ *#.*//' >"$folder/rows"
[ $status = 0 ] && diff "$folder/rows" - <<'CSV' >>"$folder/err"
collective,from,to,ranks,nodes,algorithm,protocol,channels
allreduce,1024,8191,4,1,ring,ll,*
allreduce,16384,65535,4,1,tree,simple,8
CSV
report $? tune__combinations__winners_of_every_pass_and_of_the_last_one
grep -q 'NCCL 2.30.7, 4 ranks on 1 GPU' "$folder/table.csv" && grep -q 'ring,ll,\* # 2.00 times' "$folder/table.csv"
report $? tune__table__says_what_was_measured
[ "$(sort -u "$folder/calls")" = "bench --json --ranks 4 --env LLANE_MAX_BYTES=0 --sizes 8K:64M:4 --reps 7" ]
report $? tune__bench__gets_its_options

tune --algorithms tree --protocols ll --channels '*' && grep -q 'nothing beat' "$folder/err" &&
    [ "$(grep -vc '^#' "$folder/out")" = 1 ]
report $? tune__gain_below_the_bar__empty_table
for wrong in '--algorithms star' '--protocols ll256' '--channels 0' '--channels 65' '--passes 0' '--gain 0' '--up'; do
    # shellcheck disable=SC2086 # words on purpose
    ! tune $wrong && [ -s "$folder/err" ]
    report $? "tune__wrong_${wrong// /_}__refused"
done
rm "$folder/calls"
! tune --algorithms tree --protocols ll --channels '*' --out "$folder/none/x" && [ "$(wc -l <"$folder/err")" = 1 ] &&
    [ ! -e "$folder/calls" ]
report $? tune__table_that_cannot_be_written__said_before_a_run

# The real way: bench on the emulation, whose NCCL asks the tuner at every call.
tools/llane tune --emulate --algorithms ring --protocols ll --channels '*' --passes 1 --sizes 1K \
    --out "$folder/emulated.csv" -- --reps 3 --ops 4 >"$folder/out" 2>"$folder/err" &&
    grep -q 'EMULATED' "$folder/emulated.csv"
report $? tune__emulated__goes_all_the_way
export LD_LIBRARY_PATH=$build/emu
NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT tools/llane run --emulate --set NCCL_TUNING="$folder/table.csv" -- \
    "$build/tests/emu/prog_ranks" 2 "$build/tests/emu/prog_allreduce" --counts 5,200000 >"$folder/out" 2>"$folder/err" &&
    [ "$(cat "$folder/out" "$folder/err" | grep -c "table.csv: 2 lines for calls that stay with NCCL")" -ge 2 ]
report $? tune__its_table__is_read_by_every_rank
echo "1..$n"
