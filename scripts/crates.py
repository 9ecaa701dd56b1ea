#!/usr/bin/env python3
"""Checks the table of crates in docs/architecture.md: a row for each crate, with the crates of Leno
that its Cargo.toml names. --write: corrects the last column."""

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


with open(PAGE, encoding="utf-8") as file:
    before, rest = file.read().split("## Crates\n")
table, after = rest.split("\n## ", 1)
crates = {manifest.split("/")[1]: uses(manifest) for manifest in glob.glob("crates/*/Cargo.toml")}
rows = {name: column for _, name, column in ROW.findall(table)}
faults = [f"{PAGE}: the crate `{name}` has no row" for name in sorted(crates.keys() - rows)]
faults += [f"{PAGE}: there is no crate `{name}`" for name in sorted(rows.keys() - crates)]
if "--write" in sys.argv:
    table = ROW.sub(lambda row: f"{row[1]}{crates.get(row[2], row[3])} |", table)
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write(f"{before}## Crates\n{table}\n## {after}")
else:
    stale = sorted(name for name in crates.keys() & rows if crates[name] != rows[name])
    faults += [f"{PAGE}: the dependencies of `{name}` are stale; scripts/crates.py --write corrects them" for name in stale]
sys.exit("\n".join(faults) or 0)
