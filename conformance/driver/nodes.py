"""A mesh of three processes: a control plane, a gateway, and a node that hosts the functions."""

import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from .install import Cannot, Installation
from .ways import Started, Target, accepts, free_port, ready, start, wait_until

GATEWAY = 18495


@dataclass
class Nodes:
    """Started at once, if a suite and a way need it, with the documents in conformance/nodes."""

    tools: Installation
    program: Path
    needed: bool
    running: list[Started] = field(default_factory=list)

    @staticmethod
    def target(_upstream: str, way: str) -> Target:
        return Target(way, GATEWAY)

    def __enter__(self):
        if not self.needed:
            return self
        if accepts(GATEWAY):
            raise Cannot(f"port {GATEWAY} on 127.0.0.1 is taken by another process")
        try:
            self.start()
        except Cannot:
            self.__exit__()
            raise
        return self

    def start(self) -> None:
        self.folder = self.tools.work / "nodes"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        source = self.tools.source / "nodes"
        functions = (source / "functions.yaml").read_text().replace("../../target/conformance", str(self.tools.work))
        (self.folder / "functions.yaml").write_text(functions)
        (self.folder / "passphrase").write_text("correct horse battery\n")
        self.api, self.control = free_port(), f"127.0.0.1:{free_port()}"
        files = ["--mesh", str(source / "mesh.yaml"), "--ca", self.file("ca.pem"), "--ca-passphrase", self.file("passphrase")]
        places = ["--data", self.file("data"), "--api", f"127.0.0.1:{self.api}", "--listen", self.control]
        control = self.run("control", ["control", *files, *places])
        wait_until(control, lambda: "this control plane leads" in control.log.read_text(errors="replace"), 60, "leading")
        self.join("gateway", "edge", ["--only-gateway"], ["--gateway-http", f"127.0.0.1:{GATEWAY}"])
        node = self.join("node", "one", [], [])
        self.leno("apply", "-f", self.file("functions.yaml"))
        wait_until(node, lambda: node.log.read_text(errors="replace").count("an instance is ready") == 2, 60, "running the functions")

    def join(self, command: str, name: str, token: list[str], more: list[str]) -> Started:
        (self.folder / f"{name}.token").write_text(self.leno("token", "join", "--node", name, *token))
        options = ["--control", self.control, "--join", self.file(f"{name}.token"), "--name", name, "--state", self.file(f"{name}.state"),
                   "--inbound", f"127.0.0.1:{free_port()}", "--outbound", f"127.0.0.1:{free_port()}",
                   "--admin", f"unix:{self.file(f'{name}.sock')}"]
        started = self.run(name, [command, *options, *more])
        wait_until(started, lambda: ready(self.folder / f"{name}.sock"), 60, "ready")
        return started

    def run(self, name: str, arguments: list[str]) -> Started:
        self.running.append(start(self.tools, f"nodes-{name}", [str(self.program), *arguments]))
        return self.running[-1]

    def leno(self, *arguments: str) -> str:
        """A command for the control plane; its output."""
        env = {"LENO_SERVER": f"https://127.0.0.1:{self.api}", "LENO_TOKEN_FILE": self.file("data/admin.token"),
               "LENO_CA": self.file("data/api.pem")}
        done = subprocess.run([str(self.program), *arguments], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            raise Cannot(f"leno {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def file(self, name: str) -> str:
        return str(self.folder / name)

    def __exit__(self, *_):
        # Nodes before the control plane that they report to.
        for started in reversed(self.running):
            started.stop()
