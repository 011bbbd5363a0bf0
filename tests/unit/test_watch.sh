#!/bin/bash
# Proves that llane watch finds each drop, error, throttling and vanishing of a recorded sequence, sums
# them up with their period, writes a CSV that agrees, and refuses what makes no sense. Reports TAP.
set -u
cd "$(dirname "$0")/../.." || exit 1
watch=${LLANE_BUILD:?set by make test}/llane-watch
out=$LLANE_BUILD/tests/watch
rm -rf "$out" && mkdir -p "$out" || exit 1
tests/machines/make_sequence "$out/sequence" || exit 1

number=0 failed=0
report() { # NAME STATUS
    number=$((number + 1))
    [ "$2" -eq 0 ] && echo "ok $number - $1" && return
    sed 's/^/# /' "$out/stdout" "$out/stderr"
    echo "not ok $number - $1"
    failed=1
}
said() { tr -s ' ' <"$out/stdout" | grep -qF -- "$1" || { echo "# not said: $1" && return 1; }; }
count() { grep -cE -- "$1" "$out/stdout"; }

"$watch" --root "$out/sequence" --log "$out/watch.csv" >"$out/stdout" 2>"$out/stderr"
[ $? -eq 2 ] && [ ! -s "$out/stderr" ]
report "a GPU that vanished makes the exit status 2" $?
[ "$(count 'GPU 1 .*: link 32 GT/s x16 -> 2.5 GT/s x16')" -eq 7 ] &&
    [ "$(count 'GPU 1 .*: link 2.5 GT/s x16 -> 32 GT/s x16')" -eq 7 ] &&
    [ "$(count 'drop at .* for 5.0 s, down to 2.5 GT/s x16')" -eq 7 ]
report "each of 7 drops with its length" $?
said ' about every 40.0 s'
report "their period" $?
[ "$(count 'about every')" -eq 1 ]
report "one drop has no period" $?
[ "$(count 'drop at +100.000 s for 10.0 s, down to 32 GT/s x8')" -eq 1 ] &&
    said ' 32 GT/s x8 31.5 GB/s 10.0 s 3.3 %' && said ' 2.5 GT/s x16 4.0 GB/s 35.0 s 11.7 %'
report "time spent at each speed and width" $?
said '200.000 s GPU 1 (0000:13:00.0): VANISHED' && said 'is back after 14.0 s' &&
    said 'vanished 1 times, gone for 14.0 s' && said 'Xid 79: the GPU fell off the bus' && said 'Xid lines: 1'
report "a GPU that vanishes and comes back, with its Xid" $?
[ "$(count 'switch port 0000:11:00.0: corrected errors \+3')" -eq 3 ] && said 'errors: corrected 9,'
report "errors of a bridge" $?
said 'slowed down by: none -> hardware thermal (93 C)' && said 'slowed down for 10.0 s by: hardware thermal'
report "throttling" $?
python3 - "$out/watch.csv" >"$out/stderr" 2>&1 <<'PY'
import csv, sys
rows = list(csv.DictReader(open(sys.argv[1])))
low = [r for r in rows if r["device"] == "0000:13:00.0" and r["event"] == "link"]
assert len(low) == 14, len(low)
assert [float(r["seconds"]) for r in low if r["gt_s"] == "2.5"] == [20 + 40 * i for i in range(7)], low
assert len(rows) < 100, len(rows)  # changes, not samples
gone = [r for r in rows if r["present"] == "0"]
assert [r["event"] for r in gone] == ["vanished"], gone
assert sum(r["event"] == "start" for r in rows) == sum(r["event"] == "end" for r in rows) == 6, rows
PY
report "the CSV has the changes alone" $?

if scripts/plot_watch --check 2>"$out/stderr"; then
    scripts/plot_watch "$out/watch.csv" "$out/watch.svg" 2>"$out/stderr" && grep -q '</svg>' "$out/watch.svg"
    report "a plot" $?
else
    grep -q 'matplotlib is missing' "$out/stderr"
    report "no matplotlib: said" $?
fi

mkdir "$out/quiet" && cp -r "$out/sequence/0000" "$out/sequence/0001" "$out/quiet"
"$watch" --root "$out/quiet" >"$out/stdout" 2>"$out/stderr" && ! grep -q drop "$out/stdout"
report "nothing happened: exit status 0" $?
sed -i 's/ utilization 90/ utilization 0/; s/ pstate 0/ pstate 8/' "$out/quiet/0001/llane/nvml"
echo '2.5 GT/s PCIe' >"$out/quiet/0001/sys/bus/pci/devices/0000:13:00.0/current_link_speed"
"$watch" --root "$out/quiet" >"$out/stdout" 2>"$out/stderr" && said 'idle' && ! grep -q drop "$out/stdout"
report "a slower link at idle is no drop" $?

echo 1e300 >"$out/quiet/0001/llane/time"
"$watch" --root "$out/quiet" >"$out/stdout" 2>"$out/stderr"
[ $? -eq 2 ] && grep -q 'makes no sense' "$out/stderr"
report "a time that makes no sense" $?
rm "$out/quiet/0001/llane/time"
echo 99999999999 >"$out/quiet/0001/sys/bus/pci/devices/0000:13:00.0/current_link_width"
"$watch" --root "$out/quiet" >"$out/stdout" 2>"$out/stderr"
[ $? -eq 2 ] && grep -q 'current_link_width of 0000:13:00.0 makes no sense' "$out/stderr"
report "a width that makes no sense" $?
bad=0
for options in "--every 0" "--every 1x" "--for -1" "--plot x.svg" "--root /none" "word"; do
    # shellcheck disable=SC2086 # an option and its value
    timeout 5 "$watch" $options >"$out/stdout" 2>"$out/stderr"
    if [ $? -ne 2 ] || [ ! -s "$out/stderr" ]; then
        bad=1
        echo "# accepted: $options"
    fi
done
report "options that make no sense" $bad
"$watch" --root "$out/sequence" --log /dev/full >"$out/stdout" 2>"$out/stderr"
[ $? -eq 2 ] && grep -q -- '--log /dev/full' "$out/stderr"
report "a CSV that cannot be written ends it with words" $?

echo "1..$number"
exit $failed
