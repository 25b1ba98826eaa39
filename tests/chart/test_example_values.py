"""The example values: each renders for what it is for, and does what its comments say."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from emulator.cluster.chart_values import merge_values, with_memory
from emulator.cluster.up import load_for_cluster
from tests.support.charts import CHART, Object, of_kind, one, pod_of, pods, render, values_of, workload

FOLDER = CHART / "examples"
TIERS = ("gps", "lps", "device")
EXAMPLES = sorted(FOLDER.glob("*.yaml"))
BOARDS = "name: boards\ndata: {name: folder, input_shape: [1, 8, 8], num_classes: 10}\n"
BOARDS += "partition: {kind: local, names: [board-1, board-2, board-3]}\n"


def values_for(path: Path) -> dict[str, Any]:
    """The example's values, with the experiment of boards where it is about boards."""
    found = values_of(path)
    if found.get("kind") == "Application":
        inner: dict[str, Any] = found["spec"]["source"]["helm"]["valuesObject"]
        return inner
    return merge_values([found, {"experiment": BOARDS}]) if "boards" in path.stem else found


def device_pod(objects: list[Object]) -> Any:
    return pod_of(objects, "device")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_renders_and_says_what_it_is_for(path: Path) -> None:
    assert path.read_text().startswith("# ")
    assert {item["kind"] for item in render(values_for(path))} >= {"StatefulSet", "ConfigMap", "Service"}


def test_the_examples_are_those_that_the_document_lists() -> None:
    text = (CHART.parents[1] / "docs" / "kubernetes.md").read_text()
    for path in EXAMPLES:
        assert f"(../helm/fedstrata/examples/{path.name})" in text


def test_the_commands_for_boards_name_the_certificate_that_fedstrata_up_demands() -> None:
    commands = [part for path in EXAMPLES for part in path.read_text().split("python -m device")[1:]]
    assert len(commands) == 2
    assert all("--tls board-1" in command for command in commands)


def test_the_quickstart_says_how_much_memory_its_pods_request() -> None:
    experiment = load_for_cluster(CHART.parents[1] / "experiments" / "digits.yaml", [], None)
    values = {"experiment": experiment.to_yaml(), "lps": {"replicas": 3}}  # as many as it has tasks
    objects = render(with_memory(values, {}, experiment, None))
    replicas = {tier: workload(objects, tier)["replicas"] for tier in TIERS}
    mebibytes = {
        component: int(spec["containers"][0]["resources"]["requests"]["memory"].removesuffix("Mi"))
        for component, spec, _ in pods(objects)
        if component != "test"
    }
    gigabytes = sum(size * replicas.get(component, 1) for component, size in mebibytes.items()) * 2**20 / 1e9
    text = (CHART.parents[1] / "docs" / "cluster-quickstart.md").read_text()
    assert f"pods below request {gigabytes:.1f} GB of memory" in " ".join(text.split())


def test_boards_on_k3s_run_a_device_each_and_boards_outside_run_none_as_a_pod() -> None:
    inside = render(values_for(FOLDER / "k3s-boards.yaml"))
    assert one(inside, "DaemonSet", "demo-fedstrata-device")
    outside = render(values_for(FOLDER / "boards-outside.yaml"))
    assert workload(outside, "device")["replicas"] == 0


def test_on_openshift_no_pod_names_a_user_and_all_ask_its_name_service() -> None:
    objects = render(values_for(FOLDER / "openshift.yaml"))
    for item in objects:
        if item["kind"] == "StatefulSet":
            security = item["spec"]["template"]["spec"]["securityContext"]
            assert security == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    common = one(objects, "NetworkPolicy", "demo-fedstrata-common")["spec"]["egress"][0]
    assert {port["port"] for port in common["ports"]} == {53, 5353}


def test_a_gpu_is_asked_for_beside_what_devices_have_in_any_case() -> None:
    spec = device_pod(render(values_for(FOLDER / "gpu.yaml")))
    limits = spec["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == 1
    assert "memory" in limits
    assert spec["runtimeClassName"] == "nvidia"
    assert spec["containers"][0]["image"].endswith("/device:0.2.0-cuda")


@pytest.mark.parametrize(
    ("kind", "name", "left"),
    [("limits", "nvidia.com/gpu", None), ("requests", "cpu", None), ("requests", "memory", "420Mi")],
)
def test_null_removes_a_resource_and_memory_then_comes_from_the_size_of_the_pod(
    kind: str, name: str, left: str | None
) -> None:
    """A pod has 420 MiB and nothing for each device. Twice as much is less than 1 GiB, so the limit is 1 GiB."""
    values = values_for(FOLDER / "gpu.yaml")
    values["device"]["memoryMi"] = {"pod": 420, "device": 0}
    values["device"].setdefault("resources", {}).setdefault(kind, {})[name] = None
    resources = device_pod(render(values))["containers"][0]["resources"]
    assert resources[kind].get(name) == left
    assert resources["limits"]["memory"] == "1024Mi"


def test_argo_cd_leaves_the_number_of_lpss_and_no_other_number_to_the_gps() -> None:
    application = yaml.safe_load((FOLDER / "argocd.yaml").read_text())["spec"]
    objects = render(values_for(FOLDER / "argocd.yaml"), release=application["source"]["helm"]["releaseName"])
    (ignored,) = application["ignoreDifferences"]
    assert ignored["jsonPointers"] == ["/spec/replicas"]
    scaled = [rule["resourceNames"] for item in of_kind(objects, "Role") for rule in item["rules"]
              if "statefulsets/scale" in rule["resources"]]  # fmt: skip
    assert scaled == [[ignored["name"]]]
    assert one(objects, ignored["kind"], ignored["name"])
    assert "RespectIgnoreDifferences=true" in application["syncPolicy"]["syncOptions"]
    assert application["source"]["targetRevision"] == values_of(CHART / "Chart.yaml")["version"]
