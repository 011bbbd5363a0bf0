#!/bin/bash
# Proves that NCCL calls reach llane from every kind of caller, however it was linked and loaded, that
# pncclX stays NCCL's, that what NCCL calls of itself does too, behind every door and however libnccl was
# linked, and that what cannot be redirected is left whole and said. Reports TAP.
# The plugin here is made of the built modules with a recording stand-in for calls.c.
set -u
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=tests/tap.bash
. tests/tap.bash
build=${LLANE_BUILD:?set by make test}
out=$build/fixtures/interpose
cc=${CC:-gcc}
rm -rf "$out" && mkdir -p "$out/shared-page" || exit 1

# check NAME COMMAND...: it must exit 0.
check() {
    local output name=$1
    shift
    output=$(timeout 60 "$@" 2>&1)
    report $? "$name" "$output"
}
# says NAME TIMES PATTERN COMMAND...: it must exit 0 and print the pattern in so many lines.
says() {
    local output status name=$1 times=$2 pattern=$3
    shift 3
    output=$(timeout 60 "$@" 2>&1)
    status=$?
    [ "$status" -ne 0 ] || [ "$(grep -c -e "$pattern" <<<"$output")" -eq "$times" ] || status=1
    report $status "$name" "$output"
}

flags=(-std=gnu11 -O1 -g -Wall -Wextra -Wno-unused-parameter -Werror -D_GNU_SOURCE -Iext-headers -Iplugin -Ikernels -Itests/fixtures
    -pthread)
build_failed() {
    echo "not ok 1 - $1 builds"
    exit 1
}
# nccl OUTPUT SONAME VERSION [FLAG...]
nccl() {
    "$cc" "${flags[@]}" -shared -fPIC tests/fixtures/nccl_copy.c -DCOPY_VERSION="$3" -o "$1" \
        -Wl,-soname,"$2" -Wl,-z,lazy,-z,relro "${@:4}" || build_failed "$1"
}
# caller OUTPUT NCCL [FLAG...]: an object that calls NCCL.
caller() {
    "$cc" "${flags[@]}" -shared -fPIC tests/fixtures/caller.c -o "$out/$1" "$2" \
        -Wl,-rpath,"$out" "${@:3}" || build_failed "$1"
}
# direct OUTPUT [FLAG...]: a program that calls NCCL.
direct() {
    "$cc" "${flags[@]}" tests/fixtures/{interpose_direct,caller}.c -o "$out/$1" "${@:2}" \
        "$out/libnccl.so.2" -Wl,--enable-new-dtags,-rpath,"$out" -ldl || build_failed "$1"
}

nccl "$out/libnccl.so.2" libnccl.so.2 22809
for i in 1 2 3 4; do
    nccl "$out/libnccl-copy$i.so" libnccl-copy$i.so $((22700 + i))
done
nccl "$out/shared-page/libnccl.so.2" libnccl.so.2 22809 -DCOPY_PAD=0x860 \
    -Wl,-z,noseparate-code

# interpose_object OUTPUT SOURCE
interpose_object() {
    "$cc" "${flags[@]}" -fPIC -fvisibility=hidden -c "$2" -o "$1" || build_failed "$2"
}
# Not under a sanitizer: its runtime would have to be the first library of every program here.
mkdir "$out/objects"
for module in elf_image hooks real_nccl exports door startup abi_tuner abi_env abi_profiler contexts \
    comm_options forks nccl_tuning log config version; do
    "$cc" "${flags[@]}" -fPIC -fvisibility=hidden -c "plugin/$module.c" -o "$out/objects/$module.o" ||
        build_failed "$module"
done
"$cc" "${flags[@]}" -fPIC -fvisibility=hidden -c tests/fixtures/recording_calls.c \
    -o "$out/objects/recording_calls.o" || build_failed recording_calls
sed 's/^local:/    llane_test_calls;\nlocal:/' plugin/exports.map >"$out/exports.map"
plugin=$out/libnccl-tuner-llane.so
# link_plugin FOLDER INTERPOSE_OBJECT: the plugin and the drop-in there.
link_plugin() {
    "$cc" -shared -o "$1/libnccl-tuner-llane.so" "$2" "$out"/objects/*.o -pthread -ldl \
        -Wl,-z,nodelete,-z,defs -Wl,-soname,libnccl-tuner-llane.so \
        -Wl,--version-script="$out/exports.map" || build_failed "the plugin"
    "$cc" -shared -nostdlib -o "$1/libnccl-llane.so" -Wl,--no-as-needed \
        "$1/libnccl-tuner-llane.so" "$out/libnccl.so.2" \
        -Wl,--enable-new-dtags,-rpath,"\$ORIGIN" -Wl,-soname,libnccl-llane.so ||
        build_failed "the drop-in"
}
interpose_object "$out/interpose.o" plugin/interpose.c
link_plugin "$out" "$out/interpose.o"

# ---- programs that call NCCL themselves: libnccl is in the global scope ----
# name: flags
kinds=(
    "pie-lazy: -fPIE -pie -Wl,-z,lazy,-z,norelro"
    "pie-now-full-relro: -fPIE -pie -Wl,-z,now,-z,relro"
    "pie-no-plt: -fPIE -pie -fno-plt -Wl,-z,now,-z,relro"
    "no-pie-lazy: -fno-pie -no-pie -Wl,-z,lazy,-z,norelro"
    "no-pie-now-full-relro: -fno-pie -no-pie -Wl,-z,now,-z,relro"
    "no-pie-no-plt: -fno-pie -no-pie -fno-plt -Wl,-z,lazy"
    "sysv-hash: -fPIE -pie -Wl,--hash-style=sysv"
)
for kind in "${kinds[@]}"; do
    name=${kind%%:*}
    read -ra link <<<"${kind#*:}"
    direct "$name" "${link[@]}"
    for when in cold warm; do
        check "program, $name, $when" "$out/$name" "$plugin" $when
    done
done

# ---- objects that call NCCL: everything RTLD_LOCAL ----
"$cc" "${flags[@]}" tests/fixtures/interpose_loose.c -o "$out/loose" -ldl || build_failed loose
loose() {
    echo "$out/loose $1 $plugin $out/libnccl.so.2"
}
kinds=(
    "lazy: -Wl,-z,lazy,-z,norelro"
    "now-full-relro: -Wl,-z,now,-z,relro"
    "partial-relro: -Wl,-z,lazy,-z,relro"
    "no-plt: -fno-plt"
    "sysv-hash: -Wl,--hash-style=sysv"
)
caller later.so "$out/libnccl.so.2"
for kind in "${kinds[@]}"; do
    name=${kind%%:*}
    read -ra link <<<"${kind#*:}"
    caller "$name.so" "$out/libnccl.so.2" "${link[@]}"
    # shellcheck disable=SC2046 # several words on purpose, here and below
    check "object, $name, and one loaded later" $(loose objects) "$out/$name.so" "$out/later.so"
done
# shellcheck disable=SC2046
{
    check "dlsym before the plugin keeps NCCL's, after it gets llane's" $(loose pointers)
    caller copy1.so "$out/libnccl-copy1.so"
    check "two libnccls, each call reaches its own" $(loose copies) "$out/libnccl-copy1.so" \
        "$out/lazy.so" "$out/copy1.so"
    says "five libnccls, four are redirected, one is named" 1 "libnccl-copy4.so is not redirected" \
        $(loose too_many) "$out"/libnccl-copy{1,2,3,4}.so
    check "a libnccl loaded after the plugin is found by the tuner's init" $(loose nccl_later) \
        "$out/lazy.so"
    check "a thread inside a group when the plugin comes" $(loose group) "$out/now-full-relro.so"
    check "threads that call while the plugin comes" $(loose racing) "$out/lazy.so"
    says "an object whose slots are refused keeps all its calls at NCCL" 1 \
        "now-full-relro.so could not be made writable" \
        $(loose refused_object) "$out/now-full-relro.so" "$out/lazy.so"
    says "refused symbols leave every caller alone" 1 "libnccl.so.2 could not be made writable" \
        $(loose refused_symbols) "$out/now-full-relro.so"
    says "symbols on a page with code are left alone" 1 "libnccl.so.2 could not be made writable" \
        "$out/loose" untouched "$plugin" "$out/shared-page/libnccl.so.2" "$out/later.so"
    check "LLANE_ENABLE=0 redirects nothing" env LLANE_ENABLE=0 $(loose untouched) "$out/lazy.so"
    check "plugin tables, every version" $(loose tables)
}

# ---- what NCCL calls of itself ----
# A case is a command for env, with @/ for the folder of the plugin and the drop-in, and the mutants of
# interpose.c that it is there to catch. With the plugin it must succeed, with each of them fail.
own_cases=()
# run_own FOLDER LIBNCCL COMMAND: with the plugin of that folder and that libnccl.
run_own() {
    local words
    read -ra words <<<"${3//@\//$1/}"
    LD_LIBRARY_PATH=$(dirname "$2"):$1 timeout 60 env "${words[@]}" 2>&1
}
# own NAME MUTANTS LIBNCCL COMMAND
own() {
    local output
    output=$(run_own "$out" "$3" "$4")
    report $? "NCCL's own calls: $1" "$output"
    own_cases+=("$1|$2|$3|$4")
}
# caught MUTANT PERL: of interpose.c, by every case that names it.
caught() {
    local folder=$out/mutant-$1 entry name mutants libnccl command status n_caught=0 skipped=0 output=
    mkdir "$folder"
    if ! perl -0pe "$2" plugin/interpose.c >"$folder/interpose.c" ||
        cmp -s plugin/interpose.c "$folder/interpose.c"; then
        build_failed "mutant $1"
    fi
    interpose_object "$folder/interpose.o" "$folder/interpose.c"
    link_plugin "$folder" "$folder/interpose.o"
    for entry in "${own_cases[@]}"; do
        IFS='|' read -r name mutants libnccl command <<<"$entry"
        [[ " $mutants " == *" $1 "* ]] || continue
        run_own "$folder" "$libnccl" "$command" >"$folder/said"
        status=$?
        if [ $status -eq 77 ]; then
            skipped=$((skipped + 1))
        elif [ $status -eq 1 ] && grep -q '^tests/fixtures/' "$folder/said"; then
            n_caught=$((n_caught + 1)) # a check of the program's failed, nothing else
        else
            output+="not by: $name"$'\n'
        fi
    done
    status=1
    if [ -z "$output" ]; then
        [ $n_caught -eq 0 ] || status=0
        [ $n_caught -gt 0 ] || [ $skipped -eq 0 ] || status=77
    fi
    report $status "mutant $1 of interpose.c is caught, cases: $n_caught" "$output"
}
# has_slots LIBNCCL KIND: its own calls do go through slots, of the kinds that nccl_copy.c says.
has_slots() {
    local slots
    slots=$(readelf -rW "$1")
    grep -Eq "_$2 .* ncclCommGetAsyncError \+ 0" <<<"$slots" &&
        grep -Eq '_GLOB_DAT .* ncclAllReduce \+ 0' <<<"$slots" &&
        grep -Eq '_(ABS)?64 .* ncclAllReduce \+ 0' <<<"$slots"
}

direct plugin-first -fPIE -pie -Wl,-z,lazy -Wl,--no-as-needed "$plugin"
direct plugin-last -fPIE -pie -Wl,-z,lazy -Wl,--no-as-needed "$out/libnccl.so.2" "$plugin"
# name | flags | kind of the slot for calls | slots that are bound at load | environment
kinds=(
    "lazy|-Wl,-z,lazy|JUMP_SLOT|data|"
    "lazy-no-relro|-Wl,-z,lazy,-z,norelro|JUMP_SLOT|data|"
    "lazy-bound-at-load|-Wl,-z,lazy|JUMP_SLOT|all|LD_BIND_NOW=1"
    "now-full-relro|-Wl,-z,now,-z,relro|JUMP_SLOT|all|"
    "no-plt|-fno-plt|GLOB_DAT|all|"
)
for kind in "${kinds[@]}"; do
    IFS='|' read -r name link slot bound_at_load environment <<<"$kind"
    read -ra link <<<"$link"
    mkdir "$out/nccl-$name"
    libnccl=$out/nccl-$name/libnccl.so.2
    nccl "$libnccl" libnccl.so.2 22809 "${link[@]}"
    has_slots "$libnccl" "$slot"
    report $? "NCCL $name calls itself through slots of each kind" "$(readelf -rW "$libnccl")"

    # Without the fix a slot leads to a hook if it is not bound when llane comes, or was bound to
    # llane's exported call; one that leads to NCCL already must be left so.
    bound="redirected-too" unbound="redirected-too none-kept"
    [ "$bound_at_load" = data ] && cold=$unbound || cold=$bound
    tuner=@/libnccl-tuner-llane.so drop_in=@/libnccl-llane.so
    own "program, NCCL $name, plugin late, cold" "$cold" "$libnccl" \
        "$environment $out/pie-lazy $tuner cold"
    own "program, NCCL $name, plugin late, warm" "$bound" "$libnccl" \
        "$environment $out/pie-lazy $tuner warm"
    own "program linked to NCCL $name, then to the plugin" "$cold" "$libnccl" \
        "$environment $out/plugin-last $tuner cold"
    own "program linked to NCCL $name, then to the plugin, called early" "$bound" "$libnccl" \
        "$environment COPY_EARLY=1 $out/plugin-last $tuner cold"
    for when in cold warm; do
        # NCCL's own ncclAllReduce is then the program's stub, which leads to llane.
        own "program without PIE, NCCL $name, plugin late, $when" "$unbound" "$libnccl" \
            "$environment $out/no-pie-lazy $tuner $when"
    done
    for early in "" COPY_EARLY=1; do
        for program in pie-lazy no-pie-lazy; do
            own "program, $program, NCCL $name, preload${early:+, called early}" "$unbound" \
                "$libnccl" "$environment $early LD_PRELOAD=$tuner $out/$program $tuner cold"
        done
        own "program linked to the plugin, then to NCCL $name${early:+, called early}" "$unbound" \
            "$libnccl" "$environment $early $out/plugin-first $tuner cold"
        own "NCCL $name in a drop-in opened by path${early:+, called early}" "$unbound" "$libnccl" \
            "$environment $early $out/loose own_tuner $tuner $drop_in $out/lazy.so cold"
    done
    for door in tuner env; do
        own "object, NCCL $name, door $door, cold" "$cold" "$libnccl" \
            "$environment $out/loose own_$door $tuner $libnccl $out/lazy.so cold"
        own "object, NCCL $name, door $door, warm" "$bound" "$libnccl" \
            "$environment $out/loose own_$door $tuner $libnccl $out/lazy.so warm"
    done
    own "NCCL $name, a drop-in opened later, cold" "$cold" "$libnccl" \
        "$environment $out/loose own_tuner $drop_in $libnccl $out/lazy.so cold"
    own "NCCL $name, a drop-in opened later, warm" "$bound" "$libnccl" \
        "$environment $out/loose own_tuner $drop_in $libnccl $out/lazy.so warm"
    for when in cold warm; do
        own "object, NCCL $name, preload, $when" "$unbound" "$libnccl" \
            "$environment LD_PRELOAD=$tuner $out/loose own_tuner $tuner $libnccl $out/lazy.so $when"
    done
done
libnccl=$out/nccl-lazy/libnccl.so.2 tuner=@/libnccl-tuner-llane.so
own "NCCL loaded after the plugin" "none-kept redirected-too" "$libnccl" \
    "$out/loose nccl_later $tuner $libnccl $out/lazy.so"
own "two libnccls" "none-kept redirected-too" "$libnccl" \
    "$out/loose copies $tuner $libnccl $out/libnccl-copy1.so $out/lazy.so $out/copy1.so"
own "a slot that a resolver fills late" "not-again" "$libnccl" "$out/loose own_late $tuner $libnccl"
own "refused slots leave every caller alone" "symbols-anyway" "$libnccl" \
    "$out/loose refused_own $tuner $libnccl $out/lazy.so"
says "slots refused when a resolver has filled one: redirected all the same, and said so" 1 \
    "/libnccl.so.2 could not be made writable: .* may come to llane$" \
    "$out/loose" refused_late "$out/libnccl-tuner-llane.so" "$libnccl" "$out/lazy.so"
# Exported calls stay in force, but must not be entered again from inside NCCL.
mkdir "$out/many-slots"
nccl "$out/many-slots/libnccl.so.2" libnccl.so.2 22809 -DCOPY_SLOTS=300
for why in pages slots; do
    [ $why = pages ] && reason='could not be made writable' || reason='has too many slots'
    [ $why = pages ] || libnccl=$out/many-slots/libnccl.so.2
    for door in preload drop-in; do
        command="LD_PRELOAD=$tuner $out/loose refused_exports $tuner $libnccl $out/lazy.so $why"
        [ $door = preload ] ||
            command="$out/loose refused_exports $tuner @/libnccl-llane.so $out/lazy.so $why"
        own "refused slots ($why), $door: all pass through" "not-left-alone" "$libnccl" "$command"
        # shellcheck disable=SC2086 # several words on purpose
        says "refused slots ($why), $door: said once, with the reason" 1 \
            "/libnccl.so.2 $reason: .*without a lane$" \
            env LD_LIBRARY_PATH="$(dirname "$libnccl"):$out" ${command//@\//$out/}
    done
done
# shellcheck disable=SC2016 # Perl, not the shell, reads the dollars
caught none-kept 's/(int keep_own_slots\(.*?\n\{\n)/$1    return 0;\n/s'
caught redirected-too 's/ \|\|\s*llane_elf_find\(&image, "pncclAllReduce"\)\) \{\s*return 0;/) {\nreturn 0;/'
caught not-again 's/ && keep_own_slots\(&copies\[c\]\)/ && 0/'
# shellcheck disable=SC2016 # as above
caught symbols-anyway 's/(if \(keep_own_slots\(copy\)\) \{.*?)return;/$1/s'
caught not-left-alone 's/is_left_alone = 1/is_left_alone = 0/'

# ---- doors and the line they say ----
"$cc" "${flags[@]}" tests/fixtures/{interpose_loose,nccl_copy}.c -DCOPY_VERSION=22809 \
    -o "$out/static" -ldl || build_failed static
"$cc" "${flags[@]}" tests/fixtures/{interpose_loose,nccl_copy}.c -DCOPY_VERSION=22809 \
    -o "$out/static-exported" -rdynamic -ldl || build_failed static-exported
line='NCCL 2\.28\.9 at .*/libnccl\.so\.2, 6 call sites redirected$'
# shellcheck disable=SC2046
{
    says "door tuner: one start-up line" 1 "llane [0-9.]*: door tuner, $line" \
        env NCCL_DEBUG=INFO $(loose nccl_later) "$out/now-full-relro.so"
    says "door env: one start-up line" 1 "door env, $line" \
        env NCCL_DEBUG=INFO $(loose env) "$out/now-full-relro.so"
    says "door drop-in, opened by path" 1 "door drop-in, NCCL 2.28.9 at" env NCCL_DEBUG=INFO \
        "$out/loose" drop_in "$plugin" "$out/libnccl-llane.so"
    says "no NCCL anywhere: an error and one warning" 1 \
        "ncclAllReduce was called, but no shared libnccl" \
        env LD_PRELOAD="$plugin" $(loose no_nccl)
    says "door preload" 1 "door preload, NCCL 2.28.9 at" env NCCL_DEBUG=INFO \
        LD_PRELOAD="$plugin" $(loose tables)
}
says "nothing is printed unasked" 0 . "$out/pie-lazy" "$plugin" warm
for kind in pie-lazy pie-now-full-relro no-pie-lazy no-pie-no-plt; do
    check "program, $kind, preloaded" env LD_PRELOAD="$plugin" "$out/$kind" "$plugin" cold
    check "program, $kind, preloaded, LLANE_ENABLE=0" env LD_PRELOAD="$plugin" LLANE_ENABLE=0 \
        "$out/$kind" "$plugin" cold
done
for program in static static-exported; do
    says "NCCL linked statically is said once ($program)" 1 "NCCL is linked statically into" \
        "$out/$program" static_nccl "$plugin" none
done

echo "1..$n"
