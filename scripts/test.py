#!/usr/bin/env python3
"""Builds all tests and runs them, two programs at a time: most tests wait for processes, and cargo runs one program after the other.

Arguments are cargo's, to choose tests (`-p leno --test chains`). The output of a program is printed when it has ended. Documentation tests come last.
"""

import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

AT_ONCE = 2
CARGO = os.environ.get("CARGO", "cargo")
OPTIONS = ["--release", *(sys.argv[1:] or ["--workspace"])]


def build():
    """The test programs, each with the folder of its package. Those of the program `leno` wait most, so they come first."""
    command = [CARGO, "test", *OPTIONS, "--no-run", "--message-format=json-render-diagnostics"]
    programs = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as cargo:
        for line in cargo.stdout:
            message = json.loads(line)
            if message.get("reason") == "compiler-artifact" and message["profile"]["test"] and message["executable"]:
                folder = os.path.dirname(message["manifest_path"])
                programs.append((os.path.basename(folder) != "leno", folder, message["target"]["name"], message["executable"]))
    if cargo.returncode:
        sys.exit(cargo.returncode)
    return [program[1:] for program in sorted(programs)]


def threads():
    """Tests of a program at a time, unless RUST_TEST_THREADS says otherwise."""
    return os.environ.get("RUST_TEST_THREADS", str((os.cpu_count() or 1) + 1))


printing = threading.Lock()


def run(program):
    """Runs a program and prints what it wrote. Returns its name if it failed."""
    folder, name, executable = program
    environment = {**os.environ, "CARGO_MANIFEST_DIR": folder, "RUST_TEST_THREADS": threads()}
    begin = time.monotonic()
    ended = subprocess.run(
        [executable], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    name = f"{os.path.basename(folder)}: {name}"
    with printing:
        sys.stdout.buffer.write(f"\n== {name} ({time.monotonic() - begin:.0f} s)\n".encode() + ended.stdout)
        sys.stdout.flush()
    return name if ended.returncode else None


def main():
    programs = build()
    if not programs:
        sys.exit("there are no tests of this choice")
    print(f"== running {len(programs)} test programs, {AT_ONCE} at a time", flush=True)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        failed = [name for name in pool.map(run, programs) if name]
    if not sys.argv[1:] and subprocess.run([CARGO, "test", *OPTIONS, "--doc"]).returncode:
        failed.append("documentation")
    if failed:
        sys.exit("failed: " + ", ".join(failed))


main()
