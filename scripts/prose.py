#!/usr/bin/env python3
"""Counts four patterns that make prose hard to read, in comments of Rust files and in Markdown, and
finds lines of Markdown that are longer than 100 columns.

usage: scripts/prose.py [--all] [--list] [FILE ...]

Without FILE: the Markdown of the repository, and the Rust files that differ from the main branch.
--all: all Rust files too. --list: each hit with its line. The figure is hits per 1,000 words over
all files together, separately for Markdown and for comments; the program fails above 0.5.
"""

import re
import subprocess
import sys

BOUND = 0.5
COLUMNS = 100

# Name the thing; name the component; say who does it; "its" instead of "of its own".
PATTERNS = {
    "headless clause": re.compile(
        r"\b(?:whatever (?:is|are|was|has|comes|goes|it|they)|what (?:is|are|was|were|has|have|had|comes?|came|goes|went|does|did|holds?|stays?|needs?|may"
        r"|can|must|would|it|its|they|he|a|an|the|this|that|these|those|each|one|nobody|no|somebody|another))\b",
        re.IGNORECASE,
    ),
    "person for a component": re.compile(r"\b(?:whoever|whom|nobody|somebody|he|him|his)\b", re.IGNORECASE),
    "impersonal passive": re.compile(r"\b(?:is|are|was|were|be|been) (?:told|said)\b", re.IGNORECASE),
    "of its own": re.compile(r"\bof (?:its|their|one's) own\b", re.IGNORECASE),
}
# Pages generated from comments, which count as comments.
EXCLUDED = re.compile(r"^docs/reference/(?!flags)")


def git(*arguments):
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout.splitlines()


def changed():
    """The files that differ from the main branch, if there is one."""
    for branch in ("main", "origin/main"):
        if git("branch", "--all", "--list", branch, f"remotes/{branch}"):
            return git("diff", "--name-only", "--diff-filter=d", git("merge-base", branch, "HEAD")[0])
    return []


def comments(text):
    """(line number, comment) of a Rust file. Two slashes after a colon, and those inside a string, begin no comment."""
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r'((?:[^"/]|/(?!/)|"(?:[^"\\]|\\.)*")*)//+!?(.*)', line)
        if match:
            yield number, match[2]


def markdown(text):
    """(line number, line) of a Markdown file, without blocks of code."""
    fenced, list_ = False, False
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith(" "):
            list_ = bool(re.match(r"[-*]|\d+\.", line))
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and (list_ or not line.startswith("    ")):
            yield number, line


def read(path):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    return list(comments(text) if path.endswith(".rs") else markdown(text))


def main():
    options = {argument for argument in sys.argv[1:] if argument.startswith("--")}
    files = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    if not files:
        tree = git("ls-files", "--", "*.md", "*.rs")
        differing = set(tree if "--all" in options else changed())
        files = [file for file in tree if not EXCLUDED.search(file) and (file.endswith(".md") or file in differing)]
    failed = False
    for name, ending in (("Markdown", ".md"), ("comments of Rust", ".rs")):
        words, hits = 0, {pattern: 0 for pattern in PATTERNS}
        for file in files:
            if not file.endswith(ending):
                continue
            # A phrase may span two lines.
            starts, text = [], ""
            for number, line in read(file):
                if ending == ".md":
                    # Not a table, and not one long word or link.
                    if len(line) > COLUMNS and not line.startswith("|") and " " in line.strip()[:COLUMNS]:
                        print(f"{file}:{number}: {len(line)} columns")
                        failed = True
                    line = re.sub(r"`[^`]*`|\]\([^)]*\)", " ", line)
                starts.append((len(text), number))
                text += " ".join(line.split()) + " "
            words += len(re.findall(r"[A-Za-z][\w'-]*", text))
            for pattern, expression in PATTERNS.items():
                for match in expression.finditer(text):
                    hits[pattern] += 1
                    if "--list" in options:
                        number = max(start for start in starts if start[0] <= match.start())[1]
                        print(f"{file}:{number}: {pattern}: …{text[max(0, match.start() - 40) : match.end() + 30]}…")
        rates = {pattern: count * 1000 / max(words, 1000) for pattern, count in hits.items()}
        print(f"{name}, {words} words: " + ", ".join(f"{pattern} {rate:.2f}" for pattern, rate in rates.items()))
        failed |= any(rate > BOUND for rate in rates.values())
    if failed:
        sys.exit(f"prose: over {BOUND} hits per 1,000 words, or long lines; `scripts/prose.py --list` shows each hit")


main()
