#!/usr/bin/env python3
"""Writes packaging/grafana/*.json from the definitions below and docs/reference/metrics.md, which lists the metrics with their types and labels:
a counter becomes a rate, a histogram percentiles, and names decide the units. Unknown metrics and labels are errors.
--check: only says which files are not up to date, and checks the names in packaging/prometheus/rules.yaml."""

import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "packaging" / "grafana"
ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| (.*?) \|", re.MULTILINE)
METRICS = {
    name: (kind, set(re.findall(r"`(\w+)`", labels)))
    for name, kind, labels in ROW.findall((ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8"))
}
# Labels that Prometheus adds. It renames a metric's `job`, which it has itself.
TARGET_LABELS = {"instance", "exported_job"}
UNITS = {"seconds": "s", "milliseconds": "ms", "bytes": "bytes"}

# A request is counted where it was judged for the callee, or on its way if it failed there, as in rules.yaml.
DESTINATION = 'destination_workload_namespace=~"$namespace"'
CALLEE = 'destination_workload_namespace="$namespace", destination_workload="$name"'
JUDGED = 'reporter="destination", leno_verdict!=""'
FAILED = 'response_code=~"0|5..", leno_verdict!="deny"'
FUNCTION = 'function="$namespace/$name"'
NODE = 'instance=~"$instance"'


class Definition(Exception):
    """A definition names what does not exist."""


def selector(metric, labels):
    """`metric{labels}`, if both exist."""
    if metric not in METRICS:
        raise Definition(f"there is no metric {metric}")
    for label in re.findall(r"(\w+)\s*(?:=|!)", re.sub(r'"[^"]*"', '""', labels)):
        if label not in METRICS[metric][1] | TARGET_LABELS:
            raise Definition(f"{metric} has no label {label}")
    return f"{{{labels}}}" if labels else ""


def unit(metric):
    return UNITS.get(metric.removesuffix("_total").rsplit("_", 1)[-1], "short")


def query(metric, labels="", by=(), fold="sum", over="$__rate_interval", at=None):
    """The expression of a metric by labels: a rate of a counter, a percentile of a histogram."""
    kind = METRICS.get(metric, ("", ()))[0]
    where = selector(metric, labels)
    for label in by:
        selector(metric, f'{label}=""')
    if kind == "histogram":
        grouped = ", ".join((*by, "le"))
        return f"histogram_quantile({at}, sum by ({grouped}) (rate({metric}_bucket{where}[{over}])))"
    inner = f"rate({metric}{where}[{over}])" if kind == "counter" else f"{metric}{where}"
    return f"{fold} by ({', '.join(by)}) ({inner})" if by else f"{fold}({inner})"


def legend(by):
    return " ".join(f"{{{{{label}}}}}" for label in by)


def panel(title, metric, labels="", by=(), fold="sum", about="", kind="timeseries", unit_of=None, stack=False):
    """A graph of one metric; of a histogram, its median and 99th percentile."""
    histogram = METRICS.get(metric, ("", ()))[0] == "histogram"
    of = [(at, query(metric, labels, by, fold, at=at)) for at in ((0.5, 0.99) if histogram else (None,))]
    targets = [
        {"expr": expr, "legendFormat": " ".join(filter(None, [legend(by), f"p{round(at * 100)}" if at else ""])) or title, "exemplar": histogram}
        for at, expr in of
    ]
    rate = METRICS.get(metric, ("", ()))[0] == "counter"
    measured = unit_of or unit(metric)
    if rate:
        measured = {"short": "reqps" if "requests" in metric else "cps", "bytes": "Bps"}.get(measured, measured)
    return drawn(title, targets, measured, about, kind, stack)


def ratio(title, part, whole, about="", by=(), kind="timeseries"):
    """A graph of the quotient of two expressions."""
    return drawn(title, [{"expr": f"{part} / {whole}", "legendFormat": legend(by) or title}], "percentunit", about, kind)


def drawn(title, targets, measured, about="", kind="timeseries", stack=False):
    custom = {"fillOpacity": 10, "stacking": {"mode": "normal" if stack else "none"}} if kind == "timeseries" else {}
    drawn = {
        "type": kind,
        "title": title,
        "description": about,
        "targets": targets,
        "fieldConfig": {"defaults": {"unit": measured, "min": 0, "custom": custom}, "overrides": []},
    }
    if kind in ("stat", "bargauge"):
        drawn["options"] = {"reduceOptions": {"calcs": ["lastNotNull"]}}
    if kind == "table":
        for target in targets:
            target.update({"format": "table", "instant": True})
        drawn["transformations"] = [{"id": "merge", "options": {}}, {"id": "organize", "options": {"excludeByName": {"Time": True}}}]
    return drawn


def edges():
    """A row for each edge of the graph of calls: rate, failures and duration."""
    by = ("source_workload_namespace", "source_workload", "destination_workload_namespace", "destination_workload")
    columns = {
        "Requests a second": query("istio_requests_total", f"{JUDGED}, {DESTINATION}", by),
        "Failed a second": query("istio_requests_total", f"{JUDGED}, {FAILED}, {DESTINATION}", by),
        "Refused a second": query("istio_requests_total", f'leno_verdict="deny", {DESTINATION}', by),
        "p50 (ms)": query("istio_request_duration_milliseconds", f"{JUDGED}, {DESTINATION}", by, at=0.5),
        "p99 (ms)": query("istio_request_duration_milliseconds", f"{JUDGED}, {DESTINATION}", by, at=0.99),
    }
    table = drawn("Calls", [{"expr": expr} for expr in columns.values()], "short", "Rate, failures and durations of each edge.", "table")
    renamed = {f"Value #{ref(number)}": name for number, name in enumerate(columns)}
    table["transformations"][1]["options"]["renameByName"] = renamed
    return table


def ref(number):
    return chr(ord("A") + number)


def variable(name, label, metric, of, labels="", several=True):
    choice = {"includeAll": True, "multi": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"}} if several else {}
    expr = f"label_values({metric}{selector(metric, labels)}, {of})"
    return {"type": "query", "name": name, "label": label, "datasource": SOURCE, "query": expr, "definition": expr, "refresh": 2, "sort": 1, **choice}


SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def dashboard(uid, title, about, variables, rows):
    """Rows are (title, [panels]). Panels of a row share its width; a table has all of it."""
    panels, y = [], 0
    for heading, members in rows:
        panels.append({"type": "row", "title": heading, "collapsed": False, "panels": [], "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}})
        y += 1
        small = all(member["type"] == "stat" for member in members)
        height, columns = (4, len(members)) if small else (8, 1 if members[0]["type"] == "table" else min(3, len(members)))
        for number, member in enumerate(members):
            place = {"x": number % columns * (24 // columns), "y": y + number // columns * height, "w": 24 // columns, "h": height}
            targets = [{"refId": ref(index), "datasource": SOURCE, **target} for index, target in enumerate(member["targets"])]
            panels.append({**member, "targets": targets, "datasource": SOURCE, "gridPos": place})
        y += -(-len(members) // columns) * height
    for number, member in enumerate(panels, 1):
        member["id"] = number
    source = {"type": "datasource", "name": "datasource", "label": "Prometheus", "query": "prometheus"}
    return {
        "uid": uid,
        "title": title,
        "description": about,
        "tags": ["leno"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [source, *variables]},
        "links": [{"type": "dashboards", "title": "Leno", "tags": ["leno"], "asDropdown": True, "includeVars": True, "keepTime": True}],
        "panels": panels,
    }


def mesh():
    by = ("destination_workload_namespace", "destination_workload")
    judged = f"{JUDGED}, {DESTINATION}"
    requests = query("istio_requests_total", judged)
    failures = query("istio_requests_total", f"{JUDGED}, {FAILED}, {DESTINATION}")
    encrypted = query("istio_requests_total", f'{judged}, connection_security_policy="mutual_tls"')
    between = query("istio_requests_total", f'{judged}, source_workload_namespace!="unknown"')
    namespaces = variable("namespace", "Namespace", "istio_requests_total", "destination_workload_namespace")
    return dashboard("leno-mesh", "Leno: mesh", "Calls between functions, and what policies refuse.", [namespaces], [
        ("Now", [
            panel("Requests", "istio_requests_total", judged, kind="stat"),
            ratio("Failed", failures, requests, kind="stat", about="Status of 500 or above, or no response; refusals apart."),
            panel("Refused", "istio_requests_total", f'leno_verdict="deny", {DESTINATION}', kind="stat"),
            panel("Duration", "istio_request_duration_milliseconds", judged, kind="stat"),
            ratio("Mutual TLS", encrypted, between, kind="stat", about="Calls between functions that came by mutual TLS."),
        ]),
        ("Calls", [edges()]),
        ("Callees", [
            panel("Requests", "istio_requests_total", judged, by),
            panel("Failed", "istio_requests_total", f"{JUDGED}, {FAILED}, {DESTINATION}", by),
            panel("Duration", "istio_request_duration_milliseconds", judged, by),
            panel("Response flags", "istio_requests_total", f'response_flags!="-", {DESTINATION}', ("response_flags",), stack=True,
                  about="Why exchanges failed: docs/reference/flags.md."),
            panel("Retries", "leno_retries_total", "", ("destination",)),
            panel("Ejected endpoints", "leno_ejections_total", "", ("destination",)),
        ]),
        ("Refusals and encryption", [
            panel("Refused by rule", "leno_decisions_total", 'verdict="deny"', ("function", "policy", "rule")),
            panel("Destinations that functions may not reach", "leno_destinations_refused_total", "", ("source", "asked")),
            panel("Security of calls", "istio_requests_total", judged, ("connection_security_policy",), stack=True),
            panel("Requests without a verdict", "leno_sandbox_faults_total", "", ("function", "fault")),
            panel("Signatures of tokens", "leno_signature_verifications_total", "", ("algorithm", "result")),
            panel("Connections that were not proven", "leno_unproven_connections_total", "", ("function", "end")),
        ]),
        ("Connections without requests", [
            panel("TCP opened", "istio_tcp_connections_opened_total", DESTINATION, by),
            panel("TCP refused", "leno_tcp_connections_refused_total", DESTINATION, by),
            panel("TCP received", "istio_tcp_received_bytes_total", DESTINATION, by),
        ]),
    ])


def function():
    variables = [
        variable("namespace", "Namespace", "istio_requests_total", "destination_workload_namespace", several=False),
        variable("name", "Function", "istio_requests_total", "destination_workload", 'destination_workload_namespace="$namespace"', several=False),
    ]
    judged, revision = f"{JUDGED}, {CALLEE}", ("revision", "revision_name")
    share = query("leno_revision_failed_requests_total", FUNCTION, revision)
    return dashboard("leno-function", "Leno: function", "One function: its requests, instances, limits, breakers and rollouts.", variables, [
        ("Requests", [
            panel("By status", "istio_requests_total", judged, ("response_code",), stack=True),
            panel("Duration", "istio_request_duration_milliseconds", judged),
            panel("By caller", "istio_requests_total", judged, ("source_workload_namespace", "source_workload")),
            panel("Response flags", "istio_requests_total", f'response_flags!="-", {CALLEE}', ("response_flags",), stack=True),
            panel("Request bodies", "istio_request_bytes", judged),
            panel("Response bodies", "istio_response_bytes", judged),
        ]),
        ("Instances", [
            drawn("Instances", [
                {"expr": query(f"leno_autoscaler_{state}_instances", FUNCTION), "legendFormat": state} for state in ("desired", "ready", "starting")
            ], "short"),
            panel("Waiting requests", "leno_autoscaler_waiting_requests", FUNCTION, revision),
            drawn("Load", [
                {"expr": query(f"leno_autoscaler_{window}_load", FUNCTION), "legendFormat": window} for window in ("stable", "panic")
            ], "short", "Requests at a time or a second, as the function scales by."),
            panel("Scaling decisions", "leno_autoscaler_decisions_total", FUNCTION, ("direction",)),
            panel("Replaced, because unhealthy", "leno_instances_unhealthy_total", FUNCTION, revision),
            panel("Failed components", "leno_component_failures_total", FUNCTION, ("failure",)),
        ]),
        ("Policies and limits", [
            panel("Decisions", "leno_decisions_total", FUNCTION, ("direction", "policy", "rule", "verdict")),
            panel("Refused by rate limits", "leno_decisions_total", f'{FUNCTION}, policy="rateLimits", verdict="deny"', ("rule",)),
            panel("Counters of rate limits", "leno_rate_limit_counters", FUNCTION, ("limit",)),
            panel("Without a counter for each key", "leno_rate_limit_overflow_total", FUNCTION, ("limit",)),
            panel("Extensions", "leno_extension_runs_total", FUNCTION, ("extension", "result", "failure")),
            panel("Closed exchanges", "leno_exchanges_closed_total", FUNCTION, ("direction", "policy")),
        ]),
        ("Circuit breakers", [
            panel("Refused by breakers", "istio_requests_total", f'response_flags="UO", {CALLEE}', ("reporter",)),
            panel("Ejected endpoints", "leno_ejections_total", 'destination="$namespace/$name"', ("destination",)),
            panel("Retries", "leno_retries_total", 'destination="$namespace/$name"', ("destination",)),
        ]),
        ("Rollouts", [
            panel("Requests by revision", "leno_revision_requests_total", FUNCTION, revision, stack=True),
            ratio("Failed by revision", share, query("leno_revision_requests_total", FUNCTION, revision), by=revision),
            panel("Slow requests by revision", "leno_revision_slow_requests_total", FUNCTION, revision),
        ]),
    ])


def nodes():
    usage, bound = (query(f"leno_namespace_{of}", NODE, ("instance", "namespace", "resource")) for of in ("used", "bound"))
    instances = variable("instance", "Target", "leno_build_info", "instance")
    return dashboard("leno-nodes", "Leno: nodes and control plane", "Nodes, certificates, configuration, jobs and bounds of namespaces.", [instances], [
        ("Nodes", [
            panel("Releases", "leno_build_info", NODE, ("instance", "version"), kind="table"),
        ]),
        ("Work", [
            panel("Open connections", "leno_connections", NODE, ("instance", "listener")),
            panel("Connections refused", "leno_connections_refused_total", NODE, ("instance", "listener", "bound")),
            panel("Idle connections closed", "leno_connections_closed_total", NODE, ("instance", "listener", "bound")),
            panel("Run of a sandbox", "leno_sandbox_run_seconds", NODE, ("engine",)),
            panel("Run of an extension", "leno_extension_run_seconds", NODE),
            panel("Waiting for an extension", "leno_extension_waiting_requests", NODE, ("instance", "namespace")),
            panel("Unfinished heads", "leno_unfinished_head_bytes", NODE, ("instance",)),
            panel("Counters and tokens in memory", "leno_ledger_entries", NODE, ("instance", "kind")),
            panel("Other nodes that could not be reached", "leno_node_connect_failures_total", NODE, ("instance", "node")),
        ]),
        ("Certificates and keys", [
            panel("Left of certificates", "istio_agent_cert_expiry_seconds", NODE, ("resource_name",), fold="min", kind="bargauge"),
            panel("Left of the mesh's root", "citadel_server_root_cert_expiry_seconds", fold="min", kind="stat"),
            panel("Left of the API's certificate", "leno_control_api_cert_expiry_seconds", fold="min", kind="stat"),
            panel("Not renewed in time", "leno_control_certificates_overdue", fold="max", kind="stat"),
            panel("Key sets", "leno_key_sets", NODE, ("namespace", "state")),
            panel("Nodes that a rotation waits for", "leno_control_rotation_waiting", fold="max"),
        ]),
        ("Control plane", [
            panel("Connected nodes", "leno_node_connected", "", ("node",), fold="max"),
            panel("Configuration unacknowledged", "leno_node_unacknowledged_seconds", "", ("node",), fold="max"),
            panel("Configuration rejected", "leno_node_rejected_resources", "", ("node",), fold="max"),
            panel("Messages with configuration", "leno_control_messages_total", "", ("node",)),
            panel("Bytes of configuration", "leno_control_bytes_total", "", ("node",)),
            panel("Refused questions and reports", "leno_control_refused_total", "", ("node",)),
        ]),
        ("Jobs", [
            drawn("Jobs", [
                {"expr": query(f"leno_job_{state}"), "legendFormat": state} for state in ("pending", "running", "complete", "failed")
            ], "short"),
            panel("Failed jobs", "leno_job_failed", "", ("exported_job",)),
            panel("Processes", "leno_job_processes_active", "", ("exported_job",)),
        ]),
        ("Namespaces", [
            ratio("Used of the bound", usage, f"({bound} > 0)", by=("instance", "namespace", "resource")),
            panel("Refused by bounds", "leno_namespace_refused_total", NODE, ("namespace", "resource")),
            panel("Lines left out of logs", "leno_log_lines_dropped_total", NODE, ("namespace", "source")),
        ]),
        ("Quota store and exports", [
            panel("Quota store answers", "leno_quota_store_up", NODE, ("instance",), fold="min"),
            ratio("Time of an answer", query("leno_quota_store_answer_seconds_total", NODE), query("leno_quota_store_answers_total", NODE)),
            panel("Refused without the quota store", "leno_quota_store_refused_total", NODE, ("instance",)),
            panel("Lost spans", "leno_spans_dropped_total", NODE, ("instance",)),
            panel("Lost lines of the access log", "leno_access_log_dropped_total", NODE, ("instance",)),
        ]),
    ])


def check_rules():
    """Metrics and labels of the rules exist, and so do the rules that others use."""
    text = (ROOT / "packaging" / "prometheus" / "rules.yaml").read_text(encoding="utf-8")
    recorded = set(re.findall(r"record: (\S+)", text))
    labels = TARGET_LABELS | {"le"} | set().union(*(of for _, of in METRICS.values()))
    for name, where in re.findall(r"\b((?:leno|istio|citadel)_\w+)\b(?!:)(?:\{([^}]*)\})?", re.sub(r"\w+:leno_\w+:\w+", "", text)):
        selector(name.removesuffix("_bucket") if name not in METRICS else name, where)
    for name in re.findall(r"\w+:leno_\w+:\w+", text):
        if name not in recorded:
            raise Definition(f"no rule records {name}")
    for label in re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", text))):
        if label not in labels:
            raise Definition(f"rules.yaml: no metric has the label {label}")


def main():
    check_rules()
    stale = []
    for name, built in (("mesh", mesh()), ("function", function()), ("nodes", nodes())):
        file = FOLDER / f"{name}.json"
        text = json.dumps(built, indent=1) + "\n"
        if "--check" not in sys.argv:
            file.write_text(text, encoding="utf-8")
        elif not file.exists() or file.read_text(encoding="utf-8") != text:
            stale.append(str(file.relative_to(ROOT)))
    if stale:
        sys.exit(f"{', '.join(stale)}: not up to date; run scripts/dashboards.py")


try:
    main()
except Definition as error:
    sys.exit(f"dashboards.py: {error}")
