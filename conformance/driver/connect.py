"""The Connect conformance suite: the Connect protocol, gRPC and gRPC-Web, over HTTP/1.1 and HTTP/2.

`connect` has the suite's clients (connect-go and grpc-go) call the suite's server. `connect-responses` has connect-go's client meet a
server that also answers what no good server would: the suite calls that the test of a client, and here it shows what Leno makes of it."""

import http.client
import json
import re
import subprocess
from collections.abc import Iterable
from types import SimpleNamespace

from .install import Cannot, Installation
from .report import FAILED, PASSED, SKIPPED, Case
from .ways import RAW_SERVER, Target

PROGRAMS = ["connectconformance", "referenceclient", "referenceserver"]
PARALLEL = "8"
MINUTES = 15
NOT_APPLICABLE = {
    "HTTP/3": "Leno's listeners speak HTTP/1.1 and HTTP/2 over TCP",
    "client certificates": "the suite's server demands them, and Leno's gateway ends TLS before it",
}


def features(tls: bool, versions: Iterable[int]) -> str:
    """What is tested, as the suite reads it: YAML, of which JSON is a part."""
    return json.dumps({"features": {
        "versions": [f"HTTP_VERSION_{version}" for version in versions],
        "protocols": ["PROTOCOL_CONNECT", "PROTOCOL_GRPC", "PROTOCOL_GRPC_WEB"],
        "codecs": ["CODEC_PROTO", "CODEC_JSON"],
        "compressions": [f"COMPRESSION_{name}" for name in ("IDENTITY", "GZIP", "BR", "ZSTD", "DEFLATE", "SNAPPY")],
        "supportsH2c": not tls, "supportsTls": tls, "supportsTlsClientCerts": False, "supportsHalfDuplexBidiOverHttp1": True,
    }})


def run_requests(tools: Installation, target: Target, _quick: bool) -> list[Case]:
    # Without Leno the suite starts its own server as often as it likes.
    server = [str(tools.bin / "referenceserver")] if target.way.startswith("direct") else None
    if target.way == "hop":
        names = ["-http1", "connect-http1", "-http2", "connect-http2", "-grpc", "connect-grpc", "-port", "80"]
        return through_function(tools, target, ["./peer", "connect-server", *names])
    if server is None:
        server = [str(tools.bin / "peer"), "connect-server", *gateway(tools, target)]
    return cases(here(tools, target, "connect", ["--mode", "server", "--parallel", PARALLEL, *configuration(tools, target)], server))


def run_responses(tools: Installation, target: Target, _quick: bool) -> list[Case]:
    client = [str(tools.bin / "referenceclient")]
    if target.way != "direct":
        client = [str(tools.bin / "peer"), "connect-client", "-program", client[0], *gateway(tools, target)]
    arguments = ["--mode", "client", "--port", str(RAW_SERVER), *configuration(tools, target)]
    return cases(here(tools, target, "connect-responses", arguments, client))


def gateway(tools: Installation, target: Target) -> list[str]:
    """Which of the functions answers is a matter of the host."""
    trust = ["-certificate", str(tools.tls / "ca.pem")] if target.tls else []
    return ["-http1", "localhost", "-http2", "127.0.0.1", "-port", str(target.port), *trust]


def configuration(tools: Installation, target: Target) -> list[str]:
    file = tools.work / f"connect-{target.way}.yaml"
    file.write_text(features(target.tls, (1, 2)))
    return ["--conf", str(file), *(["--skip", "**/TLS:false/**"] if target.tls else [])]


def here(tools: Installation, target: Target, suite: str, arguments: list[str], tested: list[str]) -> str:
    log = tools.logs / f"{suite}-{target.way}.log"
    command = [str(tools.bin / "connectconformance"), *arguments, "-v", "--vv", "--", *tested]
    with log.open("wb") as output:
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=MINUTES * 60)
    return log.read_text(errors="replace")


def through_function(tools: Installation, target: Target, tested: list[str]) -> list[Case]:
    """Has the function `connect-caller` run the suite: its calls are an instance's, by the callee's name."""
    # The function sees nothing of this folder but its programs.
    conf = tools.bin / "connect-hop.yaml"
    conf.write_text(features(False, (1, 2)))
    arguments = ["--mode", "server", "--conf", f"./{conf.name}", "--parallel", PARALLEL, "-v", "--vv", "--", *tested]
    connection = http.client.HTTPConnection(target.host, target.port, timeout=MINUTES * 60)
    try:
        connection.request("POST", "/connect-caller", json.dumps(arguments))
        answer = connection.getresponse()
        body = answer.read().decode(errors="replace")
        if answer.status != 200:
            raise Cannot(f"the function that runs the Connect suite answered {answer.status}: {body}")
        output = json.loads(body)["output"]
    except (OSError, ValueError, http.client.HTTPException) as reason:
        raise Cannot(f"the function that runs the Connect suite: {reason}") from reason
    finally:
        connection.close()
    (tools.logs / "connect-hop.log").write_text(output)
    return cases(output)


def cases(output: str) -> list[Case]:
    """The outcome of each case that the suite began. A failure is told in the indented lines below its name."""
    total = re.search(r"^Total cases: (\d+)$", output, re.M)
    if not total:
        raise Cannot("the Connect suite came to no end:\n" + "\n".join(output.splitlines()[-15:]))
    begun = dict.fromkeys(re.findall(r'^Sending request for "(.*)"\.\.\.$', output, re.M))
    answered = set(re.findall(r'^Received response for "(.*)"\.\.\.$', output, re.M))
    failed = {name: " ".join(detail.split()) for name, detail in re.findall(r"^FAILED: (.*):\n((?:[ \t]+.*\n|\n)*)", output, re.M)}
    outcomes = []
    for name in begun:
        if name in failed:
            outcomes.append(Case(name, FAILED, failed.pop(name)))
        else:
            outcomes.append(Case(name, PASSED) if name in answered else Case(name, FAILED, "no response came"))
    outcomes += [Case(name, FAILED, detail) for name, detail in failed.items()]
    return outcomes + [Case(name, SKIPPED, why) for name, why in NOT_APPLICABLE.items()]


REQUESTS = SimpleNamespace(NAME="connect", UPSTREAM="connect", WAYS=("direct", "direct-tls", "gateway", "gateway-tls", "hop"),
                           TOOLS=PROGRAMS, run=run_requests)
RESPONSES = SimpleNamespace(NAME="connect-responses", UPSTREAM="raw", WAYS=("direct", "gateway", "nodes"),
                            TOOLS=PROGRAMS, run=run_responses)
