#!/usr/bin/env python3
"""Builds all tests and runs them, several processes at a time: most tests wait for processes, and cargo runs one program after the other.

Each module of an integration program gets a process of its own, so that what one test leaves in its process
reaches no other module.

Arguments are cargo's, and after `--` those of the test programs, to choose tests
(`-p leno --test it -- chains::`). The output of a process is printed when it has ended. Documentation tests
come last.
"""

import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

CORES = os.cpu_count() or 1
# Many modules have only one or two tests, so more processes wait side by side, each with fewer threads.
AT_ONCE = CORES + 1
CARGO = os.environ.get("CARGO", "cargo")
SPLIT = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
OPTIONS = ["--release", *(sys.argv[1:SPLIT] or ["--workspace"])]
ARGUMENTS = sys.argv[SPLIT + 1 :]


def build():
    """The test programs: the folder and name of the package, the kind and name of the target, and the executable."""
    command = [CARGO, "test", *OPTIONS, "--no-run", "--message-format=json-render-diagnostics"]
    programs = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as cargo:
        for line in cargo.stdout:
            message = json.loads(line)
            if message.get("reason") == "compiler-artifact" and message["profile"]["test"] and message["executable"]:
                folder, target = os.path.dirname(message["manifest_path"]), message["target"]
                programs.append((folder, target["kind"], target["name"], message["executable"]))
    if cargo.returncode:
        sys.exit(cargo.returncode)
    return programs


def processes(program):
    """The processes that run the chosen tests of a program: a folder, a name and a command each."""
    folder, kind, name, executable = program
    listed = subprocess.run(
        [executable, *ARGUMENTS, "--list", "--format=terse"], cwd=folder, stdout=subprocess.PIPE, text=True, check=True
    )
    tests = [line.removesuffix(": test") for line in listed.stdout.splitlines() if line.endswith(": test")]
    name = f"{os.path.basename(folder)}: {name}"
    if kind != ["test"]:
        return [(folder, name, [executable, *ARGUMENTS])] if tests else []
    modules = {}
    for test in tests:
        module, _, _ = test.rpartition("::")[0].partition("::")
        modules.setdefault(module, []).append(test)
    options = [argument for argument in ARGUMENTS if argument.startswith("-") and argument != "--exact"]
    return [
        (folder, f"{name} {module}".rstrip(), [executable, *options, "--exact", *tests])
        for module, tests in modules.items()
    ]


def threads():
    """Tests of a process at a time, unless RUST_TEST_THREADS says otherwise."""
    return os.environ.get("RUST_TEST_THREADS", str(CORES))


printing = threading.Lock()


def run(process):
    """Runs a process and prints its output. Returns its name if it failed."""
    folder, name, command = process
    environment = {**os.environ, "CARGO_MANIFEST_DIR": folder, "RUST_TEST_THREADS": threads()}
    begin = time.monotonic()
    ended = subprocess.run(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    with printing:
        sys.stdout.buffer.write(f"\n== {name} ({time.monotonic() - begin:.0f} s)\n".encode() + ended.stdout)
        sys.stdout.flush()
    return name if ended.returncode else None


def main():
    chosen = [process for program in build() for process in processes(program)]
    if not chosen:
        sys.exit("there are no tests of this choice")
    # Tests of the program `leno` wait most, so they come first.
    chosen.sort(key=lambda process: (os.path.basename(process[0]) != "leno", process))
    print(f"== running {len(chosen)} test processes, {AT_ONCE} at a time", flush=True)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        failed = [name for name in pool.map(run, chosen) if name]
    if len(sys.argv) == 1 and subprocess.run([CARGO, "test", *OPTIONS, "--doc"]).returncode:
        failed.append("documentation")
    if failed:
        sys.exit("failed: " + ", ".join(failed))


main()
