#!/usr/bin/env python3
"""Prints the crates inside some packages of the workspace as CycloneDX, from `cargo tree` and Cargo.lock. The same lock file makes the same bytes."""

import json
import os
import pathlib
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = "x86_64-unknown-linux-gnu"


def tree(package):
    """The crates of a package, with their licences, as (name, version, licence)."""
    command = [os.environ.get("CARGO", "cargo"), "tree", "--locked", "--package", package, "--target", TARGET]
    command += ["--edges", "normal", "--prefix", "none", "--no-dedupe", "--format", "{p}|{l}"]
    found = set()
    for line in subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines():
        crate, has_licence, licence = line.partition("|")
        if not has_licence:
            continue
        name, version = crate.split()[:2]
        found.add((name, version.removeprefix("v"), licence))
    return found


def component(name, version, licence, checksum):
    purl = f"pkg:cargo/{name}@{version}"
    found = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    if licence:
        # Older crates write `/` for OR.
        found["licenses"] = [{"expression": licence.replace("/", " OR ")}]
    if checksum:
        found["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    return found


packages = sys.argv[1:]
if not packages:
    sys.exit("sbom: name the packages")
with open(ROOT / "Cargo.lock", "rb") as file:
    checksums = {(crate["name"], crate["version"]): crate.get("checksum") for crate in tomllib.load(file)["package"]}
with open(ROOT / "Cargo.toml", "rb") as file:
    release = tomllib.load(file)["workspace"]["package"]["version"]
crates = sorted(set.union(*map(tree, packages)))
components = [component(*crate, checksums.get(crate[:2])) for crate in crates]
top = {"type": "application", "bom-ref": "leno", "name": "leno", "version": release}
print(json.dumps({"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "metadata": {"component": top}, "components": components}, indent=1))
