"""The gRPC interoperability cases, with grpc-go's client and server."""

import http.client
import json
import subprocess

from .install import Installation
from .report import FAILED, PASSED, SKIPPED, Case
from .ways import Target

NAME = "grpc-interop"
UPSTREAM = "grpc"
WAYS = ("direct", "direct-tls", "gateway", "gateway-tls", "hop")
TOOLS = ["interop-client", "interop-server"]

CASES = [
    "empty_unary", "large_unary", "client_streaming", "server_streaming", "ping_pong", "empty_stream", "timeout_on_sleeping_server",
    "cancel_after_begin", "cancel_after_first_response", "status_code_and_message", "special_status_message", "custom_metadata",
    "unimplemented_method", "unimplemented_service", "pick_first_unary", "orca_per_rpc", "orca_oob", "rpc_soak", "channel_soak",
]
GOOGLE = "needs an account and credentials of Google's cloud, which the interop server would check there"
NOT_APPLICABLE = {name: GOOGLE for name in (
    "compute_engine_creds", "service_account_creds", "jwt_token_creds", "per_rpc_creds", "oauth2_auth_token", "google_default_credentials",
    "compute_engine_channel_credentials")}


def run(tools: Installation, target: Target, _quick: bool) -> list[Case]:
    done = [perform(tools, target, name) for name in CASES]
    return done + [Case(name, SKIPPED, why) for name, why in NOT_APPLICABLE.items()]


def perform(tools: Installation, target: Target, name: str) -> Case:
    arguments = ["-test_case", name, "-soak_iterations", "20"]
    if name.startswith("orca"):
        arguments += ["-service_config_json", '{"loadBalancingConfig": [{"test_backend_metrics_load_balancer": {}}]}']
    code, output = through_function(target, arguments) if target.way == "hop" else at_once(tools, target, arguments)
    if code == 0:
        return Case(name, PASSED)
    said = [line for line in output.splitlines() if line.strip()]
    return Case(name, FAILED, said[-1] if said else f"the client ended with {code} and said nothing")


def at_once(tools: Installation, target: Target, arguments: list[str]) -> tuple[int, str]:
    secure = ["-use_tls", "-use_test_ca", "-ca_file", str(tools.tls / "ca.pem")] if target.tls else []
    command = [str(tools.bin / "interop-client"), "-server_host", target.host, "-server_port", str(target.port), *secure, *arguments]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        return -1, "the client did not end within a minute"
    return done.returncode, done.stdout + done.stderr


def through_function(target: Target, arguments: list[str]) -> tuple[int, str]:
    """Has the function `grpc-client` run the client: its calls go through that instance's outbound sidecar, by CONNECT."""
    connection = http.client.HTTPConnection(target.host, target.port, timeout=90)
    try:
        connection.request("POST", "/", json.dumps(["-server_host", "grpc-server", "-server_port", "80", *arguments]))
        answer = connection.getresponse()
        body = answer.read().decode(errors="replace")
        if answer.status != 200:
            return -1, f"the function that runs the client answered {answer.status}: {body}"
        result = json.loads(body)
        return result["code"], result["output"]
    except (OSError, ValueError, http.client.HTTPException) as reason:
        return -1, f"the function that runs the client: {reason}"
    finally:
        connection.close()
