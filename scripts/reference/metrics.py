"""docs/reference/metrics.md: metrics and labels, the chart's alerts, and the panels of its dashboard."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from prometheus_client.metrics_core import Metric

from fedstrata.process.metrics import OUTCOMES, PHASES, LinkKey, ProcessMetrics
from scripts.reference.chart import CHART
from scripts.reference.markdown import cell, code, table

TOP = """<!-- Written by `make reference` from fedstrata/process/metrics.py and helm/fedstrata/. -->
# Metrics, alerts and dashboard

Every process serves `/metrics` in the text format of Prometheus at its `--http` address. [Metrics](../metrics.md)
has queries, and says what a byte is. Metrics "at the GPS" belong to the global parameter server. Each process also
has `process_cpu_seconds_total`, `process_resident_memory_bytes` and the other metrics of Prometheus' client
library.
"""
LABELS: Mapping[str, str] = {
    "link": "`device-gps`, `device-lps`, `lps-gps`",
    "direction": "`up` (towards the GPS), `down`",
    "kind": "What the call is about: `model`, `update`, `shared`, `control`, or the name of a question, such as "
    "`profile` and `relevance` for one_shot. `answer` is a message without a known question.",
    "end": "`child` (the caller) or `parent` (the called): each end counts each byte once.",
    "tier": "`gps`, `lps`",
    "outcome": ", ".join(f"`{outcome}`" for outcome in OUTCOMES),
    "reason": "`certificate` (it names nobody), `tls` (older than 1.3), `run` (a certificate of another run), "
    "`role` (the role may not make this call), `identity` (a call in another's name), `cluster` (the caller is not in "
    "this cluster), `revoked` (the certificate is revoked), `outdated` (the certificate expired, or its authority was "
    "dropped), `share` (too many calls), `stalled` (an upload stopped; also without TLS).",
    "state": "`absent`, `enrolled`, `answered` (a question before training), `assigned` (to a cluster), `refused`",
    "lps_id": "`lps-0`, `lps-1`, …: the cluster; if clusters span LPSs, the LPS.",
    "run_id": "Run id, as in the record.",
    "experiment": "Name of the experiment.",
    "method": "`method.name` of the experiment.",
    "phase": ", ".join(f"`{phase}`" for phase in PHASES),
    "who": "Id of a device or LPS, for as long as the run waits for it.",
}
RELEASE = 'namespace="$namespace",app_kubernetes_io_instance="$release"'
# An alert in the template: its name, its query for Go's printf, how long the query must hold, and its summary.
RULE = re.compile(
    r'- alert: (?P<name>\w+)\n\s+expr: \{\{ printf "(?P<query>.+)" \$of(?P<numbers>.*?) \| quote \}\}\n'
    r"(?:\s+for: (?P<holds>\w+)\n)?\s+labels: \{severity: (?P<severity>\w+)\}\n.*\n\s+summary: (?P<summary>.+)\n"
)


def page() -> str:
    """Return the page."""
    return (
        TOP
        + "\n## Metrics\n"
        + table(["metric", "type", "labels", "meaning"], [_row(metric) for metric in exposed()])
        + "\nNo metric has a label for every device. Only devices that the run waits for have a label, ten at a time.\n"
        + "\n## Labels\n"
        + table(["label", "values"], [[code(name), text] for name, text in LABELS.items()])
        + "\n## Alerts\n\n`prometheusRule.enabled` of the chart switches alerts on.\n"
        + "The [runbook](../runbook.md) says what to do.\n"
        + "Each expression also has the namespace and the release. RELEASE, WHO, TIER and POD stand for names.\n"
        + table(["alert", "severity", "summary", "expression", "for"], alerts())
        + "\n## The dashboard\n\n`dashboard.enabled` of the chart brings the dashboard to Grafana.\n"
        + "Each query also has the namespace and the release.\n"
        + table(["panel", "query", "meaning"], panels())
    )


def exposed() -> list[Metric]:
    """Return every metric that a process can have; a metric with labels is there once it has a value."""
    metrics = ProcessMetrics("gps")
    metrics.links.counter(LinkKey(link="lps-gps", direction="up", kind="shared", end="parent"))(1)
    metrics.round_opened(1)
    metrics.round_closed(1)
    metrics.taken([1])
    metrics.update("late")
    metrics.refused("role")
    metrics.devices({"absent": 1})
    metrics.evaluated("lps-0", {"accuracy": "accuracy_ratio"}, {"loss": 1, "accuracy": 1})
    metrics.run("digits-1", experiment="digits", method="one_shot", global_rounds=8)
    metrics.phase("training")
    metrics.waits({"device-000": 7.0}, 1)
    metrics.certificate(lambda: 0.0)
    metrics.state(Path("/"))
    return [metric for metric in metrics.registry.collect() if metric.name.startswith("fedstrata_")]


def _row(metric: Metric) -> list[str]:
    name = metric.name + ("_total" if metric.type == "counter" else "")
    labels = [label for label in metric.samples[0].labels if label != "le"]
    return [code(name), metric.type, ", ".join(code(label) for label in labels), cell(metric.documentation)]


def alerts() -> list[list[str]]:
    """Return the rows of the alerts. A number in a query is a value of the chart."""
    text = (CHART / "templates" / "monitoring.yaml").read_text(encoding="utf-8")
    found = []
    for rule in RULE.finditer(text):
        query = rule["query"].replace('\\"', '"').replace("{%s,", "{").replace("{%s}", "")
        for value in re.findall(r"\$rule\.(\w+)", rule["numbers"]):
            query = query.replace("%d", f"prometheusRule.{value}", 1)
        found.append(
            [code(rule["name"]), rule["severity"], cell(_summary(rule["summary"])), code(query), rule["holds"] or ""]
        )
    return found


def _summary(text: str) -> str:
    text = text.replace("{{ .Release.Name }}", "RELEASE")
    text = re.sub(r"\{\{ int \$rule\.(\w+) \}\}", r"`prometheusRule.\1`", text)
    return re.sub(r'\{\{ "\{\{ \$labels\.(\w+) \}\}" \}\}', lambda label: label[1].upper(), text)


def panels() -> list[list[str]]:
    """Return the rows of the dashboard's panels: title, query, description."""
    dashboard = json.loads((CHART / "files" / "dashboard.json").read_text(encoding="utf-8"))
    return [
        [cell(panel["title"]), code(short(target["expr"])), cell(panel["description"])]
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    ]


def short(query: str) -> str:
    """Return a panel's query without the namespace and the release."""
    return query.replace(RELEASE + ",", "").replace("{" + RELEASE + "}", "")
