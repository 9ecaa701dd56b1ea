"""W3C Trace Context (Recommendation of 23 November 2021), for a participant that makes each request a span of its own.

Each case sends header fields, byte for byte, over HTTP/1.1 and judges what the upstream received. What the recommendation leaves open
(MAY) is not judged; where it leaves a choice, every choice is accepted, and the case's text says so."""

import json
import re
import socket
from dataclasses import dataclass
from typing import Callable

from .install import Installation
from .report import FAILED, PASSED, Case
from .ways import Target

NAME = "trace-context"
UPSTREAM = "http"
# A plain upstream takes no part in tracing, so there is nothing to compare with.
WAYS = ("gateway", "hop")
TOOLS: list[str] = []

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
VALID = f"00-{TRACE}-{PARENT}-01"

Fields = list[tuple[str, str]]


@dataclass
class Received:
    """The trace context that reached the upstream."""

    traceparent: list[str]
    tracestate: list[str]

    def span(self) -> tuple[str, str, int]:
        """trace-id, parent-id and flags of the one, valid traceparent of version 00."""
        assert len(self.traceparent) == 1, f"the upstream got {len(self.traceparent)} traceparent fields: {self.traceparent}"
        match = re.fullmatch(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})", self.traceparent[0])
        assert match, f"the upstream got {self.traceparent[0]!r}, which is no traceparent of version 00"
        trace, parent, flags = match.groups()
        assert trace.strip("0") and parent.strip("0"), f"the upstream got an identifier of zeros: {self.traceparent[0]}"
        # Level 1 knows the sampled flag only; level 2 adds the second bit. All others must be zero.
        assert int(flags, 16) & ~3 == 0, f"reserved flags are set: {flags}"
        return trace, parent, int(flags, 16)

    def members(self) -> list[str]:
        """Members of tracestate: fields combined in order, empty members and optional white space left out."""
        return [member for member in (part.strip(" \t") for part in ",".join(self.tracestate).split(",")) if member]


Judge = Callable[[Received], None]


def continued(sampled: bool | None = True) -> Judge:
    """The trace goes on, in a new span. The sampling decision of the caller is respected."""

    def judge(received: Received) -> None:
        trace, parent, flags = received.span()
        assert trace == TRACE, f"the trace was not continued: {trace} instead of {TRACE}"
        assert parent != PARENT, "the parent-id is still the caller's"
        assert sampled is None or flags & 1 == sampled, f"sampled is {flags & 1} and was {int(sampled)}"

    return judge


def restarted(received: Received) -> None:
    """A new trace begins, and nothing of the old one is left."""
    trace, parent, _flags = received.span()
    assert trace.lower() != TRACE, "the trace of an invalid traceparent was continued"
    assert parent.lower() != PARENT, "the parent-id of an invalid traceparent was taken over"
    assert not received.members(), f"tracestate outlived its trace: {received.tracestate}"


def state(*members: str) -> Judge:
    """The trace goes on with exactly these members in this order (a first member of Leno's own is allowed)."""

    def judge(received: Received) -> None:
        continued()(received)
        found = without_own(received)
        assert found == list(members), f"tracestate is {found} instead of {list(members)}"

    return judge


def some_state(sent: list[str], never: tuple[str, ...] = (), at_least: int = 0) -> Judge:
    """The trace goes on; whole members of `sent` in their order, none of `never`, at most 32, and at least `at_least` characters."""

    def judge(received: Received) -> None:
        continued()(received)
        found = without_own(received)
        rest = iter(sent)
        assert all(member in rest for member in found), f"not whole members in their order: {found}"
        assert not set(found) & set(never), f"an invalid member was passed on: {found}"
        assert len(received.members()) <= 32, f"{len(received.members())} members"
        assert len(",".join(found)) >= at_least, f"only {len(','.join(found))} characters were passed on"

    return judge


def without_own(received: Received) -> list[str]:
    members = received.members()
    return members[1:] if members and members[0].startswith("leno=") else members


@dataclass
class Rule:
    name: str
    sent: Fields
    judge: Judge


def parent(value: str) -> Fields:
    return [("traceparent", value)]


def with_state(*values: str, traceparent: str = VALID, name: str = "tracestate") -> Fields:
    return [("traceparent", traceparent), *((name, value) for value in values)]


def invalid_parents() -> dict[str, str]:
    """traceparents that must be ignored; the text is the case's name."""
    zeros, trace, own = "0" * 32, TRACE, PARENT
    return {
        "empty": "",
        "only dashes": "---",
        "version with one digit": f"0-{trace}-{own}-01",
        "version with three digits": f"000-{trace}-{own}-01",
        "version with a non-hex digit": f"0g-{trace}-{own}-01",
        "version with a dot": f".0-{trace}-{own}-01",
        "version ff": f"ff-{trace}-{own}-01",
        "version missing": f"{trace}-{own}-01",
        "trace-id of zeros": f"00-{zeros}-{own}-01",
        "trace-id in upper case": f"00-{trace.upper()}-{own}-01",
        "trace-id with one upper-case digit": f"00-{trace[:-1]}C-{own}-01",
        "trace-id with a non-hex character": f"00-{trace[:-1]}g-{own}-01",
        "trace-id with a dot at its start": f"00-.{trace[1:]}-{own}-01",
        "trace-id one digit short": f"00-{trace[1:]}-{own}-01",
        "trace-id one digit long": f"00-{trace}0-{own}-01",
        "trace-id missing": f"00--{own}-01",
        "parent-id of zeros": f"00-{trace}-{'0' * 16}-01",
        "parent-id in upper case": f"00-{trace}-{own.upper()}-01",
        "parent-id with a non-hex character": f"00-{trace}-{own[:-1]}x-01",
        "parent-id one digit short": f"00-{trace}-{own[1:]}-01",
        "parent-id one digit long": f"00-{trace}-{own}0-01",
        "parent-id missing": f"00-{trace}--01",
        "flags missing": f"00-{trace}-{own}",
        "flags missing after a dash": f"00-{trace}-{own}-",
        "flags with one digit": f"00-{trace}-{own}-1",
        "flags with three digits": f"00-{trace}-{own}-001",
        "flags with a non-hex character": f"00-{trace}-{own}-0x",
        "flags in upper case": f"00-{trace}-{own}-0A",
        "version 00 with a further field": f"00-{trace}-{own}-01-more",
        "version 00 with a dash at the end": f"00-{trace}-{own}-01-",
        "version 00 with a dot after the flags": f"00-{trace}-{own}-01.",
        "underscores instead of dashes": f"00_{trace}_{own}_01",
        "a space inside": f"00-{trace} -{own}-01",
        "in quotes": f'"{VALID}"',
        "oversized, 1,000 characters": VALID + "-" + "0" * 944,
        "oversized, 8,000 characters": VALID + "0" * 7945,
        "one field with two values": f"{VALID},{VALID}",
        "characters beyond ASCII": f"00-{trace[:-1]}\u00e9-{own}-01",
        "future version, 54 characters": f"cc-{trace}-{own}-0",
        "future version, trace-id of zeros": f"cc-{zeros}-{own}-01",
        "future version, parent-id of zeros": f"cc-{trace}-{'0' * 16}-01",
        "future version, non-hex trace-id": f"cc-{trace[:-1]}z-{own}-01",
        "future version, non-hex parent-id": f"cc-{trace}-{own[:-1]}z-01",
        "future version, non-hex flags": f"cc-{trace}-{own}-xy",
        "future version, no dash after the flags": f"cc-{trace}-{own}-01.more",
        "future version, three digits of flags": f"cc-{trace}-{own}-011",
    }


def traceparent_rules() -> list[Rule]:
    other = f"00-{'1' * 32}-{'2' * 16}-01"
    rules = [
        Rule("sampled", parent(VALID), continued(sampled=True)),
        Rule("not sampled", parent(f"00-{TRACE}-{PARENT}-00"), continued(sampled=False)),
        Rule("reserved flags, sampled", parent(f"00-{TRACE}-{PARENT}-ff"), continued(sampled=True)),
        Rule("reserved flags, not sampled", parent(f"00-{TRACE}-{PARENT}-fe"), continued(sampled=False)),
        Rule("name in upper case", [("TRACEPARENT", VALID)], continued()),
        Rule("name in mixed case", [("TraceParent", VALID)], continued()),
        Rule("white space around the value", parent(f" \t {VALID}\t "), continued()),
        Rule("absent", [], restarted),
        Rule("absent, with a tracestate", [("tracestate", "foo=1")], restarted),
        Rule("repeated, two values", [*parent(VALID), *parent(other)], restarted),
        Rule("repeated, the same value", [*parent(VALID), *parent(VALID)], restarted),
        Rule("repeated, one of them invalid", [*parent(VALID), *parent("00-nonsense")], restarted),
        Rule("repeated, names in different case", [("traceparent", VALID), ("TraceParent", other)], restarted),
        Rule("future version, same fields", parent(f"cc-{TRACE}-{PARENT}-01"), continued(sampled=True)),
        Rule("future version, not sampled", parent(f"cc-{TRACE}-{PARENT}-00"), continued(sampled=False)),
        Rule("future version, unknown flags", parent(f"cc-{TRACE}-{PARENT}-fe"), continued(sampled=False)),
        Rule("future version, further fields", parent(f"01-{TRACE}-{PARENT}-01-what-the-future-holds"), continued()),
        Rule("future version, a dash at the end", parent(f"fe-{TRACE}-{PARENT}-01-"), continued()),
        Rule("future version, 2,000 characters", parent(f"cc-{TRACE}-{PARENT}-01-" + "x" * 1944), continued()),
    ]
    return rules + [Rule(f"invalid: {name}", with_state("foo=1", traceparent=value), restarted)
                    for name, value in invalid_parents().items()]


def tracestate_rules() -> list[Rule]:
    letters, long_key, long_value = "abcdefghijklmnopqrstuvwxyz0123456789_-*/", "k" * 256, "v" * 256
    printable = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) not in ",=")
    many = [f"key{index:02}={index:09}" for index in range(32)]  # 32 members, 511 characters with commas
    exact = [*many[:-1], many[-1] + "x"]  # 512 characters
    wide = [f"wide{index:02}={'w' * 121}" for index in range(32)]  # 128 characters each
    bulky = ["bulky=" + "b" * 250, *many[:20]]
    return [
        Rule("one member", with_state("foo=1"), state("foo=1")),
        Rule("order of members", with_state("zoo=3,foo=1,bar=2"), state("zoo=3", "foo=1", "bar=2")),
        Rule("several fields are one list", with_state("foo=1", "bar=2,rojo=3", "congo=4"), state("foo=1", "bar=2", "rojo=3", "congo=4")),
        Rule("twenty fields", with_state(*(f"m{index}=1" for index in range(20))), state(*(f"m{index}=1" for index in range(20)))),
        Rule("name in upper case", with_state("foo=1", name="TRACESTATE"), state("foo=1")),
        Rule("name in mixed case", with_state("foo=1", "bar=2", name="TraceState"), state("foo=1", "bar=2")),
        Rule("empty field", with_state(""), state()),
        Rule("empty field before another", with_state("", "foo=1"), state("foo=1")),
        Rule("empty field after another", with_state("foo=1", ""), state("foo=1")),
        Rule("empty members", with_state("foo=1,,,bar=2"), state("foo=1", "bar=2")),
        Rule("comma at both ends", with_state(",foo=1,bar=2,"), state("foo=1", "bar=2")),
        Rule("members of white space", with_state("foo=1, ,\t,bar=2"), state("foo=1", "bar=2")),
        Rule("white space around members", with_state(" foo=1 \t,\t bar=2 "), state("foo=1", "bar=2")),
        Rule("spaces inside a value", with_state("foo=a b  c,bar=2"), state("foo=a b  c", "bar=2")),
        Rule("space before a value", with_state("foo=  1,bar=2"), state("foo=  1", "bar=2")),
        Rule("every character of a key", with_state(f"{letters}=1"), state(f"{letters}=1")),
        Rule("every character of a value", with_state(f"foo=x{printable}x"), state(f"foo=x{printable}x")),
        Rule("key of a tenant", with_state("fw529a3039@dt=FfcS6Xo0,1a@foo=2"), state("fw529a3039@dt=FfcS6Xo0", "1a@foo=2")),
        Rule("key of 256 characters", with_state(f"{long_key}=1"), state(f"{long_key}=1")),
        Rule("longest tenant key", with_state(f"{'t' * 241}@{'v' * 14}=1"), state(f"{'t' * 241}@{'v' * 14}=1")),
        Rule("value of 256 characters", with_state(f"foo={long_value}"), state(f"foo={long_value}")),
        Rule("32 members", with_state(",".join(many)), state(*many)),
        Rule("32 members in 32 fields", with_state(*many), state(*many)),
        Rule("512 characters", with_state(",".join(exact)), state(*exact)),
        Rule("with a future version", with_state("foo=1,bar=2", traceparent=f"cc-{TRACE}-{PARENT}-01-more"), state("foo=1", "bar=2")),
        # The recommendation allows to drop the list, to cut it, or to drop the member that breaks the rule.
        Rule("33 members", with_state(",".join([*many, "last=1"])), some_state([*many, "last=1"])),
        Rule("oversized, 4 KiB: whole members only", with_state(",".join(wide)), some_state(wide)),
        Rule("one long member among short ones", with_state(",".join(bulky)), some_state(bulky, at_least=319)),
        Rule("a key twice", with_state("foo=1,bar=2,foo=3"), some_state(["foo=1", "bar=2", "foo=3"])),
        Rule("invalid: key in upper case", with_state("Foo=1,bar=2"), some_state(["bar=2"], never=("Foo=1",))),
        Rule("invalid: key with a space", with_state("f o=1,bar=2"), some_state(["bar=2"], never=("f o=1",))),
        Rule("invalid: key with a dot", with_state("f.o=1,bar=2"), some_state(["bar=2"], never=("f.o=1",))),
        Rule("invalid: no key", with_state("=1,bar=2"), some_state(["bar=2"], never=("=1",))),
        Rule("invalid: key of 257 characters", with_state(f"{long_key}k=1,bar=2"), some_state(["bar=2"], never=(f"{long_key}k=1",))),
        Rule("invalid: member without a value", with_state("foo,bar=2"), some_state(["bar=2"], never=("foo",))),
        Rule("invalid: value with an equals sign", with_state("foo=a=b,bar=2"), some_state(["bar=2"], never=("foo=a=b",))),
        Rule("invalid: value of 257 characters", with_state(f"foo={long_value}v,bar=2"), some_state(["bar=2"], never=(f"foo={long_value}v",))),
        Rule("invalid: value beyond ASCII", with_state("foo=\u00e9,bar=2"), some_state(["bar=2"])),
    ]


def run(_tools: Installation, target: Target, _quick: bool) -> list[Case]:
    cases = [judged(f"traceparent: {rule.name}", lambda rule=rule: rule.judge(send(target, rule.sent))) for rule in traceparent_rules()]
    cases += [judged(f"tracestate: {rule.name}", lambda rule=rule: rule.judge(send(target, rule.sent))) for rule in tracestate_rules()]
    cases.append(judged("traceparent: a new span for each request", lambda: new_span_each_time(target)))
    cases.append(judged("traceparent: a new trace for each request without one", lambda: new_trace_each_time(target)))
    return cases


def new_span_each_time(target: Target) -> None:
    parents = [send(target, parent(VALID)).span()[1] for _ in range(8)]
    assert len(set(parents)) == len(parents), f"a parent-id came twice: {parents}"


def new_trace_each_time(target: Target) -> None:
    traces = [send(target, []).span()[0] for _ in range(8)]
    assert len(set(traces)) == len(traces), f"a trace-id came twice: {traces}"


def judged(name: str, judge: Callable[[], None]) -> Case:
    try:
        judge()
    except (AssertionError, OSError, ValueError) as reason:
        return Case(name, FAILED, str(reason) or type(reason).__name__)
    return Case(name, PASSED)


def send(target: Target, fields: Fields) -> Received:
    """What the upstream received of `fields`."""
    headers = json.loads(get(target, "/headers", fields))
    return Received(headers.get("traceparent", []), headers.get("tracestate", []))


def get(target: Target, path: str, fields: Fields) -> bytes:
    """GET over a connection of its own, the fields written as they are (Latin-1). Anything but 200 is an AssertionError."""
    head = [f"GET {path} HTTP/1.1", f"host: {target.authority}", "connection: close", *(f"{name}: {value}" for name, value in fields)]
    with socket.create_connection((target.host, target.port), 20) as connection:
        connection.sendall("\r\n".join([*head, "", ""]).encode("latin-1"))
        answer = connection.makefile("rb")
        status = answer.readline().decode("latin-1").strip()
        length, chunked = None, False
        while line := answer.readline().strip():
            name, _, value = line.decode("latin-1").partition(":")
            length = int(value) if name.lower() == "content-length" else length
            chunked |= name.lower() == "transfer-encoding" and value.strip().lower() == "chunked"
        body = read_chunks(answer) if chunked else answer.read(length)
    assert status.split(" ")[1:2] == ["200"], f"answered {status!r}: {body[:200]!r}"
    return body


def read_chunks(answer) -> bytes:
    body = b""
    while size := int(answer.readline().split(b";")[0], 16):
        body += answer.read(size)
        answer.readline()
    return body
