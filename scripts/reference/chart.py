"""docs/reference/chart.md: the values of the chart; and their descriptions in the chart's JSON Schema."""

import json
from pathlib import Path
from typing import Any

from scripts.chart_readme import entries, rows
from scripts.reference.markdown import cell, code, table

CHART = Path(__file__).parents[2] / "helm" / "fedstrata"
TOP = """<!-- Written by `make reference` from helm/fedstrata/values.yaml. -->
# Values of the chart

[Kubernetes](../kubernetes.md) says how to install the chart. The chart's JSON Schema has the same descriptions.
"""


def page() -> str:
    """Return the page."""
    found = rows((CHART / "values.yaml").read_text(encoding="utf-8"))
    return TOP + table(
        ["value", "default", ""], [[code(name), code(default), cell(text)] for name, default, text in found]
    )


def schema() -> str:
    """Return values.schema.json with the comments of values.yaml as descriptions."""
    document = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    for entry in entries((CHART / "values.yaml").read_text(encoding="utf-8")):
        node: Any = document
        for name in entry.path:
            node = node.get("properties", {}).get(name) if isinstance(node, dict) else None
        if isinstance(node, dict) and entry.comment:
            node["description"] = entry.comment
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
