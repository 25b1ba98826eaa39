"""The way in for devices that are no pods."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from helm_python import HelmRenderError, HelmValuesError

from tests.support.charts import (
    CHART,
    Object,
    environment,
    notes,
    of_kind,
    one,
    pod_of,
    pods,
    render,
    values_of,
    workload,
)

OUTSIDE = values_of(CHART / "ci" / "outside.yaml")
GATEWAY = values_of(CHART / "ci" / "gateway.yaml")
PASSTHROUGH = values_of(CHART / "ci" / "passthrough.yaml")
PROXY = {**PASSTHROUGH, "outside": {**PASSTHROUGH["outside"], "type": "ClusterIP"}}
# What the Gateway API's definitions say of the fields that the chart uses, in all versions of both kinds.
ROUTES = json.loads((Path(__file__).parent / "schemas" / "gateway-api.json").read_text())
FROM = [{"ipBlock": {"cidr": "10.1.0.0/16"}}]
TWO = "name: lab\npartition: {kind: iid, devices: 4, examples_per_device: 5}\ntopology: {lps: 2}\n"


def services(values: dict[str, Any]) -> dict[str, Object]:
    """The Services of the way in, by name."""
    found = of_kind(render(values), "Service")
    return {item["metadata"]["name"]: item for item in found if item["metadata"]["name"].endswith("-outside")}


def advertised(values: dict[str, Any]) -> str:
    container = pod_of(render(values), "lps")["containers"][0]
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
    routes = {item["metadata"]["name"]: item["spec"] for item in of_kind(render(GATEWAY), "GRPCRoute")}
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


def routes(values: dict[str, Any], *apis: str) -> dict[str, Object]:
    """The routes at the Gateway, by name."""
    found = [item for item in render(values, apis=apis) if item["apiVersion"].startswith("gateway.networking.k8s.io/")]
    return {item["metadata"]["name"]: item for item in found}


def test_through_a_gateway_that_ends_no_tls_all_servers_have_one_address_and_a_name_each() -> None:
    found = routes(PASSTHROUGH)
    assert {name: (item["kind"], item["spec"]["hostnames"]) for name, item in found.items()} == {
        "demo-fedstrata-gps-0": ("TLSRoute", ["gps.demo.fl.example.org"]),
        "demo-fedstrata-lps-0": ("TLSRoute", ["lps-0.demo.fl.example.org"]),
        "demo-fedstrata-lps-1": ("TLSRoute", ["lps-1.demo.fl.example.org"]),
    }
    for name, item in found.items():
        assert item["spec"]["parentRefs"] == [{"name": "public", "namespace": "gateways", "sectionName": "passthrough"}]
        assert item["spec"]["rules"] == [{"backendRefs": [{"name": f"{name}-outside", "port": 443}]}]
    assert advertised(PASSTHROUGH) == "fl.example.org:443"
    for service in services(PASSTHROUGH).values():
        assert service["spec"]["ports"] == [{"name": "grpc", "port": 443, "targetPort": "grpc", "protocol": "TCP"}]
        assert service["spec"]["type"] == "ClusterIP"


@pytest.mark.parametrize("values", [GATEWAY, PASSTHROUGH], ids=["grpc", "tls"])
def test_routes_are_as_the_gateway_api_defines_them(values: dict[str, Any]) -> None:
    found = routes(values)
    assert len(found) == 3
    for item in found.values():
        jsonschema.Draft202012Validator(ROUTES).validate(item["spec"])


@pytest.mark.parametrize(
    ("served", "used"),
    [([], "v1"), (["v1alpha2"], "v1alpha2"), (["v1alpha2", "v1alpha3"], "v1alpha3"), (["v1alpha2", "v1"], "v1")],
)
def test_tls_routes_are_of_the_newest_version_that_kubernetes_serves(served: list[str], used: str) -> None:
    apis = [f"gateway.networking.k8s.io/{version}/TLSRoute" for version in served]
    found = routes(PASSTHROUGH, *apis)
    assert {item["apiVersion"] for item in found.values()} == {f"gateway.networking.k8s.io/{used}"}


def test_a_server_domain_of_null_is_no_domain() -> None:
    null = {**OUTSIDE, "outside": {**OUTSIDE["outside"], "serverDomain": None}}
    assert render(null) == render(OUTSIDE)


def test_a_proxy_of_ones_own_gets_the_same_services_and_no_routes() -> None:
    assert services(PROXY) == services(PASSTHROUGH)
    assert routes(PROXY) == {}


def test_pods_and_boards_call_servers_by_the_names_in_their_certificates() -> None:
    values = {**PROXY, "experiment": TWO, "device": {"external": 2}}
    domains = {tier: environment(pod).get("FEDSTRATA_SERVER_DOMAIN") for tier, pod, _ in pods(render(values))}
    assert domains == {**dict.fromkeys(("gps", "lps", "device"), "demo.fl.example.org"), "run": None, "test": None}
    board = "--gps fl.example.org:443 --device-name NAME --server-domain demo.fl.example.org --tls FOLDER"
    assert board in notes(values)


@pytest.mark.parametrize("tier", ["gps", "lps"])
@pytest.mark.parametrize(
    "values", [OUTSIDE, GATEWAY, PASSTHROUGH, PROXY], ids=["addresses", "gateway", "passthrough", "proxy"]
)
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
    assert opened(PASSTHROUGH) == [[443]]
    assert opened({}) == []


def test_boards_that_are_no_nodes_take_no_pods_and_no_data_of_the_release() -> None:
    devices = workload(render(OUTSIDE), "device")
    assert devices["replicas"] == 0
    role = one(render(OUTSIDE), "Role", "demo-fedstrata-gps")["rules"]
    assert not [rule for rule in role if "pods" in rule["resources"]]


@pytest.mark.parametrize(
    ("enabled", "kind", "says"), [(False, "NodePort", 1), (False, "LoadBalancer", 0), (True, "NodePort", 0)]
)
def test_the_notes_say_if_nothing_limits_who_may_call(enabled: bool, kind: str, says: int) -> None:
    outside = {"type": kind, "gps": "n:30051", "lps": "n:30061+", "from": FROM}
    text = notes({"experiment": TWO, "outside": outside, "networkPolicy": {"enabled": enabled}})
    assert text.count("outside.from has no effect") == says


def test_the_notes_say_what_a_board_runs() -> None:
    assert "python -m device --experiment FILE.yaml --gps fl.example.org:50051" in notes(OUTSIDE)
    assert "python -m device" not in notes()


@pytest.mark.parametrize(
    ("outside", "message"),
    [
        ({"type": "LoadBalancer", "gps": "a:1"}, "outside.type needs outside.gps and outside.lps"),
        ({"type": "LoadBalancer", "gps": "a:1", "lps": "a:2+", "from": []}, "outside.from is empty: give the peers"),
        ({"type": "LoadBalancer", "gps": "a:1", "lps": "a:2"}, "outside.lps a:2 is one address for 2 LPSs"),
        (
            {"type": "NodePort", "gps": "a:50051", "lps": "a:30061+"},
            "outside.type NodePort: give ports from 30000 to 32767",
        ),
        ({"type": "NodePort", "gps": "a:30051", "lps": "a:40061+"}, "outside.type NodePort: give ports from 30000"),
        ({"type": "NodePort", "gps": "a:30051", "lps": "a:32767+"}, "outside.type NodePort: give ports from 30000"),
        ({"type": "NodePort", "gps": "a:30062", "lps": "a:30061+"}, "each to one server"),
        (
            {"type": "NodePort", "gps": "a:30051", "lps": "$(FEDSTRATA_POD_NAME):30061"},
            "let the ports of LPSs count up",
        ),
        ({"type": "Gateway", "gps": "a:1", "lps": "$(FEDSTRATA_POD_NAME).a:1"}, "needs outside.gateway.name"),
        ({"type": "Gateway", "gps": "a:1", "lps": "a:1+", "gateway": {"name": "g"}}, "names rather than ports"),
    ],
)
def test_a_way_in_that_leads_nowhere_is_refused(outside: dict[str, Any], message: str) -> None:
    with pytest.raises(HelmRenderError) as refused:
        render({"experiment": TWO, "outside": {"from": FROM, **outside}, "tls": {"mode": "off"}})
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("mode", "outside", "message"),
    [
        (
            "off",
            {"type": "Gateway"},
            "outside.serverDomain is a.org, but with tls.mode off callers send no server name",
        ),
        ("secret", {"type": "NodePort"}, "but outside.type NodePort tells servers apart by addresses"),
        ("secret", {"type": "Gateway", "lps": "a:2"}, "outside.lps is a:2, but with outside.serverDomain all servers"),
        (
            "secret",
            {"type": "Gateway", "serverDomain": ""},
            "Gateway tells servers apart by their names in TLS: set out",
        ),
        ("secret", {"type": "ClusterIP", "serverDomain": ""}, "set outside.serverDomain, such as demo.fl.example.org"),
        ("off", {"type": "ClusterIP", "serverDomain": ""}, "fl.example.org, and tls.mode to another than off"),
        ("secret", {"type": "Gateway", "gateway": {}}, "needs outside.gateway.name"),
        ("secret", {"type": "Gateway", "gps": ""}, "outside.type needs outside.gps: host:port"),
    ],
)
def test_server_names_that_nobody_sends_or_reads_are_refused(mode: str, outside: dict[str, Any], message: str) -> None:
    whole = {"gps": "a:443", "serverDomain": "a.org", "gateway": {"name": "g"}, "from": FROM, **outside}
    with pytest.raises(HelmRenderError) as refused:
        render({"experiment": TWO, "outside": whole, "tls": {"mode": mode}})
    assert message in str(refused.value)


@pytest.mark.parametrize("domain", ["A.org", "*.a.org", "a.org.", "a_b.org", "-a.org", "a" * 64, "a." * 100 + "a"])
def test_a_domain_that_is_none_is_refused(domain: str) -> None:
    with pytest.raises(HelmValuesError, match="at '/outside/serverDomain'"):
        render({"experiment": TWO, "outside": {"serverDomain": domain}})


def test_the_number_of_addresses_has_to_be_known() -> None:
    text = "name: lab\npartition: {kind: iid, devices: 4, examples_per_device: 5}\n"
    outside = {"type": "LoadBalancer", "gps": "a:1", "lps": "a:2+", "from": FROM}
    with pytest.raises(HelmRenderError, match=r"set lps\.replicas to the largest possible number"):
        render({"experiment": text, "outside": outside})
    assert len(services({"experiment": text, "outside": outside, "lps": {"replicas": 3}})) == 4
