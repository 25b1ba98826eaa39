"""The examples render, are valid for the oldest and newest Kubernetes, and have the pods their experiments ask for."""

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
from helm_python import lint

from fedstrata.experiment_file import load_experiment, parse_experiment
from fedstrata.methods.registry import NAMES
from tests.support.charts import (
    CASES,
    CHART,
    NEWEST,
    OLDEST,
    ROOT,
    SHAPES,
    VARIANTS,
    Object,
    experiment_values,
    identity,
    of_kind,
    one,
    pod_of,
    render,
    values_of,
    workload,
)

OWN_RESOURCES = (
    "PodMonitor",
    "PrometheusRule",
    "GRPCRoute",
    "TLSRoute",
    "Certificate",
    "Issuer",
)  # of others, which Kubernetes has no schema of


@cache
def oldest_schemas() -> dict[str, Any]:
    schemas: dict[str, Any] = json.loads((Path(__file__).parent / "schemas" / "v1.20.json").read_text())
    return schemas


@cache
def oldest(kind: str) -> jsonschema.Draft202012Validator:
    """A validator of `apiVersion Kind` for Kubernetes 1.20."""
    schemas = oldest_schemas()
    return jsonschema.Draft202012Validator(
        {"$ref": f"#/definitions/{schemas['kinds'][kind]}", "definitions": schemas["definitions"]}
    )


def check_oldest(item: Object) -> None:
    """Raise ValidationError unless Kubernetes 1.20 knows the kind and every key."""
    oldest(f"{item['apiVersion']} {item['kind']}").validate(item)


@cache
def check_newest(item: str) -> None:
    """Raise ValidationError unless the newest Kubernetes knows it; most objects are the same in every case."""
    kubernetes_validate.validate(json.loads(item), NEWEST, strict=True)


@pytest.mark.parametrize("values", CASES)
def test_every_object_is_valid_for_the_oldest_kubernetes(values: dict[str, Any]) -> None:
    for item in render(values, version=OLDEST):
        if item["kind"] not in OWN_RESOURCES:
            check_oldest(item)


@pytest.mark.parametrize("values", CASES)
def test_every_object_is_valid_for_the_newest_kubernetes(values: dict[str, Any]) -> None:
    for item in render(values, version=NEWEST):
        if item["kind"] not in OWN_RESOURCES:
            check_newest(json.dumps(item))


def test_the_oldest_schemas_refuse_what_that_kubernetes_does_not_know() -> None:
    newer = one(render(version=NEWEST), "StatefulSet", "demo-fedstrata-device")
    assert newer["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"] == "100%"
    with pytest.raises(jsonschema.ValidationError, match="maxUnavailable"):
        check_oldest(newer)


@pytest.mark.parametrize("path", VARIANTS, ids=lambda path: path.stem)
def test_lint_finds_nothing(path: Path) -> None:
    report = lint(CHART, values_of(path), strict=True, kube_version=OLDEST)
    assert report["errors"] == []
    assert [message["error"] for message in report["messages"]] == ["icon is recommended"]


@pytest.mark.parametrize("path", SHAPES, ids=lambda path: path.stem)
def test_pods_are_as_many_as_the_services_themselves_read_in_the_experiment(path: Path) -> None:
    experiment = load_experiment(path)
    objects = render(experiment_values(path))
    if experiment.partition.kind != "local":
        assert workload(objects, "device")["replicas"] == experiment.device_count
    topology = experiment.topology
    assert lps_replicas(objects) == (topology.lps if topology is not None else 0)


@pytest.mark.parametrize(
    "partition", ["natural, devices: 3", "natural, names: [a, b, c]", "given, examples: [[0], [1], [2]]"]
)
def test_pods_are_as_many_as_devices_that_the_data_or_a_list_give(partition: str) -> None:
    objects = render({"experiment": f"name: lab\npartition: {{kind: {partition}}}\n"})
    assert workload(objects, "device")["replicas"] == 3


def test_lpss_are_as_many_as_the_topology_or_the_value_says_and_else_the_gps_scales_them() -> None:
    text = "name: lab\npartition: {kind: iid, devices: 5, examples_per_device: 9}\n"
    assert lps_replicas(render({"experiment": text})) == 0
    assert lps_replicas(render({"experiment": text, "lps": {"replicas": 3}})) == 3
    for spread in ({"experiment": text + "topology: {lps: 4}\n"}, {"experiment": text, "lps": {"replicas": 4}}):
        withheld = {**spread, "gps": {"rbac": {"create": False}}}
        assert lps_replicas(render(withheld)) == 4


def test_no_template_knows_a_method_by_name() -> None:
    text = "".join(path.read_text() for path in (CHART / "templates").rglob("*") if path.is_file())
    words = set(re.findall(r"\w+", text))
    ambiguous = {"local", "random"}  # words of partitions and of prose, too
    assert not words & (set(NAMES) - ambiguous)
    assert not re.search(r"\bmethod\b[^/]*\.(name|clusters|streams)", text)


def lps_replicas(objects: list[Object]) -> Any:
    return workload(objects, "lps")["replicas"]


def test_the_experiment_reaches_the_pods_byte_for_byte() -> None:
    text = "# trailing blanks, a quote '\"  \nname: a\n\npartition: {kind: iid, devices: 1, examples_per_device: 5}"
    config = one(render({"experiment": text}), "ConfigMap", "demo-fedstrata-experiment")
    assert config["data"] == {"experiment.yaml": text}


def test_without_an_experiment_the_chart_runs_the_repositorys_default() -> None:
    default = (ROOT / "experiments" / "digits.yaml").read_text()
    config = one(render(), "ConfigMap", "demo-fedstrata-experiment")
    packaged = parse_experiment(config["data"]["experiment.yaml"])
    assert packaged == parse_experiment(default), "copy experiments/digits.yaml to helm/fedstrata/files/digits.yaml"


def test_another_experiment_makes_other_pods_of_every_tier() -> None:
    def checksums(seed: int) -> list[str]:
        text = f"name: a\nseed: {seed}\npartition: {{kind: iid, devices: 1, examples_per_device: 5}}\n"
        sets = of_kind(render({"experiment": text}), "StatefulSet")
        return [item["spec"]["template"]["metadata"]["annotations"]["checksum/experiment"] for item in sets]

    assert len(checksums(1)) == 3
    assert len({*checksums(1)}) == 1
    assert checksums(1) == checksums(1)
    assert not {*checksums(1)} & {*checksums(2)}


def test_five_devices_in_pods_of_two_make_three_pods() -> None:
    values = values_of(CHART / "ci" / "auto.yaml")
    devices = one(render(values), "StatefulSet", "demo-fedstrata-device")
    assert devices["spec"]["replicas"] == 3
    env = devices["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "FEDSTRATA_DEVICES_PER_POD", "value": "2"} in env


def test_boards_run_on_exactly_the_nodes_that_the_experiment_names() -> None:
    spec = workload(render(values_of(CHART / "ci" / "boards.yaml")), "device", "DaemonSet")
    pod = spec["template"]["spec"]
    terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [term["matchFields"][0]["values"] for term in terms] == [["board-1"], ["board-2"], ["board-3"]]
    name = next(item for item in pod["containers"][0]["env"] if item["name"] == "FEDSTRATA_DEVICE_NAME")
    assert name["valueFrom"]["fieldRef"]["fieldPath"] == "spec.nodeName"
    assert spec["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": "100%"}
    assert {"name": "data", "hostPath": {"path": "/var/lib/fedstrata", "type": "Directory"}} in pod["volumes"]


def test_a_kept_volume_stays_and_a_deleted_one_goes_with_the_release() -> None:
    def annotations(retain: str) -> Any:
        objects = render({"gps": {"persistence": {"retain": retain}}})
        return one(objects, "PersistentVolumeClaim", "demo-fedstrata-gps")["metadata"].get("annotations")

    assert annotations("keep") == {"helm.sh/resource-policy": "keep"}
    assert annotations("delete") is None
    gps = one(render(), "StatefulSet", "demo-fedstrata-gps")
    assert "volumeClaimTemplates" not in gps["spec"], "a StatefulSet's own claims would outlive the release"


def test_a_claim_that_was_there_before_is_mounted_and_none_is_made() -> None:
    objects = render({"gps": {"persistence": {"existingClaim": "records"}}})
    pod = pod_of(objects, "gps")
    assert {"name": "state", "persistentVolumeClaim": {"claimName": "records"}} in pod["volumes"]
    assert not of_kind(objects, "PersistentVolumeClaim")


@pytest.mark.parametrize("tier", ["lps", "device"])
def test_the_volumes_of_lpss_and_devices_go_with_the_release_on_any_version(tier: str) -> None:
    values = values_of(CHART / "ci" / "volumes.yaml")
    newest = workload(render(values, version=NEWEST), tier)
    assert newest["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Delete", "whenScaled": "Retain"}
    objects = render(values, version=OLDEST)
    template = workload(objects, tier)["volumeClaimTemplates"][0]
    for ordinal in (0, 1):  # named as the set names them, so that it takes them; owned by the release, so that they go
        claim = one(objects, "PersistentVolumeClaim", f"{template['metadata']['name']}-demo-fedstrata-{tier}-{ordinal}")
        assert claim["spec"] == template["spec"]


@pytest.mark.parametrize("tier", ["lps", "device"])
@pytest.mark.parametrize("is_kept", [True, False])
def test_state_is_on_a_claim_or_in_the_pod_and_never_both(tier: str, is_kept: bool) -> None:
    values = {tier: {"persistence": {"enabled": is_kept, "retain": "keep"}}}
    spec = workload(render(values), tier)
    pod = spec["template"]["spec"]
    assert {"name": "state", "mountPath": "/state"} in pod["containers"][0]["volumeMounts"]
    assert ({"name": "state", "emptyDir": {"sizeLimit": "16Gi"}} in pod["volumes"]) is not is_kept
    assert [claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", [])] == ["state"] * is_kept
    assert "--state=/state" in pod["containers"][0]["args"]


def test_the_pod_of_a_test_is_there_when_helm_3_reads_its_words() -> None:
    """Helm 3 deletes by policy, and reads the logs for `helm test --logs` afterwards (helm/helm#9098)."""
    test = one(render(), "Pod", "demo-fedstrata-test")
    assert test["metadata"]["annotations"] == {
        "helm.sh/hook": "test",
        "helm.sh/hook-delete-policy": "before-hook-creation",
    }


def budgets(values: Mapping[str, Any]) -> dict[str, tuple[list[str], Any]]:
    """By name the tiers that each budget covers, and how many of their pods a drain may take at once."""
    found = of_kind(render(values), "PodDisruptionBudget")
    return {
        item["metadata"]["name"].rpartition("-")[2]: (
            item["spec"]["selector"]["matchExpressions"][0]["values"],
            item["spec"]["maxUnavailable"],
        )
        for item in found
    }


def test_lpss_have_volumes_unless_told_otherwise() -> None:
    lps = workload(render(), "lps")
    assert [claim["metadata"]["name"] for claim in lps["volumeClaimTemplates"]] == ["state"]


def test_one_budget_covers_an_lps_without_a_volume_and_the_devices_that_it_gets_its_model_back_from() -> None:
    apart = {"gps": (["gps"], 1), "lps": (["lps"], 1), "device": (["device"], "20%")}
    bare: dict[str, Any] = {"persistence": {"enabled": False}}
    assert budgets({}) == apart
    assert budgets({"lps": bare}) == {"gps": (["gps"], 1), "lps": (["lps", "device"], 1)}
    assert budgets({"lps": {**bare, "podDisruptionBudget": {"enabled": False}}}).keys() == {"gps", "device"}


def test_budgets_use_the_api_that_the_server_has() -> None:
    def versions(version: str) -> set[str]:
        return {item["apiVersion"] for item in of_kind(render(version=version), "PodDisruptionBudget")}

    assert versions("v1.20.15") == {"policy/v1beta1"}
    assert versions("v1.21.0-gke.1") == {"policy/v1"}


def test_every_name_carries_the_release_and_leaves_room_for_ordinals() -> None:
    long = "a-release-name-as-long-as-helm-allows-it-to-be-for-you"[:53]
    for release in ("demo", "fedstrata", long):
        objects = render(release=release)
        assert len({identity(item) for item in objects}) == len(objects)
        for item in objects:
            assert item["metadata"]["name"].startswith(release[:31]), identity(item)
            if item["kind"] == "StatefulSet":
                assert len(item["metadata"]["name"]) <= 52, "the pods' revision label adds 11 characters, up to 63"


def test_a_release_that_begins_with_a_digit_has_names_that_a_service_may_have() -> None:
    services = [item["metadata"]["name"] for item in of_kind(render(release="2nd"), "Service")]
    assert services == ["r2nd-fedstrata-gps", "r2nd-fedstrata-lps"]
    lps = one(render(release="2nd"), "StatefulSet", "r2nd-fedstrata-lps")["spec"]
    assert lps["serviceName"] in services
    assert "--gps=r2nd-fedstrata-gps.lab.svc:50051" in lps["template"]["spec"]["containers"][0]["args"]


@pytest.mark.parametrize("name", ["2024", "true"])
def test_names_that_yaml_reads_as_a_number_or_a_truth_value_stay_names(name: str) -> None:
    values: dict[str, Any] = {
        "imagePullSecrets": [name],
        "data": {"type": "claim", "claimName": name},
        "code": {"configMap": name},
        "queue": {"name": name},
        "gps": {"persistence": {"existingClaim": name}, "serviceAccount": {"name": name}},
        "lps": {"persistence": {"storageClass": name}, "runtimeClassName": name, "priorityClassName": name},
        "device": {"external": 1, "externalPods": [name]},
    }
    for item in render(values, release=name, namespace=name):
        check_newest(json.dumps(item))


def test_a_release_with_dots_has_names_that_a_service_may_have() -> None:
    services = [item["metadata"]["name"] for item in of_kind(render(release="fl.dev"), "Service")]
    assert services == ["fl-dev-fedstrata-gps", "fl-dev-fedstrata-lps"]


def test_two_long_releases_alike_in_the_beginning_have_different_names() -> None:
    first, second = ({identity(item) for item in render(release="x" * 50 + end)} for end in "ab")
    assert not first & second


def test_the_chart_carries_the_projects_version() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text()
    chart = values_of(CHART / "Chart.yaml")
    assert f'\nversion = "{chart["appVersion"]}"\n' in pyproject
