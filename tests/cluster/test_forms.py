"""Other forms of the same release: devices several to a pod, boards with data of their own, a GPS without rights."""

from pathlib import Path

import numpy as np
import pytest
import yaml
from sklearn.datasets import load_digits

from tests.cluster.conftest import PERSISTENT, Lab
from tests.support.records import assert_same_result, summary_of

PACKED = {"device": {"devicesPerPod": 5}}


def test_several_devices_to_a_pod_give_the_same_record_before_and_after_another_experiment(
    lab: Lab, local_digits: Path
) -> None:
    first, second, again = (lab.folder / name for name in ("first", "second", "again"))
    packed = {**PACKED, **PERSISTENT}
    lab.up("experiments/digits.yaml", packed, release="packed")
    lab.here("collect", "--out", str(first), "--quiet", release="packed")
    assert len(lab.pods("device", "packed")) == 2
    assert_same_result(first, local_digits)

    lab.up("experiments/digits.yaml", packed, sets=("training.global_rounds=2", "seed=7"), release="packed")
    lab.here("collect", "--out", str(second), "--quiet", release="packed")
    assert summary_of(second)["run_id"] != summary_of(first)["run_id"]
    assert summary_of(second)["rounds"] == 2

    lab.up("experiments/digits.yaml", packed, release="packed")  # the first again: its record is on the volume
    lab.here("collect", "--out", str(again), "--quiet", release="packed")
    assert_same_result(again, first)
    assert summary_of(again)["wall_seconds"] == summary_of(first)["wall_seconds"]  # not run anew
    lab.here("down", release="packed")


def test_a_gps_that_may_not_scale_goes_on_where_the_clusters_are_fixed(lab: Lab) -> None:
    values = {"gps": {"rbac": {"create": False}}, "device": {"devicesPerPod": 5}}
    lab.up("experiments/digits.yaml", values, sets=("method.clusters=3", "training.global_rounds=1"), release="fixed")
    folder = lab.folder / "fixed"
    lab.here("collect", "--out", str(folder), "--quiet", release="fixed")
    assert summary_of(folder)["status"] == "completed"
    assert {pod.metadata.labels.get("fedstrata.io/lps") for pod in lab.pods("device", "fixed")} == {None}
    lab.here("down", release="fixed")


@pytest.fixture
def boards(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[str]]:
    """An experiment of one device on each edge node, its data in a folder of the node."""
    nodes = sorted(n.metadata.name for n in lab.core.list_node(label_selector="tier=edge").items)
    data = tmp_path_factory.mktemp("boards")
    data.chmod(0o755)
    data.parent.chmod(0o755)
    digits = load_digits()
    inputs = (digits.images / 16.0).astype(np.float32)[:, None]
    np.savez(data / "train.npz", x=inputs[:400], y=digits.target[:400])
    np.savez(data / "test.npz", x=inputs[400:500], y=digits.target[400:500])
    experiment = data / "experiment.yaml"
    experiment.write_text(
        yaml.safe_dump(
            {
                "name": "boards",
                "data": {"name": "folder", "folder": "/data", "input_shape": [1, 8, 8], "num_classes": 10},
                "partition": {"kind": "local", "names": nodes},
                "method": {"name": "one_shot", "clusters": 1},
                "training": {"global_rounds": 2},
            }
        )
    )
    return experiment, data, nodes


def test_boards_train_on_the_data_of_their_own_nodes(lab: Lab, boards: tuple[Path, Path, list[str]]) -> None:
    experiment, data, nodes = boards
    values = {
        "device": {"kind": "DaemonSet", "nodeSelector": {}},
        "data": {"type": "hostPath", "hostPath": str(data)},
    }
    lab.up(experiment, values, release="boards")
    folder = lab.folder / "boards"
    lab.here("collect", "--out", str(folder), "--quiet", release="boards")
    assert summary_of(folder)["clusters"] == {"lps-0": nodes}
    assert [pod.spec.node_name for pod in lab.pods("device", "boards")] != []
    lab.here("down", release="boards")
