#!/bin/bash
# Proves that `llane run` and `llane env` load the object that lies beside them, say what stands in the
# way, and pass a command's arguments and status on; that `llane demo` and `llane calibrate` take their
# options. TAP.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/tap.bash
explain() { cat "$folder/out" "$folder/err"; }
build=${LLANE_BUILD:?run it through make test}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
object=$(readlink -f "$build/emu/libnccl-tuner-llane.so")
unset NCCL_TUNER_PLUGIN LD_PRELOAD LLANE_STATS LLANE_ENABLE

llane() { tools/llane "$@" >"$folder/out" 2>"$folder/err"; }
said() { grep -qF -- "$1" "$folder/err"; }
silent() { [ ! -s "$folder/err" ]; }

# shellcheck disable=SC2016 # the inner shell expands
llane run --emulate -- sh -c 'echo "$NCCL_TUNER_PLUGIN"; printf "<%s>" "$@"; exit 7' name 'a b' '' '$c'
[ $? = 7 ] && [ "$(cat "$folder/out")" = "$object"$'\n<a b><><$c>' ] && silent
report $? run__command__gets_the_object_its_arguments_and_keeps_its_status

llane run --emulate --stats='s %p.json' --max-bytes 1M --min-bytes=8 --ab alternate --wait \
    --set ALGO=two-shot --set LLANE_BLOCKS=3 env
sort "$folder/out" | grep LLANE_ | grep -v -e LLANE_BUILD -e LLANE_V= -e LLANE_TEST >"$folder/set"
diff "$folder/set" - <<'TEXT' >>"$folder/err"
LLANE_AB=alternate
LLANE_ALGO=two-shot
LLANE_BLOCKS=3
LLANE_MAX_BYTES=1M
LLANE_MIN_BYTES=8
LLANE_STATS=s %p.json
LLANE_WAIT=1
TEXT
report $? run__options__become_variables

llane env --emulate --stats="it's %p" && silent &&
    [ "$(eval "$(cat "$folder/out")" && echo "$NCCL_TUNER_PLUGIN $LLANE_STATS")" = "$object it's %p" ]
report $? env__lines__survive_a_shell

for door in "$object" llane; do
    NCCL_TUNER_PLUGIN=$door llane env --emulate && silent && grep -q "NCCL_TUNER_PLUGIN=$object" "$folder/out"
    report $? "run__NCCL_TUNER_PLUGIN_is_ours_already__no_warning"
done
NCCL_TUNER_PLUGIN=other LD_PRELOAD='' llane env --emulate && said 'NCCL_TUNER_PLUGIN=other stays' &&
    [ "$(cat "$folder/out")" = "export LD_PRELOAD=$object" ]
report $? run__another_tuner__stays_and_another_door_is_used

LLANE_ENABLE=0 llane env --emulate && said 'LLANE_ENABLE=0'
report $? run__disabled__said

printf '#include <stdio.h>\nint main(void) { return puts("NCCL version 2.28.9") < 0; }\n' >"$folder/a.c"
${CC:-gcc} -o "$folder/static" "$folder/a.c" && llane run --emulate -- "$folder/static" &&
    said 'statically'
report $? run__static_NCCL__warned_about_and_run_all_the_same
printf 'const char *name = "libnccl.so.2";\n' >>"$folder/a.c"
${CC:-gcc} -o "$folder/shared" "$folder/a.c" && llane run --emulate -- "$folder/shared" && silent
report $? run__shared_NCCL__no_warning

# An installation: bin/llane with what it sources, lib/libnccl-tuner-llane.so.
mkdir -p "$folder/usr/bin" "$folder/usr/lib"
cp tools/llane tools/llane-run scripts/gpu_env "$folder/usr/bin"
echo >"$folder/usr/lib/libnccl-tuner-llane.so"
LLANE_BUILD=$folder/none "$folder/usr/bin/llane" env >"$folder/out" 2>"$folder/err" &&
    grep -q "PLUGIN=$folder/usr/lib/libnccl-tuner-llane.so" "$folder/out"
report $? env__installed__finds_the_installed_object
rm "$folder/usr/lib/libnccl-tuner-llane.so"
LLANE_BUILD=$folder/none "$folder/usr/bin/llane" run true >"$folder/out" 2>"$folder/err"
[ $? = 2 ] && said 'no libnccl-tuner-llane.so'
report $? run__no_object__refused

# shellcheck disable=SC2016 # the program expands
printf '#!/bin/sh\necho "ranks $1"\n' >"$folder/usr/bin/llane-demo-gpu"
chmod +x "$folder/usr/bin/llane-demo-gpu"
for ranks in '' 3; do
    # shellcheck disable=SC2086 # none is none
    GPU_ENV_READY=1 "$folder/usr/bin/llane" demo $ranks >"$folder/out" 2>"$folder/err" &&
        [ "$(cat "$folder/out")" = "ranks ${ranks:-4}" ]
    report $? "demo__ranks_${ranks:-not_named}__so_many"
done
for wrong in --no-such 1 17 'x' '2 3'; do
    # shellcheck disable=SC2086 # words on purpose
    llane demo --emulate $wrong
    [ $? = 2 ] && said 'llane demo [--emulate] [RANKS]' && [ ! -s "$folder/out" ]
    report $? "demo__wrong_${wrong// /_}__refused"
done
llane demo --help && grep -q '^llane demo ' "$folder/out" && silent
report $? demo__help__usage
for command in bench soak calibrate demo; do
    LLANE_BUILD=$folder/none llane $command
    [ $? = 1 ] && said "\`llane $command --emulate\`"
    report $? "${command}__no_program_for_gpus__says_what_to_type"
done
LLANE_BUILD=$folder/none llane run --emulate true
[ $? = 2 ] && said "run \`make tools\`"
report $? run__no_emulated_object__says_how_to_build_it
# What tools open is built with them: it is not among what they are linked with.
env -u MAKEFLAGS -u MAKELEVEL make -n V=release BUILD="$folder/build" tools >"$folder/out" 2>"$folder/err" &&
    grep -q -- "-o $folder/build/release/emu/libnccl-tuner-llane.so" "$folder/out"
report $? make_tools__builds_the_object_that_they_load
llane calibrate --help && grep -q '^llane calibrate ' "$folder/out" && silent
report $? calibrate__help__its_own

for wrong in '--ab sideways' '--max-bytes' '--set ALGO' '--set a-b=1' '--no-such' '--wait=1' ''; do
    # shellcheck disable=SC2086 # words on purpose
    llane run --emulate $wrong
    [ $? = 2 ] && ! silent
    report $? "run__wrong_options_${wrong// /_}__refused"
done
llane run --emulate -- "$folder/missing"
[ $? = 127 ]
report $? run__no_such_command__status_127
echo "1..$n"
