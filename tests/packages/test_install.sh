#!/bin/bash
# Proves that `make install` puts everything into an empty root that is needed to use llane from there,
# with nothing of this build folder in it, and that `make uninstall` leaves no file. The emulation is
# installed for what has to run; the object for GPUs, where nvcc built one, is looked at. TAP.
set -u
# shellcheck source=tests/packages/common.bash
. "$(dirname "$0")/common.bash"

make_for() { # make_for DEVICE ROOT TARGET
    llane_make "$1" DESTDIR="$2" PREFIX=/opt/llane "$3"
}
# Search paths that are not relative to the file that has them.
foreign_paths() {
    find "$where" -type f -exec readelf -d {} + 2>/dev/null | grep -E 'R(UN)?PATH' | grep -v "\[[$]ORIGIN"
}

root=$out/emu where=$out/emu/opt/llane
make_for emu "$root" install
report $? install__empty_root__succeeds
llane() { "$where/bin/llane" "$@" >"$out/said" 2>&1; }

llane demo --emulate 2 && grep -q "NCCL .* at $where/libexec/llane/emu/libnccl.so.2" "$out/said" && has_routes
report $? demo__from_the_installed_files__lane_and_nccl_carry
llane bench --emulate --sizes 64 --reps 1 --ops 2 && grep -q ' 0  lane: ' "$out/said"
report $? bench__from_the_installed_files__measures_the_lane
llane doctor --no-measure
[ $? -le 1 ] && grep -qE 'PCI: [0-9]|^GPU ' "$out/said"
report $? doctor__from_the_installed_files__reports
[ "$("$where/bin/llane" env)" = "export NCCL_TUNER_PLUGIN=$(readlink -f "$where/lib")/libnccl-tuner-llane.so" ]
report $? env__names_the_installed_plugin

# What NCCL itself makes of `llane`, for each of its plugin variables, with the installed names alone.
programs=$build/tests/emu
for kind in tuner net profiler env; do
    variable=NCCL_${kind^^}_PLUGIN
    LD_LIBRARY_PATH=$where/lib:$where/libexec/llane/emu NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT LLANE_STATS=1 \
        "$programs/prog_ranks" 2 env "$variable=llane" "$programs/prog_allreduce" --counts 64 >"$out/said" 2>&1 &&
        [ "$(grep -c "$variable: loaded libnccl-$kind-llane.so" "$out/said")" -eq 2 ] &&
        [ "$(grep -c 'llane stats: .*rank [01]/2' "$out/said")" -eq 2 ]
    report $? "door__${variable}__is_open_by_name"
done
LD_LIBRARY_PATH=$where/libexec/llane/emu LLANE_STATS=1 LLANE_WAIT=1 "$programs/prog_ranks" 2 \
    "$programs/prog_dlopen" "$where/lib/libnccl-llane.so" >"$out/said" 2>&1 &&
    grep -q "ncclAllReduce from $where/lib/libnccl-tuner-llane.so" "$out/said" &&
    [ "$(grep -Ec 'llane stats: .*: lane [1-9]' "$out/said")" -eq 2 ]
report $? door__drop_in__is_open_by_path

{
    grep -x "libdir=/opt/llane/lib" "$where/lib/pkgconfig/llane.pc" &&
        plugin=$(bash -c ". <(sed '/:/d; s/\${/\$&/; s/\$\${/\${/' '$where/lib/pkgconfig/llane.pc'); echo \$plugin") &&
        echo "plugin is $plugin" && [ -f "$root$plugin" ] && grep -x "Version: ${PACKAGE_VERSION:?}" "$where/lib/pkgconfig/llane.pc"
} >"$out/said" 2>&1
report $? llane_pc__names_the_plugin_and_the_version

bad=0
{
    commands=$(tools/llane help | sed -n 's/^  \([a-z]*\)  .*/\1/p' | tr '\n' ' ')
    # The completion is what bash would load.
    # shellcheck disable=SC1091
    . "$where/share/bash-completion/completions/llane"
    COMP_WORDS=("$where/bin/llane" '') COMP_CWORD=1
    _llane
    [ "${COMPREPLY[*]} " = "$commands" ] || { echo "commands: ${COMPREPLY[*]}"; bad=1; }
    COMP_WORDS=("$where/bin/llane" doctor --no-m) COMP_CWORD=2
    _llane
    [ "${COMPREPLY[*]}" = --no-measure ] || { echo "options: ${COMPREPLY[*]}"; bad=1; }
} >"$out/said" 2>&1
report $bad completion__commands_and_options__are_the_tool_s

bad=0
for page in llane.1 llane-bench.1 llane-doctor.1 llane-watch.1 llane-config.7; do
    [ -s "$where/share/man/man${page##*.}/$page" ] || { echo "no $page"; bad=1; }
done >"$out/said"
if command -v man >/dev/null; then
    for page in "$where"/share/man/man*/*; do
        (cd "$where/share/man" && LC_ALL=C.UTF-8 MANROFFSEQ='' MANWIDTH=100 man --warnings -E UTF-8 -l "$page") 2>&1 >/dev/null |
            grep . && { echo "in $page"; bad=1; }
    done >>"$out/said"
fi
report $bad man_pages__are_there_and_without_warnings

# Nothing needs the build folder: no file, and no program's search path.
foreign_paths >"$out/said"
[ ! -s "$out/said" ] && ! find "$where" -type l -lname '/*' | grep . >>"$out/said"
report $? paths__of_the_build__are_in_no_file_that_is_loaded

names "$root" >"$out/installed"
touch "$where/lib/of_the_user"
make_for emu "$root" uninstall && [ "$(names "$root")" = ./opt/llane/lib/of_the_user ] && [ ! -d "$where/libexec/llane" ]
report $? uninstall__leaves_nothing_but_what_others_put_there

if [ -n "${PACKAGE_HAS_CUDA:-}" ]; then
    root=$out/cuda where=$out/cuda/opt/llane
    make_for cuda "$root" install && [ -x "$where/libexec/llane/llane-bench-gpu" ] &&
        [ -x "$where/libexec/llane/llane-measure-gpu" ]
    report $? install__object_for_GPUs__succeeds
    scripts/check_exports "$where/lib/libnccl-tuner-llane.so" >"$out/said" 2>&1
    report $? exports__of_the_installed_object__are_the_list
    foreign_paths >"$out/said"
    [ ! -s "$out/said" ]
    report $? paths__of_this_machine__are_in_no_program_for_GPUs
    soname=$(readelf -d "$where/lib/libnccl-tuner-llane.so" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')
    [ "$soname" = libnccl-tuner-llane.so ]
    report $? soname__is_the_file_s_name
    # No GPU needed: NCCL loads it, and it says that it is there.
    LD_LIBRARY_PATH=$where/lib:$build/emu NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT NCCL_TUNER_PLUGIN=llane \
        "$programs/prog_ranks" 2 "$programs/prog_allreduce" --counts 64 >"$out/said" 2>&1 &&
        grep -q "llane ${PACKAGE_VERSION}: door tuner" "$out/said"
    report $? door__tuner__loads_the_object_for_GPUs
    make_for cuda "$root" uninstall && [ -z "$(names "$root")" ]
    report $? uninstall__of_the_object_for_GPUs__leaves_nothing
else
    echo "ok $((n += 1)) - the object for GPUs # SKIP no nvcc"
fi
echo "1..$n"
