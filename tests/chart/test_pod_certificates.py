"""Who is given which certificate by the chart, in each mode, and what is refused."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from helm_python import HelmRenderError, HelmValuesError

from emulator.cluster.chart_values import load_values, merge_values
from emulator.cluster.release_certificates import holders_of
from fedstrata.experiment_file import parse_experiment
from fedstrata.trust.authority import server_names
from tests.support.charts import (
    CHART,
    VARIANTS,
    Object,
    environment,
    notes,
    of_kind,
    one,
    pod_of,
    pods,
    render,
    rendered_files,
    values_of,
)

SCHEMAS = json.loads((Path(__file__).parent / "schemas" / "cert-manager.json").read_text())
FIVE = "name: lab\npartition: {kind: iid, devices: 5, examples_per_device: 9}\ntopology: {lps: 2}\n"
ENCRYPTED = [path for path in VARIANTS if values_of(path).get("tls", {}).get("mode") != "off"]


def volume(spec: Object) -> Any:
    return next((found for found in spec["volumes"] if found["name"] == "tls"), None)


def mount(spec: Object) -> Any:
    return next((m for m in spec["containers"][0]["volumeMounts"] if m["name"] == "tls"), None)


def secrets(spec: Object) -> dict[str, str]:
    """The Secrets that a pod's volume is made of, by the folder that each is in."""
    found = volume(spec)
    if "secret" in found:
        return {"": found["secret"]["secretName"]}
    sources = [source["secret"] for source in found["projected"]["sources"]]
    return {source["items"][0]["path"].partition("/")[0]: source["name"] for source in sources}


def test_helm_alone_is_told_in_a_line_that_a_mode_has_to_be_chosen() -> None:
    with pytest.raises(HelmRenderError, match=r"tls\.mode is not given") as refused:
        rendered_files({"tls": {}}, version="v1.37.0", release="demo", namespace="lab")
    assert "Install with `fedstrata up`" in str(refused.value)


@pytest.mark.parametrize("mode", ["off", False])
def test_off_leaves_no_trace_of_certificates_and_the_notes_say_what_that_means(mode: object) -> None:
    files = rendered_files({"tls": {"mode": mode}}, version="v1.37.0", release="demo", namespace="lab")
    assert "nothing is encrypted" in files.pop("NOTES.txt")
    assert "tls" not in "".join(files.values()).lower()


def test_each_pod_of_a_tier_is_shown_its_own_key_alone() -> None:
    objects = render({"experiment": FIVE, "device": {"devicesPerPod": 2}})
    for tier, count in (("lps", 2), ("device", 3)):
        spec = pod_of(objects, tier)
        assert mount(spec)["subPathExpr"] == "$(FEDSTRATA_POD_NAME)"
        wanted = {f"demo-fedstrata-{tier}-{number}": f"demo-tls-{tier}-{number}" for number in range(count)}
        assert secrets(spec) == wanted


def test_pods_that_follow_their_certificates_are_shown_whole_volumes_which_kubelet_keeps_up_to_date() -> None:
    objects = render({"experiment": FIVE, "tls": {"mode": "generated", "follow": True}})
    for tier, folder in (
        ("gps", "/tls"),
        ("lps", "/tls/$(FEDSTRATA_POD_NAME)"),
        ("device", "/tls/$(FEDSTRATA_POD_NAME)"),
    ):
        spec = pod_of(objects, tier)
        assert "subPathExpr" not in mount(spec)
        names = [*environment(spec)]
        assert names.index("FEDSTRATA_POD_NAME") < names.index("FEDSTRATA_TLS")  # which Kubernetes puts in
        assert environment(spec)["FEDSTRATA_TLS"] == folder


@pytest.mark.parametrize("follow", [False, True])
def test_all_pods_look_at_one_list_of_revoked_certificates_that_need_not_be_there(follow: bool) -> None:
    objects = render({"experiment": FIVE, "tls": {"mode": "secret", "follow": follow}})
    for tier in ("gps", "lps", "device"):
        spec = pod_of(objects, tier)
        (shown,) = [found for found in spec["volumes"] if found["name"] == "revoked"]
        assert shown["secret"] == {"secretName": "demo-tls-revoked", "optional": True, "defaultMode": 0o440}
        (mounted,) = [m for m in spec["containers"][0]["volumeMounts"] if m["name"] == "revoked"]
        assert mounted == {"name": "revoked", "mountPath": "/revoked", "readOnly": True}  # in part it would not follow
        assert environment(spec)["FEDSTRATA_REVOKED"] == "/revoked/revoked.txt"


def test_an_authority_of_cert_managers_keeps_its_key() -> None:
    objects = render({"experiment": FIVE, "tls": {"mode": "cert-manager"}})
    authority = one(objects, "Certificate", "demo-tls-authority")["spec"]
    assert authority["privateKey"]["rotationPolicy"] == "Never"
    assert {item["spec"]["privateKey"]["rotationPolicy"] for item in certificates(objects)} == {"Always"}


def test_of_boards_each_is_shown_the_key_of_its_node() -> None:
    text = "name: b\ndata: {name: folder, input_shape: [1, 8, 8], num_classes: 10}\n"
    text += "partition: {kind: local, names: [pi-kitchen, pi-hall]}\n"
    data = {"type": "hostPath", "hostPath": "/var/lib/fedstrata"}
    objects = render({"experiment": text, "data": data, "device": {"kind": "DaemonSet"}})
    spec = pod_of(objects, "device", "DaemonSet")
    assert mount(spec)["subPathExpr"] == "$(FEDSTRATA_DEVICE_NAME)"
    assert secrets(spec) == {"pi-kitchen": "demo-tls-device-pi-kitchen", "pi-hall": "demo-tls-device-pi-hall"}


@pytest.mark.parametrize("path", ENCRYPTED, ids=lambda path: path.stem)
def test_up_makes_exactly_the_secrets_that_the_pods_mount(path: Path) -> None:
    given = {key: value for key, value in values_of(path).get("tls", {}).items() if key != "certManager"}
    values = {**values_of(path), "tls": {**given, "mode": "generated"}}
    objects = render(values)
    mounted = {name for _, spec, _ in pods(objects) if volume(spec) for name in secrets(spec).values()}
    experiment = parse_experiment(values.get("experiment") or (CHART / "files" / "digits.yaml").read_text())
    whole = merge_values([load_values(CHART / "values.yaml"), values])
    if experiment.topology:
        whole["lps"]["replicas"] = experiment.topology.lps
    assert {f"demo-tls-{who}" for who in holders_of(whole, experiment)} == mounted
    nobody_else = [spec for _, spec, _ in pods(objects) if "authority" in json.dumps(spec)]
    assert nobody_else == []


@pytest.mark.parametrize("path", ENCRYPTED, ids=lambda path: path.stem)
def test_cert_manager_is_asked_for_the_names_that_up_would_issue(path: Path) -> None:
    values = {**values_of(path), "tls": {**values_of(path).get("tls", {}), "mode": "cert-manager"}}
    experiment = parse_experiment(values.get("experiment") or (CHART / "files" / "digits.yaml").read_text())
    whole = merge_values([load_values(CHART / "values.yaml"), values])
    if experiment.topology:
        whole["lps"]["replicas"] = experiment.topology.lps
    asked = {item["spec"]["secretName"]: item["spec"] for item in certificates(render(values))}
    holders, domain = holders_of(whole, experiment), whole["outside"]["serverDomain"]
    assert set(asked) == {f"demo-tls-{who}" for who in holders}
    for who, names in holders.items():
        spec = asked[f"demo-tls-{who}"]
        assert spec["uris"] == [name.uri("demo.lab") for name in names]
        assert spec.get("dnsNames", []) == server_names(names, domain)
        assert ("server auth" in spec["usages"]) == (names[0].role in {"gps", "lps"})


def test_devices_that_a_partition_names_have_these_names_in_their_certificates() -> None:
    folder = "data: {name: folder, folder: pumps, target: y, input_shape: [3], num_classes: 2}\n"
    text = f"name: lab\n{folder}partition: {{kind: natural, names: [oak, elm, North_Ash (2)], test_share: 0.2}}\n"
    data = {"type": "hostPath", "hostPath": "/srv/pumps"}
    values = {"experiment": text, "tls": {"mode": "cert-manager"}, "device": {"devicesPerPod": 2}, "data": data}
    asked = {item["spec"]["secretName"]: item["spec"]["uris"] for item in certificates(render(values))}
    whole = merge_values([load_values(CHART / "values.yaml"), values])
    holders = holders_of(whole | {"lps": {"replicas": None}}, parse_experiment(text))
    for who in ("device-0", "device-1"):
        assert asked[f"demo-tls-{who}"] == [name.uri("demo.lab") for name in holders[who]]
    assert asked["demo-tls-device-1"] == ["spiffe://demo.lab/device/north-ash-2"]


def certificates(objects: list[Object]) -> list[Object]:
    return [item for item in objects if item["kind"] == "Certificate" and not item["spec"].get("isCA")]


@pytest.mark.parametrize("name", ["production", "spanning", "passthrough"])
def test_what_cert_manager_is_asked_for_is_valid(name: str) -> None:
    objects = render({**values_of(CHART / "ci" / f"{name}.yaml"), "tls": {"mode": "cert-manager"}})
    asked = [item for item in objects if item["apiVersion"] == "cert-manager.io/v1"]
    assert asked
    for item in asked:
        jsonschema.Draft202012Validator(SCHEMAS[item["kind"]]).validate(item["spec"])


def test_without_an_issuer_the_release_has_an_authority_of_its_own() -> None:
    objects = render({"experiment": FIVE, "tls": {"mode": "cert-manager"}})
    authority = one(objects, "Certificate", "demo-tls-authority")["spec"]
    assert authority["isCA"]
    assert one(objects, "Issuer", "demo-tls-authority")["spec"] == {"ca": {"secretName": authority["secretName"]}}
    assert {item["spec"]["issuerRef"]["name"] for item in certificates(objects)} == {"demo-tls-authority"}
    given = {"mode": "cert-manager", "certManager": {"issuer": {"name": "lab", "kind": "ClusterIssuer"}}}
    objects = render({"experiment": FIVE, "tls": given})
    assert {item["spec"]["issuerRef"]["name"] for item in certificates(objects)} == {"lab"}
    assert not of_kind(objects, "Issuer")


def test_the_test_of_the_release_shows_an_operators_certificate() -> None:
    spec = one(render({"experiment": FIVE}), "Pod", "demo-fedstrata-test")["spec"]
    assert "--tls=/tls" in spec["containers"][0]["args"]
    assert secrets(spec) == {"": "demo-tls-operator"}


def test_no_key_can_be_read_by_all_users_of_a_pod() -> None:
    for _, spec, _ in pods(render({"experiment": FIVE})):
        found = volume(spec)
        assert (found.get("secret") or found["projected"])["defaultMode"] == 0o440


@pytest.mark.parametrize("tls", [{"mode": "on"}, {"mode": True}, {"lps": 0}, {"certManager": {"duration": "90d"}}])
def test_what_the_schema_does_not_know_is_refused(tls: dict[str, Any]) -> None:
    with pytest.raises(HelmValuesError, match="at '/tls/"):
        render({"tls": {"mode": "generated", **tls}})


def test_fewer_certificates_than_the_run_begins_with_lpss_are_refused() -> None:
    with pytest.raises(HelmRenderError, match=r"tls\.lps is 1, but experiment lab begins with 2 LPSs"):
        render({"experiment": FIVE, "tls": {"mode": "generated", "lps": 1}})
    more = one(
        render({"experiment": FIVE, "tls": {"mode": "generated", "lps": 3}}), "StatefulSet", "demo-fedstrata-lps"
    )
    assert len(secrets(more["spec"]["template"]["spec"])) == 3


@pytest.mark.parametrize("mode", ["off", "secret", "generated"])
def test_an_issuer_of_which_nothing_is_asked_is_refused(mode: str) -> None:
    with pytest.raises(HelmRenderError, match=f"issuer is given, but tls.mode is {mode}"):
        render({"experiment": FIVE, "tls": {"mode": mode, "certManager": {"issuer": {"name": "lab"}}}})


@pytest.mark.parametrize(
    ("tls", "issues"),
    [
        ({"mode": "generated"}, True),
        ({"mode": "cert-manager"}, True),
        ({"mode": "cert-manager", "certManager": {"issuer": {"name": "lab"}}}, False),
        ({"mode": "secret"}, False),
    ],
)
def test_the_notes_name_the_command_for_a_board_where_its_certificate_would_be_trusted(
    tls: dict[str, Any], issues: bool
) -> None:
    text = notes({**values_of(CHART / "ci" / "outside.yaml"), "tls": tls})
    assert ("fedstrata certs issue device NAME" in text) is issues
    assert ("certificate for spiffe://demo.lab/device/NAME" in text) is not issues


def test_another_authority_or_mode_makes_other_pods() -> None:
    def marks(tls: dict[str, Any]) -> set[str]:
        workloads = of_kind(render({"experiment": FIVE, "tls": tls}), "StatefulSet")
        assert len(workloads) == 3
        return {item["spec"]["template"]["metadata"]["annotations"]["checksum/tls"] for item in workloads}

    found = marks({"mode": "generated", "authority": "00aa"})
    assert len(found) == 1
    assert found != marks({"mode": "generated", "authority": "00ab"})
    assert found != marks({"mode": "secret", "authority": "00aa"})
