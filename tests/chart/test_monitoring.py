"""The rules and the dashboard ask for metrics that the services have."""

import json
import re

import pytest
from prometheus_client import generate_latest

from fedstrata.process.metrics import ProcessMetrics
from tests.support.charts import CHART, Object, one, render, values_of, workload

DESIGNED = {"link", "direction", "kind", "end", "tier", "outcome", "state", "lps_id", "phase", "who", "pod"}
TARGET = {"namespace", "app_kubernetes_io_instance"}  # the PodMonitor's target labels


@pytest.fixture(scope="module")
def objects() -> list[Object]:
    return render(values_of(CHART / "ci" / "monitored.yaml"))


def queries(objects: list[Object]) -> list[str]:
    rules = one(objects, "PrometheusRule", "demo-fedstrata")
    dashboard = json.loads(one(objects, "ConfigMap", "demo-fedstrata-dashboard")["data"]["demo-fedstrata.json"])
    found = [rule["expr"] for group in rules["spec"]["groups"] for rule in group["rules"]]
    return found + [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]


def test_every_query_asks_for_metrics_and_labels_that_exist(objects: list[Object]) -> None:
    metrics = ProcessMetrics("gps")
    metrics.evaluated("lps-0", {"accuracy": "accuracy_ratio"}, {"loss": 1, "accuracy": 1})
    metrics.certificate(lambda: 0.0)
    metrics.state(CHART)
    exposed = generate_latest(metrics.registry).decode()
    families = {line.split()[2] for line in exposed.splitlines() if line.startswith("# TYPE")}
    known = families | {f"{name}_{end}" for name in families for end in ("sum", "count", "bucket", "total")}
    found = queries(objects)
    assert len(found) >= 10
    for query in found:
        assert set(re.findall(r"\bfedstrata_\w+", query)) <= known, query
        assert set(re.findall(r"(\w+)=", query)) <= DESIGNED | TARGET, query


def test_each_release_has_a_dashboard_of_its_own() -> None:
    values = values_of(CHART / "ci" / "monitored.yaml")
    seen = set()
    for release, namespace in (("demo", "lab"), ("demo", "other"), ("second", "lab")):
        maps = render(values, release=release, namespace=namespace)
        found = one(maps, "ConfigMap", f"{release}-fedstrata-dashboard")["data"][f"{release}-fedstrata.json"]
        dashboard = json.loads(found)
        assert len(dashboard["uid"]) <= 40
        seen.add((dashboard["uid"], dashboard["title"]))
    assert len({uid for uid, _ in seen}) == len({title for _, title in seen}) == 3


def test_every_pod_of_the_release_is_scraped_on_its_named_port(objects: list[Object]) -> None:
    monitor = one(objects, "PodMonitor", "demo-fedstrata")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["spec"]["podMetricsEndpoints"] == [{"port": "http", "path": "/metrics", "interval": "5s"}]
    selector = monitor["spec"]["selector"]["matchLabels"]
    for tier in ("gps", "lps", "device"):
        template = workload(objects, tier)["template"]
        assert selector.items() <= template["metadata"]["labels"].items()
        assert "http" in {port["name"] for port in template["spec"]["containers"][0]["ports"]}


def test_monitoring_is_optional() -> None:
    assert not [item for item in render() if item["kind"] in {"PodMonitor", "PrometheusRule"}]
    assert not [item for item in render() if item["metadata"]["name"].endswith("-dashboard")]
