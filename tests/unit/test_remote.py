"""Values, refusals and readiness of a run on Kubernetes, without one."""

import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
from kubernetes import client

from emulator.helm import Helm, _refused
from emulator.kubernetes import Cluster, _is_ready, _is_set_ready
from emulator.remote import load_for_cluster, load_values, merge_values
from fedstrata.errors import AddressError, ExperimentError

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"


def test_later_values_lie_over_earlier_ones_key_by_key() -> None:
    merged = merge_values([{"gps": {"a": 1, "b": 2}, "x": 1}, {"gps": {"b": 3}, "y": [2]}])
    assert merged == {"gps": {"a": 1, "b": 3}, "x": 1, "y": [2]}


def test_a_values_file_that_is_none_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "values.yaml"
    path.write_text("- not\n- a mapping\n")
    with pytest.raises(ExperimentError, match="mapping"):
        load_values(path)
    with pytest.raises(ExperimentError, match=r"missing\.yaml"):
        load_values(tmp_path / "missing.yaml")


def test_the_charts_own_words_are_told_as_an_error_of_the_values() -> None:
    error = _refused("execution error at (fedstrata/templates/x.yaml:1:3): device.replicas is 3,\n but 10 are needed")
    assert isinstance(error, ExperimentError)
    assert "device.replicas is 3, but 10 are needed" in str(error)


def test_a_cluster_that_does_not_answer_is_an_error_of_the_network() -> None:
    assert isinstance(_refused("Kubernetes cluster unreachable: connection refused"), AddressError)


def test_a_folder_without_a_chart_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="no chart"):
        Helm("default").upgrade("lab", tmp_path, {})


def test_this_machines_data_folder_does_not_go_to_the_cluster() -> None:
    path = EXPERIMENTS / "fmnist_three_tasks.yaml"
    here = load_for_cluster(path, ("data.folder=/somewhere/here",), None)
    assert here.data.folder is None
    assert here.digest == load_for_cluster(path, (), None).digest


def _workload(*, generation: int, seen: int, ready: int, updated: int, wanted: int = 3) -> SimpleNamespace:
    status = SimpleNamespace(
        observed_generation=seen, ready_replicas=ready, updated_replicas=updated,
        current_revision="old", update_revision="new",
    )  # fmt: skip
    return SimpleNamespace(
        metadata=SimpleNamespace(generation=generation), spec=SimpleNamespace(replicas=wanted), status=status
    )


@pytest.mark.parametrize(
    ("workload", "is_ready"),
    [
        (_workload(generation=2, seen=2, ready=3, updated=3), True),
        (_workload(generation=2, seen=1, ready=3, updated=3), False),
        (_workload(generation=2, seen=2, ready=2, updated=3), False),
        (_workload(generation=2, seen=2, ready=3, updated=1), False),
    ],
)
def test_a_workload_is_ready_when_all_pods_of_its_newest_form_are(workload: SimpleNamespace, is_ready: bool) -> None:
    assert _is_set_ready(workload) is is_ready


def test_a_pod_without_conditions_is_not_ready() -> None:
    assert not _is_ready(SimpleNamespace(status=SimpleNamespace(conditions=None)))


def test_a_kubernetes_that_accepts_calls_and_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emulator.kubernetes.REQUEST_S", 0.02)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        cluster = Cluster.__new__(Cluster)
        api = client.ApiClient(client.Configuration(host=f"http://127.0.0.1:{silent.getsockname()[1]}"))
        cluster.namespace, cluster._core = "default", client.CoreV1Api(api)
        with pytest.raises(AddressError, match="does not answer"), cluster._answering():
            cluster._watch_briefly("app.kubernetes.io/instance=run")
