#!/bin/bash
# Proves that the documents agree with the tree: links lead to files and headings' pages, variables and
# commands and make targets that they name exist, every page is led to, and limits.md has every reason for
# which a call goes to NCCL. Reports TAP.
set -u
cd "$(dirname "$0")/../.." || exit 1
python3 - <<'PY'
import glob
import os
import re
import subprocess
import sys

pages = sorted(glob.glob("docs/*.md")) + ["README.md", "CONTRIBUTING.md"]
text = {page: open(page, encoding="utf-8").read() for page in pages}
number, failed = 0, False


def report(name, problems):
    global number, failed
    number += 1
    for problem in problems:
        print("# " + problem)
    print(f"{'not ' if problems else ''}ok {number} - {name}")
    failed |= bool(problems)


def links():
    for page, words in text.items():
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", words):
            if not target.startswith("http"):
                yield page, os.path.normpath(os.path.join(os.path.dirname(page), target))


report("every link leads to a file",
       [f"{page}: {target}" for page, target in links() if not os.path.exists(target)])
led_to = {target for _, target in links()}
report("every page and example is led to",
       [page for page in pages + glob.glob("docs/examples/*.*") + glob.glob("docs/figures/*")
        if page not in led_to | {"README.md"}])

# docs/config.md is written from the variables' table, and test_config holds it to that.
known = set(re.findall(r"^\| `(LLANE_[A-Z0-9_]+)`", text["docs/config.md"], re.M))
# What builds and tests take, and what the tools do.
elsewhere = subprocess.run(["git", "grep", "-ohwE", "LLANE_[A-Z0-9_]+", "--", "Makefile", "scripts", "tests",
                            "tools"], capture_output=True, text=True, check=True).stdout.split()
report("every LLANE_ variable exists",
       [f"{page}: {name}" for page, words in text.items()
        for name in sorted(set(re.findall(r"\bLLANE_[A-Z0-9_]*[A-Z0-9]\b(?!\*)", words)))
        if name not in known | set(elsewhere)])

commands = set(re.findall(r"^  ([a-z]+)  ", subprocess.run(["tools/llane", "help"], capture_output=True, text=True,
                                                          check=True).stdout, re.M))
named = [(page, name) for page, words in text.items()
         for name in re.findall(r"(?:^ {4}(?:.* )?(?:tools/)?|`(?:tools/)?|-m )llane ([a-z][a-z-]*)\b(?!:)", words, re.M)]
wheel = set(re.findall(r'"([a-z-]+)": llane\.', open("scripts/package/wheel/__main__.py", encoding="utf-8").read()))
report("every llane command exists",
       [f"{page}: llane {name}" for page, name in named if name not in commands | wheel | {"help"}])

targets = set(re.findall(r"^([a-z][a-z-]*)(?: [a-z-]+)*:", open("Makefile", encoding="utf-8").read() +
                         open("scripts/package/package.mk", encoding="utf-8").read(), re.M))
targets |= {word for line in re.findall(r"^([a-z][a-z /.-]*):", open("Makefile", encoding="utf-8").read(), re.M)
            for word in line.split()}
report("every make target exists",
       [f"{page}: make {name}" for page, words in text.items()
        for name in re.findall(r"(?:^ {4}|`)make (?:[A-Z_]+=(?:\x22[^\x22]*\x22|\S*) )*([a-z][a-z-]*)\b(?![-/=.])", words, re.M)
        if name not in targets])
reasons = re.findall(r'X\([A-Z_]+, "([^"]{4,})', open("plugin/route.h", encoding="utf-8").read() +
                     open("plugin/comm.h", encoding="utf-8").read())
# A phrase that ends or begins with dots stands for all that begin or end so.
phrases = re.findall(r"`([^`\n]{8,})`", text["docs/limits.md"])


def is_named(reason):
    return any(reason == phrase or phrase.endswith("...") and reason.startswith(phrase.rstrip(". ")) or
               phrase.startswith("...") and reason.endswith(phrase.lstrip(". ")) for phrase in phrases)


report("limits.md has every reason",
       [f"docs/limits.md lacks: {reason}" for reason in reasons if reason != "lane" and not is_named(reason)] +
       ([] if len(reasons) > 20 else ["plugin/route.h and comm.h: the reasons are not found"]))
print(f"1..{number}")
sys.exit(failed)
PY
