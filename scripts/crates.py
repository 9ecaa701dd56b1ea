#!/usr/bin/env python3
"""Checks the table of crates in docs/architecture.md: a row for each crate, with the crates of Leno
that its Cargo.toml names. --write: corrects the last column.

A crate without an example in its documentation says `doctest = false`, since each run of rustdoc takes
seconds. One with an example must not say so."""

import glob
import re
import sys
import tomllib

PAGE = "docs/architecture.md"
ROW = re.compile(r"^(\| `([\w-]+)` \|.*\| )([^|]*) \|$", re.MULTILINE)


def uses(manifest):
    with open(manifest, "rb") as file:
        names = tomllib.load(file).get("dependencies", {})
    crates = sorted(name.removeprefix("leno-") for name in names if name.startswith("leno-"))
    return ", ".join(f"`{crate}`" for crate in crates) or "nothing of Leno"


def has_example(crate):
    for source in glob.glob(f"crates/{crate}/src/**/*.rs", recursive=True):
        with open(source, encoding="utf-8") as file:
            # A fence that opens with no language, or with a word that rustdoc takes for Rust.
            fences = re.findall(r"^\s*//[/!] ```(.*)$", file.read(), re.MULTILINE)
        if any(language.split(",")[0] in ("", "rust", "no_run", "should_panic") for language in fences[::2]):
            return True
    return False


def tests_examples(crate):
    with open(f"crates/{crate}/Cargo.toml", "rb") as file:
        return tomllib.load(file).get("lib", {}).get("doctest", True)


with open(PAGE, encoding="utf-8") as file:
    before, rest = file.read().split("## Crates\n")
table, after = rest.split("\n## ", 1)
crates = {manifest.split("/")[1]: uses(manifest) for manifest in glob.glob("crates/*/Cargo.toml")}
rows = {name: column for _, name, column in ROW.findall(table)}
faults = [f"{PAGE}: the crate `{name}` has no row" for name in sorted(crates.keys() - rows)]
faults += [f"{PAGE}: there is no crate `{name}`" for name in sorted(rows.keys() - crates)]
with_library = [crate for crate in sorted(crates) if glob.glob(f"crates/{crate}/src/lib.rs")]
for crate in with_library:
    if has_example(crate) != tests_examples(crate):
        says = "has an example in its documentation" if has_example(crate) else "has no example in its documentation"
        faults.append(f"crates/{crate}/Cargo.toml: the crate {says}; correct `doctest` of its [lib]")
if "--write" in sys.argv:
    table = ROW.sub(lambda row: f"{row[1]}{crates.get(row[2], row[3])} |", table)
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write(f"{before}## Crates\n{table}\n## {after}")
else:
    stale = sorted(name for name in crates.keys() & rows if crates[name] != rows[name])
    faults += [f"{PAGE}: the dependencies of `{name}` are stale; scripts/crates.py --write corrects them" for name in stale]
sys.exit("\n".join(faults) or 0)
