"""The Autobahn WebSocket cases, driven by kosoku."""

import json
import shutil
import subprocess

from .install import Cannot, Installation
from .report import FAILED, PASSED, Case
from .ways import Target

NAME = "autobahn"
UPSTREAM = "websocket"
WAYS = ("direct", "gateway", "hop")
TOOLS = ["kosoku"]

GOOD = {"OK", "NON-STRICT", "INFORMATIONAL"}


def run(tools: Installation, target: Target, quick: bool) -> list[Case]:
    """All cases; kosoku counts NON-STRICT and INFORMATIONAL as passed, and so does this."""
    folder = tools.work / f"autobahn-{target.way}"
    shutil.rmtree(folder, ignore_errors=True)
    command = [str(tools.python / "bin/kosoku"), "--parallelism", "4", "--outdir", str(folder)]
    for left_out in ("9.*", "12.*", "13.*") if quick else ():
        command += ["--exclude", left_out]
    log = tools.logs / f"autobahn-{target.way}.log"
    with log.open("wb") as output:
        subprocess.run([*command, f"ws://{target.host}:{target.port}/websocket"], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                       timeout=1800)
    if not (folder / "index.json").exists():
        raise Cannot(f"kosoku wrote no result; see {log}")
    agents = json.loads((folder / "index.json").read_text())
    return [case(name, result) for results in agents.values() for name, result in results.items()]


def case(name: str, result: dict) -> Case:
    if {result["behavior"], result["behaviorClose"]} <= GOOD:
        return Case(name, PASSED)
    return Case(name, FAILED, f"behaviour {result['behavior']}, closing {result['behaviorClose']}, code {result['remoteCloseCode']}")
