#!/bin/bash
# Proves that the fake NCCL loads and closes plugins as each NCCL version does, that its ranks work as
# processes, and that killed ranks leave no file behind. test_fake_nccl.c has its results.
set -u
build=${LLANE_BUILD:?set LLANE_BUILD to the build folder, e.g. build/release}
if [ "${LLANE_V:-release}" != release ] && [ "${LLANE_V:-release}" != debug ]; then
    echo "1..0 # SKIP preloading does not mix with sanitizers"
    exit 77
fi
bin=$build/tests/emu
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
plugins=$tmp/plugins
mkdir "$plugins"
for kind in tuner net profiler env; do
    cp "$bin/lib_blank.so" "$plugins/libnccl-$kind-blank.so"
    cp "$bin/lib_tables.so" "$plugins/libnccl-$kind-tables.so"
done
n=0
failed=0

# check NAME EXPECTED GOT
check() {
    n=$((n + 1))
    if [ "$2" == "$3" ]; then
        echo "ok $n - $1"
    else
        failed=1
        echo "not ok $n - $1"
        diff <(echo "$2") <(echo "$3") | sed 's/^/# /'
    fi
}

# record VERSION [NAME=VALUE...] [-- program args]: what happened, in order
record() {
    local version=$1
    shift
    local settings=()
    while [ $# -gt 0 ] && [ "$1" != -- ]; do
        settings+=("$1")
        shift
    done
    [ $# -gt 0 ] && shift
    [ $# -gt 0 ] || set -- --iters 1 --counts 3
    rm -f "$tmp/record"
    env -u NCCL_TUNER_PLUGIN -u NCCL_NET_PLUGIN -u NCCL_ENV_PLUGIN -u NCCL_PROFILER_PLUGIN \
        "FAKE_NCCL_VERSION=$version" "RECORD_FILE=$tmp/record" "LD_PRELOAD=$bin/lib_record_dl.so" \
        "LD_LIBRARY_PATH=$plugins" "${settings[@]}" "$bin/prog_allreduce" "$@" >"$tmp/output" 2>&1
    status=$?
    [ -f "$tmp/record" ] && sed "s,$plugins,DIR,g" "$tmp/record"
}
tuner_versions() { # the symbols asked for, as their numbers
    sed -n 's/^sym ncclTunerPlugin_v\([0-9]*\) .*/\1/p' | tr '\n' ' '
}
opens() { # what was opened, for the given kind
    grep "^open [^ ]*\($1\)" | sed 's/^open //; s/ local / /'
}

# ---- tuner: symbols in order, flags, names ----
while read -r version expected; do
    check "$version looks for tuner tables $expected" "$expected " \
        "$(record "$version" "NCCL_TUNER_PLUGIN=$plugins/libnccl-tuner-blank.so" | tuner_versions)"
done <<'END'
2.19.3 1
2.20.5 1
2.21.5 2
2.22.3 3 2
2.23.4 3 2
2.24.3 4 3 2
2.25.1 4 3 2
2.26.6 4 3 2
2.27.7 4 3 2
2.28.9 5 4 3 2
2.29.7 5 4 3 2
2.30.7 6 5 4 3 2
END
check "2.18.5 has no tuner" "" "$(record 2.18.5 NCCL_TUNER_PLUGIN=blank | opens tuner)"
check "2.19 takes the value for a file" "blank lazy missing" \
    "$(record 2.19.3 NCCL_TUNER_PLUGIN=blank | opens blank)"
check "2.21 tries the literal name, then the prefixed one, lazily" \
    "$(printf 'blank lazy missing\nlibnccl-tuner-blank.so lazy found')" \
    "$(record 2.21.5 NCCL_TUNER_PLUGIN=blank | opens blank)"
check "2.26 binds at once" "$(printf 'blank now missing\nlibnccl-tuner-blank.so now found')" \
    "$(record 2.26.6 NCCL_TUNER_PLUGIN=blank | opens blank)"
check "2.26 tries a prefix before a path too" \
    "$(printf './x.so now missing\nlibnccl-tuner-./x.so.so now missing')" \
    "$(record 2.26.6 NCCL_TUNER_PLUGIN=./x.so | opens x.so)"
check "2.27 takes a path literally" "./x.so now missing" \
    "$(record 2.27.7 NCCL_TUNER_PLUGIN=./x.so | opens x.so)"
check "2.28 takes a library's name literally" "libx.so now missing" \
    "$(record 2.28.9 NCCL_TUNER_PLUGIN=libx.so | opens x.so)"
long=$(printf 'a%.0s' {1..300})
check "2.26 cuts names at 254 characters" "254" \
    "$(record 2.26.6 "NCCL_TUNER_PLUGIN=$long" | sed -n 's/^open \(a*\) .*/\1/p' | tr -d '\n' | wc -c)"
check "2.25 does not" "300" \
    "$(record 2.25.1 "NCCL_TUNER_PLUGIN=$long" | sed -n 's/^open \(a*\) .*/\1/p' | tr -d '\n' | wc -c)"
check "no variable: libnccl-tuner.so" "libnccl-tuner.so now missing" "$(record 2.28.9 | opens tuner)"
check "none: nothing" "" "$(record 2.28.9 NCCL_TUNER_PLUGIN=none | opens tuner)"
check "2.23 looks for a tuner in the net plugin's library last" \
    "$(printf 'ghost lazy missing\nlibnccl-tuner-ghost.so lazy missing\nblank lazy missing\nlibnccl-net-blank.so lazy found')" \
    "$(record 2.23.4 NCCL_TUNER_PLUGIN=ghost NCCL_NET_PLUGIN=blank | opens 'ghost\|blank' | grep lazy)"
check "a library without a table is closed again, once for all communicators" \
    "$(printf 'loaded\nopen libnccl-tuner-blank.so now local found\nunloaded')" \
    "$(record 2.28.9 NCCL_TUNER_PLUGIN=blank -- --comms 2 --iters 1 --counts 3 |
        grep 'loaded\|tuner-blank')"

# ---- tuner: use of the table, close at zero ----
while read -r version table; do
    expected=$(printf '%s\n' loaded "tuner v$table init ranks 2 nodes 1 id $([ "$table" -ge 5 ] && echo given || echo none)" \
        "tuner v$table get func 4 bytes 12 context right" "tuner v$table end context right" unloaded)
    check "$version uses table $table: init, get, end, close" "$expected" \
        "$(record "$version" "NCCL_TUNER_PLUGIN=$plugins/libnccl-tuner-tables.so" -- \
            --threads 2 --iters 1 --counts 3 | grep -v '^open\|^sym\|^close' | uniq)"
done <<'END'
2.19.3 1
2.21.5 2
2.23.4 3
2.27.7 4
2.28.9 5
2.30.7 6
END
check "a host id a rank: the tuner hears of two nodes" "tuner v5 init ranks 2 nodes 2 id given" \
    "$(rm -f "$tmp/record"; NCCL_TUNER_PLUGIN=tables LD_LIBRARY_PATH=$plugins RECORD_FILE=$tmp/record \
        "$bin/prog_ranks" -e 0:NCCL_HOSTID=a -e 1:NCCL_HOSTID=b 2 "$bin/prog_allreduce" >/dev/null
        grep init "$tmp/record" | uniq)"
record 2.28.9 NCCL_TUNER_PLUGIN=tables TABLES_FAIL=tuner >/dev/null
check "a tuner's error fails the creation" "1" "$status"
check "the library is closed while the program still runs" "1" \
    "$(record 2.28.9 NCCL_TUNER_PLUGIN=tables | grep -c '^close')"
check "plugins log through NCCL" "1" \
    "$(record 2.28.9 NCCL_TUNER_PLUGIN=tables NCCL_DEBUG=INFO >/dev/null
        grep -c 'NCCL INFO tuner v5 says hello' "$tmp/output")"

# ---- env, net, profiler ----
check "2.27 has no env plugin" "" "$(record 2.27.7 NCCL_ENV_PLUGIN=tables | grep '^env')"
check "2.28.9 loads env v1 before anything else, ends it at exit" \
    "$(printf 'open tables now local missing\nloaded\nopen libnccl-env-tables.so now local found\nsym ncclEnvPlugin_v1 found\nenv v1 init 2.28.9\nopen libnccl-net.so now local missing')" \
    "$(record 2.28.9 NCCL_ENV_PLUGIN=tables | head -6)"
check "and closes it" "$(printf 'env end\nclose\nunloaded')" \
    "$(record 2.28.9 NCCL_ENV_PLUGIN=tables | tail -3)"
check "2.30.7 prefers env v2" "env v2 init 2.30.7" \
    "$(record 2.30.7 NCCL_ENV_PLUGIN=tables | grep '^env.*init')"
record 2.28.9 NCCL_ENV_PLUGIN=tables TABLES_FAIL=env >/dev/null
check "an env plugin's error is fatal" "1" "$status"
check "2.20 knows no literal net name" "libnccl-net-blank.so now found" \
    "$(record 2.20.5 NCCL_NET_PLUGIN=blank | opens blank)"
check "a net plugin without tables is loaded, looked into and closed" \
    "$(printf 'open blank now local missing\nloaded\nopen libnccl-net-blank.so now local found\nsym ncclNetPlugin_v11 missing\nsym ncclNetPlugin_v10 missing\nsym ncclNetPlugin_v9 missing\nsym ncclNetPlugin_v8 missing\nsym ncclNetPlugin_v7 missing\nsym ncclNetPlugin_v6 missing\nclose\nunloaded')" \
    "$(record 2.28.9 NCCL_NET_PLUGIN=blank | grep -v 'libnccl-env\|libnccl-prof\|libnccl-tuner')"
check "2.27 takes a list of net plugins" "libnccl-net-blank.so libnccl-net-tables.so " \
    "$(record 2.27.7 NCCL_NET_PLUGIN=blank,tables | sed -n 's/^open \(libnccl-net[^ ]*\) .* found/\1/p' |
        tr '\n' ' ')"
check "2.22 has no profiler plugin" "" "$(record 2.22.3 NCCL_PROFILER_PLUGIN=blank | opens prof)"
check "a profiler plugin without tables is loaded, looked into and closed" \
    "$(printf 'sym ncclProfiler_v5 missing\nsym ncclProfiler_v4 missing\nsym ncclProfiler_v3 missing\nsym ncclProfiler_v2 missing\nsym ncclProfiler_v1 missing\nclose\nunloaded')" \
    "$(record 2.28.9 NCCL_PROFILER_PLUGIN=blank | grep 'sym ncclProf\|close\|unloaded')"

while read -r version table told; do
    expected=$(printf '%s\n' loaded "profiler v$table init $told" "profiler v$table end context right" unloaded)
    check "$version uses profiler table $table: init, end, close" "$expected" \
        "$(record "$version" "NCCL_PROFILER_PLUGIN=$plugins/libnccl-profiler-tables.so" -- \
            --kind config --name tp --iters 1 --counts 3 | grep -v '^open\|^sym\|^close')"
done <<'END'
2.23.4 1 ranks 0 nodes 0 rank 0 id none name none
2.24.3 2 ranks 0 nodes 0 rank 0 id none name none
2.26.6 3 ranks 0 nodes 0 rank 0 id none name none
2.27.7 4 ranks 1 nodes 1 rank 0 id given name tp
2.28.9 5 ranks 1 nodes 1 rank 0 id given name tp
2.30.7 6 ranks 1 nodes 1 rank 0 id given name tp
END
check "2.25 takes the profiler's value for a file" "blank now missing" \
    "$(record 2.25.1 NCCL_PROFILER_PLUGIN=blank | opens blank)"
record 2.28.9 NCCL_PROFILER_PLUGIN=tables TABLES_FAIL=profiler >/dev/null
check "a profiler's error is none" "0" "$status"

# ---- ranks as processes ----
export FAKE_NCCL_SHM_TAG=$$ # other tests run beside this one
left_over() { find /dev/shm -maxdepth 1 -name "llane-fake-nccl-$$-*" | wc -l; }
run() { # run NAME prog_ranks-arguments...
    local name=$1
    shift
    "$bin/prog_ranks" -t 60 "$@" >"$tmp/output" 2>&1
    local status=$?
    [ "$status" == 0 ] || sed 's/^/# /' "$tmp/output"
    check "$name" 0 "$status"
}
run "processes: sizes, alignments, in place" 3 "$bin/prog_allreduce" --counts 0,1,3,4097,100000 \
    --offsets 0,1,3 --in-place 2 --batch 2 --types float32,bfloat16,int8
run "processes: every type and operation" 4 "$bin/prog_allreduce" --types all --ops all --counts 77 \
    --iters 1
run "processes: groups over streams and communicators" 4 "$bin/prog_allreduce" --group --batch 8 \
    --streams 3 --comms 2
run "processes: graphs between eager calls" 3 "$bin/prog_allreduce" --mix --streams 2 --batch 5 --iters 10
run "processes: 16 MiB" 2 "$bin/prog_allreduce" --counts 4194304 --iters 1
run "processes: 16 ranks" 16 "$bin/prog_allreduce" --iters 1
for kind in config nonblocking scalable split halves; do
    run "processes: communicators by $kind" 4 "$bin/prog_allreduce" --kind $kind --comms 2 --batch 2
done
for end in finalize abort leave; do
    run "processes: $end" 2 "$bin/prog_allreduce" --end $end
done
run "found by dlsym in a local library" 2 "$bin/prog_dlopen" "$build/emu/libnccl.so.2"

FAKE_NCCL_TRACE=$tmp/trace "$bin/prog_ranks" 2 "$bin/prog_allreduce" --counts 0,5,600 --iters 2 \
    --types float16 >/dev/null
check "the trace has a line a call that carried data" \
    "$(printf '2 0 AllReduce 5 float16\n2 0 AllReduce 600 float16\n2 1 AllReduce 5 float16\n2 1 AllReduce 600 float16')" \
    "$(cut -d' ' -f1-4 "$tmp/trace" | sort | uniq -c | sed 's/^ *//')"

"$bin/prog_ranks" -t 20 -k 1:300 3 "$bin/prog_allreduce" --iters 100000 --counts 8 >/dev/null 2>&1 &
harness=$!
sleep 2
check "a killed rank: the others wait, as with NCCL" "running" \
    "$(kill -0 $harness 2>/dev/null && echo running)"
kill "$harness" 2>/dev/null
wait "$harness" 2>/dev/null
check "no file is left of it" 0 "$(left_over)"
# Rank 1 never comes; rank 0 is killed where it waits for it.
"$bin/prog_ranks" -t 3 -k 0:500 -e 1:RANK=0 -e 1:RANKS_DIR=/nonexistent 2 "$bin/prog_allreduce" \
    >"$tmp/output" 2>&1
check "nor of a rank killed while it waited for the others" 0 "$(left_over)"
# Ranks 0 and 1 wait for rank 2, which takes its time; rank 0 is killed there.
"$bin/prog_ranks" -t 20 -K 0:here -e 1:NCCL_DEBUG=WARN 3 bash -c "
    [ \$RANK = 2 ] && exec sleep 5
    [ \$RANK = 0 ] && (sleep 0.5; touch \$RANKS_DIR/here) &
    exec '$bin/prog_allreduce'" >"$tmp/output" 2>&1
check "a rank that dies during creation is an error for those that wait" "1 1" \
    "$? $(grep -c 'rank 0 died before all 3 ranks' "$tmp/output")"
check "and leaves no file" 0 "$(left_over)"
"$bin/prog_ranks" -t 1 1 sleep 10 2>/dev/null
check "the harness kills at its time limit" 124 $?
"$bin/prog_ranks" 2 bash -c "exit \$((RANK * 3))" 2>/dev/null
check "and returns the worst status" 3 $?
echo "1..$n"
exit $failed
