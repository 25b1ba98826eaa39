"""The way in for devices that are no pods."""

from typing import Any

import pytest
from helm_python import HelmRenderError

from tests.support.charts import CHART, Object, notes, one, render, values_of

OUTSIDE = values_of(CHART / "ci" / "outside.yaml")
GATEWAY = values_of(CHART / "ci" / "gateway.yaml")
FROM = [{"ipBlock": {"cidr": "10.1.0.0/16"}}]
TWO = "name: lab\npartition: {kind: iid, devices: 4, examples_per_device: 5}\ntopology: {lps: 2}\n"


def services(values: dict[str, Any]) -> dict[str, Object]:
    """The Services of the way in, by name."""
    found = [item for item in render(values) if item["kind"] == "Service"]
    return {item["metadata"]["name"]: item for item in found if item["metadata"]["name"].endswith("-outside")}


def advertised(values: dict[str, Any]) -> str:
    container = one(render(values), "StatefulSet", "demo-fedstrata-lps")["spec"]["template"]["spec"]["containers"][0]
    return next(word for word in container["args"] if word.startswith("--advertise=")).removeprefix("--advertise=")


def test_without_one_nobody_finds_a_way_in_and_an_lps_is_its_pods_name() -> None:
    assert services({}) == {}
    assert advertised({}) == "$(FEDSTRATA_POD_NAME).demo-fedstrata-lps.lab.svc:50051"


def test_each_lps_has_the_port_that_it_tells_devices() -> None:
    ports = {name: item["spec"]["ports"][0]["port"] for name, item in services(OUTSIDE).items()}
    assert ports == {
        "demo-fedstrata-gps-0-outside": 50051,
        "demo-fedstrata-lps-0-outside": 50061,
        "demo-fedstrata-lps-1-outside": 50062,
    }
    assert advertised(OUTSIDE) == "fl.example.org:50061+"  # which the LPS counts up by its number


def test_each_service_leads_to_one_pod_and_to_the_port_of_the_protocol_alone() -> None:
    for name, item in services(OUTSIDE).items():
        assert item["spec"]["selector"]["statefulset.kubernetes.io/pod-name"] == name.removesuffix("-outside")
        assert [port["targetPort"] for port in item["spec"]["ports"]] == ["grpc"]
        assert item["spec"]["type"] == "LoadBalancer"
        assert item["spec"]["loadBalancerSourceRanges"] == ["10.1.0.0/16"]


def test_at_nodes_the_ports_are_the_nodes_own() -> None:
    outside = {"type": "NodePort", "gps": "n:30051", "lps": "n:30061+", "from": FROM}
    found = services({"experiment": TWO, "outside": outside})
    assert {item["spec"]["ports"][0]["nodePort"] for item in found.values()} == {30051, 30061, 30062}


def test_through_a_gateway_each_pod_has_a_name() -> None:
    routes = {item["metadata"]["name"]: item["spec"] for item in render(GATEWAY) if item["kind"] == "GRPCRoute"}
    assert {name: spec["hostnames"] for name, spec in routes.items()} == {
        "demo-fedstrata-gps-0": ["gps.fl.example.org"],
        "demo-fedstrata-lps-0": ["demo-fedstrata-lps-0.fl.example.org"],
        "demo-fedstrata-lps-1": ["demo-fedstrata-lps-1.fl.example.org"],
    }
    found = services(GATEWAY)
    for name, spec in routes.items():
        assert spec["parentRefs"] == [{"name": "public", "namespace": "gateways", "sectionName": "grpc"}]
        assert spec["rules"][0]["backendRefs"] == [{"name": f"{name}-outside", "port": 80}]
        service = found[f"{name}-outside"]["spec"]
        assert service["type"] == "ClusterIP"
        assert service["ports"][0]["appProtocol"] == "kubernetes.io/h2c"
    annotated = found["demo-fedstrata-lps-1-outside"]["metadata"]["annotations"]
    assert annotated == {"example.org/name": "demo-fedstrata-lps-1.fl.example.org"}


@pytest.mark.parametrize("tier", ["gps", "lps"])
@pytest.mark.parametrize("values", [OUTSIDE, GATEWAY], ids=["addresses", "gateway"])
def test_only_those_who_are_named_may_dial_in(tier: str, values: dict[str, Any]) -> None:
    def peers(values: dict[str, Any]) -> list[Object]:
        rules = one(render(values), "NetworkPolicy", f"demo-fedstrata-{tier}")["spec"]["ingress"]
        return [peer for rule in rules for peer in rule["from"]]

    assert [peer for peer in peers(values) if peer not in peers({})] == values["outside"]["from"]


def test_devices_in_pods_may_take_the_way_in_too() -> None:
    def opened(values: dict[str, Any]) -> list[list[int]]:
        rules = one(render(values), "NetworkPolicy", "demo-fedstrata-device")["spec"]["egress"]
        return [[port["port"] for port in rule["ports"]] for rule in rules if "to" not in rule]

    assert opened(OUTSIDE) == [[50061, 50062]]
    assert opened(GATEWAY) == [[80]]
    assert opened({}) == []


def test_boards_that_are_no_nodes_take_no_pods_and_no_data_of_the_release() -> None:
    devices = one(render(OUTSIDE), "StatefulSet", "demo-fedstrata-device")["spec"]
    assert devices["replicas"] == 0
    role = one(render(OUTSIDE), "Role", "demo-fedstrata-gps")["rules"]
    assert not [rule for rule in role if "pods" in rule["resources"]]


def test_the_notes_say_what_a_board_runs() -> None:
    assert "python -m device --experiment FILE.yaml --gps fl.example.org:50051" in notes(OUTSIDE)
    assert "python -m device" not in notes()


@pytest.mark.parametrize(
    ("outside", "message"),
    [
        ({"type": "LoadBalancer", "gps": "a:1"}, "outside.type needs outside.gps and outside.lps"),
        ({"type": "LoadBalancer", "gps": "a:1", "lps": "a:2+", "from": []}, "outside.from says who may dial in"),
        ({"type": "LoadBalancer", "gps": "a:1", "lps": "a:2"}, "outside.lps a:2 is one address for 2 LPSs"),
        (
            {"type": "NodePort", "gps": "a:50051", "lps": "a:30061+"},
            "outside.type NodePort: ports are from 30000 to 32767",
        ),
        ({"type": "NodePort", "gps": "a:30051", "lps": "$(FEDSTRATA_POD_NAME):30061"}, "those of LPSs count up"),
        ({"type": "Gateway", "gps": "a:1", "lps": "$(FEDSTRATA_POD_NAME).a:1"}, "needs outside.gateway.name"),
        ({"type": "Gateway", "gps": "a:1", "lps": "a:1+", "gateway": {"name": "g"}}, "names rather than ports"),
    ],
)
def test_a_way_in_that_leads_nowhere_is_refused(outside: dict[str, Any], message: str) -> None:
    with pytest.raises(HelmRenderError) as refused:
        render({"experiment": TWO, "outside": {"from": FROM, **outside}, "tls": {"mode": "off"}})
    assert message in str(refused.value)


def test_the_number_of_addresses_has_to_be_known() -> None:
    text = "name: lab\npartition: {kind: iid, devices: 4, examples_per_device: 5}\n"
    outside = {"type": "LoadBalancer", "gps": "a:1", "lps": "a:2+", "from": FROM}
    with pytest.raises(HelmRenderError, match=r"set lps\.replicas to the most there may be"):
        render({"experiment": text, "outside": outside})
    assert len(services({"experiment": text, "outside": outside, "lps": {"replicas": 3}})) == 4
