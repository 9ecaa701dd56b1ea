"""What came out: cases, the comparison with the way without Leno, and the two reports."""

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from .install import Cannot
from .ways import WAYS

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
MARK = "<!-- what follows is written by `conformance/run --docs` -->"


@dataclass(frozen=True)
class Case:
    """One case's outcome; `detail` says why it failed or was left out."""

    name: str
    outcome: str
    detail: str = ""


@dataclass
class Run:
    """One suite along one way."""

    suite: str
    way: str
    cases: list[Case]

    @property
    def counts(self) -> str:
        counts = Counter(case.outcome for case in self.cases)
        return f"{counts[PASSED]} passed, {counts[FAILED]} failed, {counts[SKIPPED]} skipped"

    def outcome(self, name: str) -> str | None:
        return next((case.outcome for case in self.cases if case.name == name), None)


@dataclass
class Expectation:
    """A failure that is known, and why. `case` may hold `*`."""

    suite: str
    ways: list[str]
    case: str
    reason: str
    # The ways on which a case has failed as foreseen.
    used: set[str] = field(default_factory=set)

    def covers(self, suite: str, way: str, case: str) -> bool:
        # Only `*` is special: names of cases contain brackets and question marks.
        pattern = re.escape(self.case).replace(r"\*", ".*")
        return suite == self.suite and way in self.ways and re.fullmatch(pattern, case, re.S) is not None


def expectations(path: Path) -> list[Expectation]:
    try:
        listed = [Expectation(**entry) for entry in json.loads(path.read_text())]
    except (OSError, ValueError, TypeError) as reason:
        raise Cannot(f"{path}: {reason}") from reason
    for entry in listed:
        if not entry.reason.strip() or not set(entry.ways) <= set(WAYS):
            raise Cannot(f"{path}: {entry.suite}, {entry.case}: needs a reason, and ways out of {', '.join(WAYS)}")
    return listed


class Report:
    def __init__(self, runs: list[Run], expected: list[Expectation], versions: dict[str, str]):
        self.runs = runs
        self.versions = versions
        self.failures = [self.failure(run, case, expected) for run in runs for case in run.cases if case.outcome == FAILED]
        self.failures += self.missing()
        ran = {(run.suite, run.way) for run in runs}
        self.stale = [(entry, way) for entry in expected for way in entry.ways if (entry.suite, way) in ran and way not in entry.used]
        self.good = bool(runs) and not self.stale and not any(failure["regression"] for failure in self.failures)

    def failure(self, run: Run, case: Case, expected: list[Expectation]) -> dict:
        entry = next((entry for entry in expected if entry.covers(run.suite, run.way, case.name)), None)
        if entry:
            entry.used.add(run.way)
        without = self.without_leno(run, case.name)
        through = WAYS[run.way].through_leno
        return {"suite": run.suite, "way": run.way, "case": case.name, "detail": case.detail, "fails_without_leno": without,
                "expected": entry.reason if entry else None, "regression": through and without is not True and entry is None}

    def without_leno(self, run: Run, name: str) -> bool | None:
        """Whether the case fails without Leno too; None where there is nothing to compare with."""
        baseline = WAYS[run.way].baseline or run.way
        other = next((other for other in self.runs if (other.suite, other.way) == (run.suite, baseline)), None)
        outcome = other.outcome(name) if other else None
        return None if outcome in (None, SKIPPED) else outcome == FAILED

    def missing(self) -> list[dict]:
        """Cases that ran without Leno and were not heard of again, and suites without a single case."""
        gone = [{"suite": run.suite, "way": run.way, "case": "*", "detail": "no case ran", "fails_without_leno": None, "expected": None,
                 "regression": True} for run in self.runs if not any(case.outcome != SKIPPED for case in run.cases)]
        for run in self.runs:
            baseline = WAYS[run.way].baseline
            for other in (other for other in self.runs if (other.suite, other.way) == (run.suite, baseline)):
                gone += [{"suite": run.suite, "way": run.way, "case": case.name, "detail": "did not run", "fails_without_leno": False,
                          "expected": None, "regression": True} for case in other.cases if run.outcome(case.name) is None]
        return gone

    def write(self, work: Path, docs: Path | None) -> None:
        (work / "report.json").write_text(json.dumps({
            "good": self.good, "versions": self.versions, "failures": self.failures,
            "stale_expectations": [{"suite": entry.suite, "way": way, "case": entry.case} for entry, way in self.stale],
            "runs": [{"suite": run.suite, "way": run.way, "cases": [vars(case) for case in run.cases]} for run in self.runs],
        }, indent=1) + "\n")
        text = self.markdown()
        (work / "report.md").write_text("# Conformance\n\n" + text)
        if docs:
            head = docs.read_text().split(MARK)[0]
            docs.write_text(f"{head}{MARK}\n\n{text}")

    def markdown(self) -> str:
        suites = list(dict.fromkeys(run.suite for run in self.runs))
        ways = [way for way in WAYS if any(run.way == way for run in self.runs)]
        lines = ["Passed / failed / left out:", "", f"| suite | {' | '.join(ways)} |", f"|---|{'---|' * len(ways)}"]
        for suite in suites:
            cells = []
            for way in ways:
                counts = Counter(case.outcome for run in self.runs if (run.suite, run.way) == (suite, way) for case in run.cases)
                cells.append(f"{counts[PASSED]} / {counts[FAILED]} / {counts[SKIPPED]}" if counts else "")
            lines.append(f"| {suite} | {' | '.join(cells)} |")
        lines += ["", "Suites: " + ", ".join(f"{name} {version}" for name, version in self.versions.items()) + ".", ""]
        lines += self.failure_tables()
        left_out = {(run.suite, case.name, case.detail) for run in self.runs for case in run.cases if case.outcome == SKIPPED}
        if left_out:
            lines += ["### Left out", "", "| suite | case | why |", "|---|---|---|"]
            lines += [f"| {suite} | {cell(name)} | {cell(why)} |" for suite, name, why in sorted(left_out)] + [""]
        if self.stale:
            lines += ["### Expected to fail, but did not", ""]
            lines += [f"- {entry.suite}, {way}: {entry.case}" for entry, way in self.stale] + [""]
        return "\n".join(lines)

    def failure_tables(self) -> list[str]:
        if not self.failures:
            return ["Nothing failed.", ""]
        lines = ["### Failures", "", "| suite | case | ways | without Leno | why |", "|---|---|---|---|---|"]
        said = {True: "fails too", False: "passes", None: "not comparable"}
        rows: dict[tuple, list[str]] = {}
        through = {(failure["suite"], failure["case"]) for failure in self.failures if WAYS[failure["way"]].through_leno}
        for failure in self.failures:
            # A failure without Leno has a row of its own only where the case passes through Leno.
            if WAYS[failure["way"]].through_leno or (failure["suite"], failure["case"]) not in through:
                why = failure["expected"] or ("**not expected**: " if failure["regression"] else "") + failure["detail"]
                row = failure["suite"], failure["case"], said[failure["fails_without_leno"]], why
                rows.setdefault(row, []).append(failure["way"])
        for (suite, case, without, why), ways in rows.items():
            lines.append(f"| {suite} | {cell(case)} | {', '.join(ways)} | {without} | {cell(why)} |")
        return lines + [""]

    def summary(self) -> str:
        regressions = [failure for failure in self.failures if failure["regression"]]
        lines = [f"{failure['suite']} {failure['way']}: {failure['case']}: {failure['detail']}"[:400] for failure in regressions]
        lines += [f"expected to fail, but did not: {entry.suite} {way}: {entry.case}" for entry, way in self.stale]
        passed = sum(case.outcome == PASSED for run in self.runs for case in run.cases)
        known = len(self.failures) - len(regressions)
        return "\n".join([*lines, f"conformance: {passed} passed, {len(regressions)} failed because of Leno, {known} failed as known or without Leno too"])


def cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").strip()[:500]
