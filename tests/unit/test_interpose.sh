#!/bin/bash
# Proves that NCCL calls reach llane from every kind of caller, however it was linked and loaded, that
# pncclX stays NCCL's, and that what cannot be redirected is left whole and said. Reports TAP.
# The plugin here is made of the built modules with a recording stand-in for calls.c.
set -u
cd "$(dirname "$0")/../.." || exit 1
build=${LLANE_BUILD:?set by make test}
out=$build/fixtures/interpose
cc=${CC:-gcc}
rm -rf "$out" && mkdir -p "$out/shared-page" || exit 1

number=0 failed=0
# report NAME STATUS OUTPUT
report() {
    number=$((number + 1))
    if [ "$2" -eq 0 ]; then
        echo "ok $number - $1"
    elif [ "$2" -eq 77 ]; then
        echo "ok $number - $1 # SKIP $3"
    else
        echo "# ${3//$'\n'/$'\n# '}"
        echo "not ok $number - $1"
        failed=1
    fi
}
# check NAME COMMAND...: it must exit 0.
check() {
    local output name=$1
    shift
    output=$(timeout 60 "$@" 2>&1)
    report "$name" $? "$output"
}
# says NAME TIMES PATTERN COMMAND...: it must exit 0 and print the pattern in so many lines.
says() {
    local output status name=$1 times=$2 pattern=$3
    shift 3
    output=$(timeout 60 "$@" 2>&1)
    status=$?
    [ "$status" -ne 0 ] || [ "$(grep -c -e "$pattern" <<<"$output")" -eq "$times" ] || status=1
    report "$name" $status "$output"
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
        -Wl,-soname,"$2" -Wl,-z,lazy "${@:4}" || build_failed "$1"
}
# caller OUTPUT NCCL [FLAG...]: an object that calls NCCL.
caller() {
    "$cc" "${flags[@]}" -shared -fPIC tests/fixtures/caller.c -o "$out/$1" "$2" \
        -Wl,-rpath,"$out" "${@:3}" || build_failed "$1"
}
# direct OUTPUT [FLAG...]: a program that calls NCCL.
direct() {
    "$cc" "${flags[@]}" tests/fixtures/{interpose_direct,caller}.c -o "$out/$1" "$out/libnccl.so.2" \
        -Wl,-rpath,"$out" -ldl "${@:2}" || build_failed "$1"
}

nccl "$out/libnccl.so.2" libnccl.so.2 22809
for i in 1 2 3 4; do
    nccl "$out/libnccl-copy$i.so" libnccl-copy$i.so $((22700 + i))
done
nccl "$out/shared-page/libnccl.so.2" libnccl.so.2 22809 -DCOPY_PAD=0xae0 \
    -Wl,-z,noseparate-code

# Not under a sanitizer: its runtime would have to be the first library of every program here.
mkdir "$out/objects"
for module in interpose elf_image hooks real_nccl exports door startup abi_tuner abi_env tuner_contexts forks nccl_tuning \
    log config version; do
    "$cc" "${flags[@]}" -fPIC -fvisibility=hidden -c "plugin/$module.c" -o "$out/objects/$module.o" ||
        build_failed "$module"
done
"$cc" "${flags[@]}" -fPIC -fvisibility=hidden -c tests/fixtures/recording_calls.c \
    -o "$out/objects/recording_calls.o" || build_failed recording_calls
sed 's/^local:/    llane_test_calls;\nlocal:/' plugin/exports.map >"$out/exports.map"
plugin=$out/libnccl-tuner-llane.so
"$cc" -shared -o "$plugin" "$out"/objects/*.o -pthread -ldl -Wl,-z,nodelete,-z,defs \
    -Wl,-soname,libnccl-tuner-llane.so -Wl,--version-script="$out/exports.map" ||
    build_failed "the plugin"
"$cc" -shared -nostdlib -o "$out/libnccl-llane.so" -Wl,--no-as-needed "$plugin" "$out/libnccl.so.2" \
    -Wl,-rpath,"\$ORIGIN" -Wl,-soname,libnccl-llane.so || build_failed "the drop-in"

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


# ---- doors and the line they say ----
"$cc" "${flags[@]}" tests/fixtures/{interpose_loose,nccl_copy}.c -DCOPY_VERSION=22809 \
    -o "$out/static" -ldl || build_failed static
"$cc" "${flags[@]}" tests/fixtures/{interpose_loose,nccl_copy}.c -DCOPY_VERSION=22809 \
    -o "$out/static-exported" -rdynamic -ldl || build_failed static-exported
line='NCCL 2\.28\.9 at .*/libnccl\.so\.2, 5 call sites redirected$'
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

echo "1..$number"
exit $failed
