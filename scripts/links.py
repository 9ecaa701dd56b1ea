#!/usr/bin/env python3
"""Checks the relative links of all Markdown files, without a network: the file exists, and so does
the heading. Pages of the book (docs/) link to pages of the book only. Checks also the source files
that pages name, and the pages of `docs` that comments and messages of other files name."""

import os
import re
import subprocess
import sys
from functools import cache


def read(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def prose(text):
    """Without blocks of code."""
    return re.sub(r"^([ \t]*)```.*?^\1```", lambda match: "\n" * match[0].count("\n"), text, flags=re.DOTALL | re.MULTILINE)


@cache
def anchors(path):
    """The anchors of a page's headings, as GitHub and mdBook make them."""
    seen, found = {}, set()
    for heading in re.findall(r"^#{1,6} +(.*?) *#*$", prose(read(path)), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        count = seen.get(slug, 0)
        seen[slug] = count + 1
        found.add(f"{slug}-{count}" if count else slug)
    return found | set(re.findall(r'<a (?:id|name)="([^"]+)"', read(path)))


def faults(page):
    text = re.sub(r"`[^`\n]*`", lambda match: " " * len(match[0]), prose(read(page)))
    for match in re.finditer(r"\]\(\s*<?([^)>\s]+)>?(?:\s+\"[^\"]*\")?\)|^\[[^\]]+\]:\s*(\S+)", text, re.MULTILINE):
        target = match[1] or match[2]
        if re.match(r"[a-z][a-z+.-]*:", target):
            continue
        path, _, anchor = target.partition("#")
        file = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
        line = text.count("\n", 0, match.start()) + 1
        if page.startswith("docs/") and not file.startswith("docs/"):
            yield f"{page}:{line}: {target}: leads out of the book; name the path instead"
        elif not os.path.exists(file):
            yield f"{page}:{line}: {target}: no such file"
        elif anchor and file.endswith(".md") and anchor not in anchors(file):
            yield f"{page}:{line}: {target}: no such heading"


def sources(page):
    """Paths of source files and folders that a page names, below `crates` or the root."""
    for match in re.finditer(r"`((?:[\w.-]+/)+(?:src|tests)/[\w./-]*|(?:src|tests)/[\w./-]+\.rs)`", read(page)):
        path = match[1]
        if not any(os.path.exists(os.path.join(folder, path)) for folder in (".", "crates", os.path.dirname(page))):
            yield f"{page}: {path}: no such file or folder"


def mentions(file):
    for match in re.finditer(r"(?<![\w/.])docs/[\w/-]+\.(?:md|json)", read(file)):
        if not os.path.exists(match[0]):
            yield f"{file}: {match[0]}: no such file"


files = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.splitlines()
files = [file for file in files if os.path.isfile(file)]
found = [fault for file in files if file.endswith(".md") for fault in faults(file)]
# The changelog names files of its time.
found += [fault for file in files if file.endswith(".md") and file != "CHANGELOG.md" for fault in sources(file)]
found += [fault for file in files if re.search(r"\.(rs|py|sh|toml|yaml)$", file) for fault in mentions(file)]
sys.exit("\n".join(found) or 0)
