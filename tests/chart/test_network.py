"""Who may reach whom, worked out from the rendered policies as Kubernetes would."""

from itertools import product
from typing import Any

import pytest

from tests.support.charts import CHART, Object, of_kind, pods, render, values_of

TIERS = ("gps", "lps", "device", "run", "test")
GRPC, HTTP = 50051, 8080


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())


def allows(policies: list[Object], direction: str, labels: dict[str, str], peer: dict[str, str], port: int) -> bool:
    """Whether the policies of one pod let a connection through on its side. Peers are pods of the same namespace."""
    kind, side = {"egress": ("Egress", "to"), "ingress": ("Ingress", "from")}[direction]
    own = [
        p["spec"] for p in policies if selects(p["spec"]["podSelector"], labels) and kind in p["spec"]["policyTypes"]
    ]
    if not own:
        return True
    for rule in (rule for spec in own for rule in spec.get(direction, [])):
        ports = "ports" not in rule or port in [item["port"] for item in rule["ports"]]
        peers = side not in rule or any(
            "podSelector" in item and "namespaceSelector" not in item and selects(item["podSelector"], peer)
            for item in rule[side]
        )
        if ports and peers:
            return True
    return False


def reachable(objects: list[Object], port: int) -> set[tuple[str, str]]:
    policies = of_kind(objects, "NetworkPolicy")
    labels = {component: labels for component, _, labels in pods(objects)}
    return {
        (a, b)
        for a, b in product(TIERS, TIERS)
        if a != b
        and allows(policies, "egress", labels[a], labels[b], port)
        and allows(policies, "ingress", labels[b], labels[a], port)
    }


def test_devices_reach_gps_and_lps_and_an_lps_only_the_gps() -> None:
    asking = {(who, "gps") for who in ("lps", "device", "run", "test")}
    assert reachable(render(), GRPC) == {("device", "lps"), *asking}


def test_nobody_reaches_anyone_on_another_port() -> None:
    assert reachable(render(), HTTP) == set()
    assert reachable(render(), 22) == set()


def test_pods_of_another_release_reach_nothing() -> None:
    ours = of_kind(render(release="one"), "NetworkPolicy")
    stranger = {component: labels for component, _, labels in pods(render(release="two"))}["device"]
    for _, _, labels in pods(render(release="one")):
        assert not allows(ours, "ingress", labels, stranger, GRPC)


def test_only_the_gps_reaches_the_kubernetes_api() -> None:
    objects = render()
    policies = of_kind(objects, "NetworkPolicy")
    reach = {tier for tier, _, labels in pods(objects) if allows(policies, "egress", labels, {}, 6443)}
    assert reach == {"gps"}


def test_everyone_may_ask_the_name_service() -> None:
    objects = render()
    policies = of_kind(objects, "NetworkPolicy")
    assert all(allows(policies, "egress", labels, {}, 53) for _, _, labels in pods(objects))


@pytest.mark.parametrize(("variant", "expected"), [("monitored", True), ("plain", False)])
def test_devices_reach_the_web_only_to_download_what_the_experiment_names(variant: str, *, expected: bool) -> None:
    objects = render(values_of(CHART / "ci" / f"{variant}.yaml"))
    policies = of_kind(objects, "NetworkPolicy")
    labels = {component: labels for component, _, labels in pods(objects)}
    assert allows(policies, "egress", labels["device"], {}, 443) is expected
    assert not allows(policies, "egress", labels["lps"], {}, 443)


def test_metrics_are_read_from_the_namespaces_that_the_values_select() -> None:
    def sources(values: dict[str, Any]) -> list[Any]:
        rules = [item["spec"].get("ingress", []) for item in of_kind(render(values), "NetworkPolicy")]
        return [rule["from"] for policy in rules for rule in policy if rule["ports"][0]["port"] == HTTP]

    peer = {"namespaceSelector": {"matchLabels": {"name": "observability"}}}
    assert sources({"networkPolicy": {"metricsFrom": [peer]}}) == [[peer]]
    assert sources({"networkPolicy": {"metricsFrom": []}}) == []


def test_spans_leave_all_tiers_by_the_collectors_port_alone_and_only_if_it_is_named() -> None:
    def leaving(values: dict[str, Any]) -> dict[str, tuple[list[str], bool, bool]]:
        objects = render(values)
        policies = of_kind(objects, "NetworkPolicy")
        return {
            tier: (
                [each["value"] for each in pod["containers"][0]["env"] if each["name"].startswith("OTEL_")],
                allows(policies, "egress", labels, {}, 4318),
                allows(policies, "egress", labels, {}, 4317),
            )
            for tier, pod, labels in pods(objects)
            if tier in {"gps", "lps", "device"}
        }

    endpoint = "http://jaeger.monitoring:4318/base"
    assert set(leaving({"traces": {"endpoint": endpoint}})) == {"gps", "lps", "device"}
    assert all(found == ([endpoint], True, False) for found in leaving({"traces": {"endpoint": endpoint}}).values())
    assert all(found == ([], False, False) for found in leaving({}).values())
    other = {"endpoint": endpoint, "to": [{"podSelector": {"matchLabels": {"app": "jaeger"}}}]}
    assert not any(may_leave for _, may_leave, _ in leaving({"traces": other}).values())


def test_policies_can_be_left_out() -> None:
    assert not of_kind(render({"networkPolicy": {"enabled": False}}), "NetworkPolicy")
