"""The ways from a suite to its upstream, and the processes at the far end of them."""

import http.client
import os
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from .install import Cannot, Installation

# The ports of conformance/mesh and conformance/raw.
GATEWAY, GATEWAY_TLS = 18480, 18443
RELAYS = {"http": 18451, "websocket": 18452}
GRPC_CLIENT = 18453
RAW_GATEWAY, RAW_GATEWAY_TLS, RAW_SERVER = 18490, 18493, 18460


@dataclass(frozen=True)
class Way:
    title: str
    through_leno: bool
    # The way without Leno that a failure is compared with.
    baseline: str | None = None


WAYS = {
    "direct": Way("straight to the upstream", False),
    "direct-tls": Way("straight to the upstream over TLS", False),
    "gateway": Way("through the gateway", True, "direct"),
    "gateway-tls": Way("through the gateway over TLS", True, "direct-tls"),
    "hop": Way("through a whole hop (outbound sidecar, mutual TLS, inbound sidecar)", True, "direct"),
    "nodes": Way("through a gateway and another node (mutual TLS between them)", True, "direct"),
}


@dataclass(frozen=True)
class Target:
    """Where a suite's client connects to."""

    way: str
    port: int
    tls: bool = False
    host: str = "127.0.0.1"
    # Name of the callee, where requests have to name one.
    callee: str | None = None

    @property
    def authority(self) -> str:
        return self.callee or f"{self.host}:{self.port}"


@dataclass
class Started:
    """A process of ours, in a group of its own."""

    name: str
    process: subprocess.Popen
    log: Path

    def stop(self) -> None:
        """SIGTERM, twenty seconds, then SIGKILL."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])


def start(tools: Installation, name: str, command: list[str], env: dict[str, str] | None = None) -> Started:
    log = tools.logs / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                   start_new_session=True)
    return Started(name, process, log)


def wait_until(started: Started, ready, seconds: float, what: str) -> None:
    """Asks again and again until `ready()`; the process may not end meanwhile."""
    end = time.monotonic() + seconds
    while not ready():
        if started.process.poll() is not None:
            raise Cannot(f"{started.name} ended with {started.process.returncode} before {what}:\n{started.tail()}")
        if time.monotonic() > end:
            raise Cannot(f"{started.name}: not {what} within {seconds:.0f} s:\n{started.tail()}")
        time.sleep(0.05)


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    except OSError:
        return False


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


class Upstreams:
    """The plain upstreams, each started when it is first asked for."""

    def __init__(self, tools: Installation):
        self.tools = tools
        self.running: dict[tuple[str, str], tuple[Started, Target]] = {}

    def target(self, upstream: str, way: str) -> Target:
        if upstream in ("connect", "raw"):
            # The suite starts its own servers.
            return Target(way, 0, way == "direct-tls")
        if (upstream, way) not in self.running:
            port, tls = free_port(), way == "direct-tls"
            started = start(self.tools, f"{upstream}-{way}", self.command(upstream, port, tls), {"PORT": str(port)})
            self.running[upstream, way] = started, Target(way, port, tls)
            wait_until(started, lambda: accepts(port), 10, "listening")
        return self.running[upstream, way][1]

    def command(self, upstream: str, port: int, tls: bool) -> list[str]:
        certificate, key = str(self.tools.tls / "cert.pem"), str(self.tools.tls / "key.pem")
        if upstream == "grpc":
            secure = ["-use_tls", "-tls_cert_file", certificate, "-tls_key_file", key] if tls else []
            return [str(self.tools.bin / "interop-server"), "-port", str(port), *secure]
        return [str(self.tools.bin / "peer"), upstream, *(["-tls", str(self.tools.tls)] if tls else [])]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for started, _target in self.running.values():
            started.stop()


@dataclass
class Mesh:
    """`leno up` with the documents of a folder in conformance, if a suite and a way need it."""

    tools: Installation
    program: Path
    needed: bool
    name: str
    ports: tuple[int, ...]
    callers: tuple[int, ...] = ()
    started: Started | None = field(default=None)

    def target(self, upstream: str, way: str) -> Target:
        if way == "gateway-tls":
            return Target(way, RAW_GATEWAY_TLS if upstream == "raw" else GATEWAY_TLS, tls=True)
        if upstream == "connect" and way == "hop":
            # The function that calls is asked through the gateway.
            return Target(way, GATEWAY)
        if way == "hop":
            return Target(way, GRPC_CLIENT if upstream == "grpc" else RELAYS[upstream], callee=upstream)
        return Target(way, RAW_GATEWAY if upstream == "raw" else GATEWAY)

    def __enter__(self):
        if not self.needed:
            return self
        if not self.program.exists():
            raise Cannot(f"{self.program} does not exist; build it (cargo build --release -p leno), or name another with --leno")
        for port in (*self.ports, *self.callers):
            if accepts(port):
                raise Cannot(f"port {port} on 127.0.0.1 is taken by another process")
        self.started = start(self.tools, f"leno-{self.name}", [str(self.program), "up", str(self.documents())])
        try:
            wait_until(self.started, lambda: ready(self.tools.work / f"{self.name}.sock"), 60, "ready")
            for port in self.callers:
                wait_until(self.started, lambda port=port: accepts(port), 30, f"running its function on port {port}")
        except Cannot:
            self.started.stop()
            raise
        return self

    def documents(self) -> Path:
        """The documents as they are for this working folder."""
        folder = self.tools.work / self.name
        folder.mkdir(exist_ok=True)
        for document in (self.tools.source / self.name).glob("*.yaml"):
            (folder / document.name).write_text(document.read_text().replace("../../target/conformance/", "../"))
        return folder

    def __exit__(self, *_):
        if self.started:
            self.started.stop()


def meshes(tools: Installation, program: Path, upstreams: set[str]) -> list[Mesh]:
    """Those in which the suites that go through Leno have their upstreams."""
    return [
        Mesh(tools, program, bool(upstreams - {"raw"}), "mesh", (GATEWAY, GATEWAY_TLS), (GRPC_CLIENT, *RELAYS.values())),
        Mesh(tools, program, "raw" in upstreams, "raw", (RAW_GATEWAY, RAW_GATEWAY_TLS)),
    ]


def ready(admin: Path) -> bool:
    connection = http.client.HTTPConnection("admin", timeout=2)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(2)
    try:
        connection.sock.connect(str(admin))
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
