# shellcheck shell=bash
# bash completion for llane: commands and options as the tool itself lists them.
_llane() {
    local word=${COMP_WORDS[COMP_CWORD]} tool=${COMP_WORDS[0]} words
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        words=$("$tool" help 2>/dev/null | sed -n 's/^  \([a-z]*\)  .*/\1/p')
    elif [ "${word:0:1}" = - ]; then
        words=$("$tool" "${COMP_WORDS[1]}" --help 2>/dev/null | grep -oE -- '--[a-z][a-z-]*' | sort -u)
    else
        COMPREPLY=()
        compopt -o default 2>/dev/null
        return
    fi
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}
complete -F _llane llane
