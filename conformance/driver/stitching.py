"""Whole traces of an application that copies no trace headers: the mesh joins a call to the request that its instance has in hand."""

import json
import threading

from .install import Installation
from .report import Case
from .tracecontext import PARENT, TRACE, VALID, Fields, Received, get, judged
from .ways import Target

NAME = "trace-stitching"
UPSTREAM = "chain"
# An application that copies nothing has no whole traces without a mesh, so there is nothing to compare with.
WAYS = ("gateway",)
TOOLS: list[str] = []

WHOLE = "/chain-a/call/chain-b/chain-c"


def run(_tools: Installation, target: Target, _quick: bool) -> list[Case]:
    judges = {
        "one trace over three functions": one_trace,
        "a new trace over three functions": new_trace,
        "tracestate goes along": tracestate_goes_along,
        "one request ID over three functions": one_request_id,
        "an application that copies the headers itself": copying_application,
        "a request without a trace does not inherit the one before": nothing_inherited,
        "eight requests at once do not mix": eight_at_once,
        "two requests in hand at once are never given each other's trace": never_the_wrong_trace,
        "two requests in hand at once, headers copied": overlapping_copies,
    }
    return [judged(name, lambda judge=judge: judge(target)) for name, judge in judges.items()]


def trail(target: Target, path: str, fields: Fields) -> list[Received]:
    """What each function of the chain received, the first one first."""
    seen = json.loads(get(target, path, fields))
    return [Received(hop["headers"].get("traceparent", []), hop["headers"].get("tracestate", [])) for hop in seen]


def judge_whole(hops: list[Received], functions: int, trace: str | None) -> None:
    spans = [hop.span() for hop in hops]
    assert len(spans) == functions, f"{len(spans)} functions were called instead of {functions}"
    traces, parents = {span[0] for span in spans}, [span[1] for span in spans]
    assert len(traces) == 1, f"the trace fell apart: {[span[0] for span in spans]}"
    assert trace is None or traces == {trace}, f"the trace is {traces.pop()} instead of {trace}"
    assert len({*parents, PARENT}) == functions + 1, f"spans share an identifier: {parents}"


def one_trace(target: Target) -> None:
    judge_whole(trail(target, WHOLE, [("traceparent", VALID)]), 3, TRACE)


def new_trace(target: Target) -> None:
    judge_whole(trail(target, WHOLE, []), 3, None)


def tracestate_goes_along(target: Target) -> None:
    hops = trail(target, WHOLE, [("traceparent", VALID), ("tracestate", "foo=1,bar=2")])
    judge_whole(hops, 3, TRACE)
    found = [[member for member in hop.members() if not member.startswith("leno=")] for hop in hops]
    assert found == [["foo=1", "bar=2"]] * 3, f"tracestate at each function: {found}"


def one_request_id(target: Target) -> None:
    hops = json.loads(get(target, WHOLE, []))
    names = {tuple(hop["headers"].get("x-request-id", [])) for hop in hops}
    assert len(hops) == 3 and len(names) == 1 and len(names.pop()) == 1, f"request IDs at each function: {names}"


def copying_application(target: Target) -> None:
    judge_whole(trail(target, f"{WHOLE}?copy=1", [("traceparent", VALID)]), 3, TRACE)


def nothing_inherited(target: Target) -> None:
    judge_whole(trail(target, WHOLE, [("traceparent", VALID)]), 3, TRACE)
    hops = trail(target, WHOLE, [])
    judge_whole(hops, 3, None)
    assert hops[0].span()[0] != TRACE, "the trace of the request before was inherited"


def eight_at_once(target: Target) -> None:
    traces = [f"{index + 1:032x}" for index in range(8)]
    for trace, hops in zip(traces, at_once(target, WHOLE, traces)):
        judge_whole(hops, 3, trace)


def never_the_wrong_trace(target: Target) -> None:
    traces = ["1" * 32, "2" * 32]
    for trace, hops in zip(traces, at_once(target, "/chain-shared/call/chain-c?meet=2", traces)):
        here, there = (hop.span()[0] for hop in hops)
        assert here == trace, f"the request itself lost its trace: {here} instead of {trace}"
        assert there == trace or there not in traces, f"the call of {trace} was given the trace of the other request, {there}"


def overlapping_copies(target: Target) -> None:
    traces = ["3" * 32, "4" * 32]
    for trace, hops in zip(traces, at_once(target, "/chain-shared/call/chain-c?meet=2&copy=1", traces)):
        judge_whole(hops, 2, trace)


def at_once(target: Target, path: str, traces: list[str]) -> list[list[Received]]:
    """One request for each trace, all at once; the trails in the order of the traces."""
    trails: list = [None] * len(traces)

    def one(index: int) -> None:
        try:
            trails[index] = trail(target, path, [("traceparent", f"00-{traces[index]}-{PARENT}-01")])
        except (AssertionError, OSError, ValueError) as reason:
            trails[index] = reason

    threads = [threading.Thread(target=one, args=(index,)) for index in range(len(traces))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for found in trails:
        if isinstance(found, Exception):
            raise found
    return trails
