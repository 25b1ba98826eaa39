"""What the chart refuses, and that each message names the key, what was wrong and what to do."""

from typing import Any

import pytest
from helm_python import HelmRenderError, HelmValuesError

from fedstrata.datasets.loading import BUILT_IN, PUBLISHED
from tests.support.charts import OLDEST, render

IID = "name: lab\npartition: {kind: iid, devices: 10, examples_per_device: 5}\n"
LOCAL = "name: lab\ndata: {name: folder}\npartition: {kind: local, names: [a, b]}\n"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"devices": 3}, "additional properties 'devices' not allowed"),
        ({"gps": {"replicas": 2}}, "at '/gps': additional properties 'replicas' not allowed"),
        ({"lps": {"persistance": {}}}, "at '/lps': additional properties 'persistance' not allowed"),
        ({"image": {"pullPolicy": "Sometimes"}}, "at '/image/pullPolicy': value must be one of 'Always'"),
        ({"device": {"kind": "Deployment"}}, "at '/device/kind': value must be one of 'StatefulSet', 'DaemonSet'"),
        ({"device": {"devicesPerPod": 0}}, "at '/device/devicesPerPod': minimum: got 0, want 1"),
        ({"device": {"replicas": "ten"}}, "at '/device/replicas': got string, want "),
        ({"data": {"type": "nfs"}}, "at '/data/type': value must be one of 'none', 'hostPath', 'claim', 'image'"),
        ({"data": {"hostPath": "relative"}}, "at '/data/hostPath': 'relative' does not match"),
        ({"gps": {"persistence": {"retain": "forever"}}}, "value must be one of 'keep', 'delete'"),
        ({"gps": {"persistence": {"size": "1 GB"}}}, "at '/gps/persistence/size'"),
        ({"gps": {"nodeSelector": {"gpu": True}}}, "at '/gps/nodeSelector/gpu': got boolean, want string"),
        ({"ports": {"grpc": 443}}, "at '/ports/grpc': minimum: got 443, want 1,024"),
        ({"commonLabels": {"app.kubernetes.io/name": "x"}}, "invalid propertyName 'app.kubernetes.io/name'"),
        ({"experiment": {"name": "x"}}, "at '/experiment': got object, want string"),
        ({"gps": {"image": {"digest": "abc"}}}, "at '/gps/image/digest': 'abc' does not match"),
    ],
)
def test_the_schema_names_the_key_and_what_it_takes(values: dict[str, Any], message: str) -> None:
    with pytest.raises(HelmValuesError) as refused:
        render(values)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"experiment": IID, "device": {"replicas": 4}},
            "device.replicas is 4, but the 10 devices of experiment lab, 1 to a pod",
        ),
        (
            {"experiment": IID + "topology: {lps: 3}\n", "lps": {"replicas": 2}},
            "lps.replicas is 2, but topology.lps of experiment lab is 3. Set lps.replicas to null",
        ),
        (
            {"experiment": IID, "lps": {"replicas": 11}},
            "lps.replicas is 11, more than the 10 devices of experiment lab",
        ),
        (
            {"experiment": IID, "gps": {"rbac": {"create": False}}},
            "the number of LPSs of experiment lab is not given, and gps.rbac.create is false",
        ),
        ({"experiment": IID, "device": {"external": 11}}, "device.external is 11, more than the 10 devices"),
        (
            {"experiment": IID, "device": {"external": 1, "devicesPerPod": 2}},
            "leaves 9 devices, which do not fill pods of 2",
        ),
        ({"experiment": IID, "device": {"kind": "DaemonSet"}}, "partition.kind local with names"),
        ({"experiment": LOCAL, "data": {"type": "image"}}, "set device.kind to DaemonSet"),
        (
            {"experiment": LOCAL, "data": {"type": "image"}, "device": {"kind": "DaemonSet", "devicesPerPod": 2}},
            "one device on each node",
        ),
        (
            {"experiment": LOCAL, "device": {"kind": "DaemonSet"}},
            "experiment lab reads folder from files: set data.type",
        ),
        (
            {"experiment": LOCAL, "device": {"kind": "DaemonSet", "persistence": {"enabled": True}}},
            "device.persistence is enabled, but a DaemonSet cannot give each pod a claim",
        ),
        ({"experiment": IID + "data: {name: svhn}\n"}, "experiment lab reads svhn from files: set data.type"),
        ({"data": {"type": "hostPath"}}, "data.hostPath is empty: give a folder"),
        ({"data": {"type": "claim"}}, "data.claimName is empty: give the name of a"),
        ({"ports": {"grpc": 8080}}, "ports.grpc and ports.http are both 8080"),
        (
            {"tls": {"mode": "cert-manager", "certManager": {"duration": "720h"}}},
            "tls.certManager.duration is 720h, not more than tls.certManager.renewBefore (720h)",
        ),
        ({"image": {"tag": "latest"}}, "latest does not say which version runs"),
    ],
)
def test_contradictions_are_told_with_both_sides_and_a_way_out(values: dict[str, Any], message: str) -> None:
    with pytest.raises(HelmRenderError) as refused:
        render(values)
    assert message in str(refused.value)


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_only_a_published_data_set_needs_files(name: str) -> None:
    values = {"experiment": f"{IID}data: {{name: {name}}}\n"}
    if name in PUBLISHED:
        with pytest.raises(HelmRenderError, match=f"reads {name} from files"):
            render(values)
    else:
        assert render(values)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: [", "it must be YAML"),
        ("just words", "it must be YAML"),
        ("- a list", "it must be YAML"),
        ("partition: {}", "name is missing"),
        ("name: lab", "partition is missing"),
        (
            "name: lab\npartition: {devices: 2}",
            "partition.kind is missing; give one, such as iid",
        ),
        ("name: lab\npartition: {kind: sorted}", "partition.devices must be a whole number from 1 up"),
        (
            "name: lab\npartition: {kind: 'own:Halves'}",
            "is own:Halves, and partition.devices is missing",
        ),
        ("name: lab\npartition: {kind: iid, devices: 0}", "partition.devices must be a whole number from 1 up, not 0"),
        ("name: lab\npartition: {kind: iid, devices: 2.5}", "not 2.5"),
        ("name: lab\npartition: {kind: iid, devices: many}", "not many"),
        ("name: lab\npartition: {kind: tasks, tasks: []}", "it has no devices"),
        ("name: lab\npartition: {kind: tasks, tasks: [{name: low, devices: -1}]}", "devices of low must be"),
        ("name: lab\npartition: {kind: groups, groups: [{name: low}]}", "partition.groups: devices of low must be"),
        ("name: lab\npartition: {kind: local, names: []}", "it has no devices"),
        (IID + "topology: {lps: 11}", "topology.lps is 11, more than the 10 devices"),
        (IID + "topology: {devices: [[0, 1]]}", "topology.lps must be a whole number from 1 up, not <nil>"),
        (IID + "topology: 3", "topology must say lps"),
        (IID + "data: digits", "data must be a mapping of keys to values, not digits"),
        (IID + "training: [5]", "training must be a mapping of keys to values, not [5]"),
        ("name: lab\npartition: {kind: local, names: [a, 2]}", "partition.names must be a list of texts, and has 2"),
        ("name: lab\npartition: {kind: local, names: abc}", "partition.names must be a list of texts, not abc"),
        (IID + "# " + "x" * 1_000_000, "larger than the 1 MB"),
    ],
)
def test_a_wrong_experiment_is_refused_with_its_reason(text: str, message: str) -> None:
    with pytest.raises(HelmRenderError) as refused:
        render({"experiment": text})
    assert message in str(refused.value)
    assert "--set-file experiment=FILE.yaml" in str(refused.value)


def test_volumes_that_this_kubernetes_cannot_delete_are_not_promised_to_go() -> None:
    values = {"experiment": IID, "lps": {"persistence": {"enabled": True, "retain": "delete"}}}
    with pytest.raises(
        HelmRenderError, match=r"lps\.persistence\.retain is delete, which Kubernetes v1\.20\.2 can do only"
    ):
        render(values, version=OLDEST)
