"""h2spec: HTTP/2 and HPACK framing as a server must handle it."""

import subprocess
import xml.etree.ElementTree as ElementTree

from .install import Cannot, Installation
from .report import FAILED, PASSED, SKIPPED, Case
from .ways import Target

NAME = "h2spec"
UPSTREAM = "http"
WAYS = ("direct", "direct-tls", "gateway", "gateway-tls", "hop")
TOOLS = ["h2spec"]


def run(tools: Installation, target: Target, _quick: bool) -> list[Case]:
    """All cases, the strict ones (SHOULD and the like) included."""
    found = tools.logs / f"h2spec-{target.way}.xml"
    found.unlink(missing_ok=True)
    command = [str(tools.bin / "h2spec"), "--strict", "-h", target.host, "-p", str(target.port), "-j", str(found)]
    command += ["-t", "-k"] if target.tls else []
    if target.callee:
        command = [str(tools.bin / "peer"), "h2spec", "-host", target.callee, "-port", str(target.port), "-junit", str(found)]
    with (tools.logs / f"h2spec-{target.way}.log").open("wb") as log:
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=600)
    if not found.exists():
        raise Cannot(f"h2spec wrote no result; see {log.name}")
    return [case(element) for element in ElementTree.parse(found).iter("testcase")]


def case(element: ElementTree.Element) -> Case:
    name = f"{element.get('package')}: {element.get('classname')}"
    for problem in element:
        if problem.tag == "skipped":
            return Case(name, SKIPPED, "h2spec left it out")
        *wanted, got = (problem.text or "nothing said").strip().split("\n")
        return Case(name, FAILED, f"expected {' or '.join(wanted)}; got {got}")
    return Case(name, PASSED)
