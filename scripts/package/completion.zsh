#compdef llane
# zsh completion for llane: commands and options as the tool itself lists them.
local -a found
if (( CURRENT == 2 )); then
    found=(${(f)"$($words[1] help 2>/dev/null | sed -n 's/^  \([a-z]*\)  *\(.*\)/\1:\2/p')"})
    _describe command found
elif [[ $words[CURRENT] == -* ]]; then
    found=(${(f)"$($words[1] $words[2] --help 2>/dev/null | grep -oE -- '--[a-z][a-z-]*' | sort -u)"})
    compadd -a found
else
    _files
fi
