"""The values that `fedstrata up` gives the chart."""

import os
from pathlib import Path

import pytest

from emulator.cluster.chart_values import load_values, merge_values, value_of, with_code, with_lps_count, with_memory
from emulator.cluster.up import load_for_cluster
from emulator.shipped.share import CHART
from fedstrata.errors import ExperimentError

DIGITS = Path(__file__).resolve().parents[3] / "experiments" / "digits.yaml"


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


def test_a_values_file_that_does_not_end_or_is_nested_too_deep_is_refused(tmp_path: Path) -> None:
    pipe, deep = tmp_path / "pipe.yaml", tmp_path / "deep.yaml"
    os.mkfifo(pipe)
    with pytest.raises(ExperimentError, match=r"cannot read the values file .*pipe or a device"):
        load_values(pipe)
    with pytest.raises(ExperimentError, match=r"--code .*pipe or a device"):
        with_code({}, [pipe])
    deep.write_text("a: " + 5000 * "[", encoding="utf-8")
    with pytest.raises(ExperimentError, match=r"cannot read the values file .*deep\.yaml"):
        load_values(deep)


def test_a_date_in_a_values_file_is_text_as_for_helm(tmp_path: Path) -> None:
    path = tmp_path / "values.yaml"
    path.write_text("gps: {podAnnotations: {since: 2026-01-31}}\n")
    assert load_values(path) == value_of("gps.podAnnotations.since=2026-01-31", {})
    assert load_values(path) == {"gps": {"podAnnotations": {"since": "2026-01-31"}}}


def test_a_single_value_is_given_as_in_a_values_file() -> None:
    defaults = load_values(CHART / "values.yaml")
    assert value_of("device.devicesPerPod=5", defaults) == {"device": {"devicesPerPod": 5}}
    assert value_of("lps.nodeSelector.tier=edge", defaults) == {"lps": {"nodeSelector": {"tier": "edge"}}}
    assert value_of("image.tag=1.10", defaults) == {"image": {"tag": "1.10"}}
    for text in ("device", "=5", "a..b=1", "a=["):
        with pytest.raises(ExperimentError, match="--set-value"):
            value_of(text, {})


@pytest.mark.parametrize(
    ("overrides", "known"),
    [
        (["method=fedavg"], 1),
        (["method={name: ifca, clusters: 3}"], 1),
        (["method={name: one_shot, clusters: 2}"], 2),
        (["method=one_shot"], None),
        (["method=oracle"], 3),
        (["method={name: user_centric, streams: 2}", "training.lps_rounds_per_global_round=1"], 2),
        (["method=one_shot", "topology={lps: 4}"], 4),
    ],
)
def test_the_chart_is_told_how_many_lpss_the_experiment_needs(overrides: list[str], known: int | None) -> None:
    experiment = load_for_cluster(DIGITS, overrides, None)
    values = with_lps_count({"lps": {"replicas": 7, "env": []}}, {}, experiment)
    assert values == {"lps": {"replicas": known, "env": []}}


def test_pods_are_given_the_memory_that_the_experiment_needs_unless_told_otherwise() -> None:
    experiment = load_for_cluster(DIGITS, ["model.hidden=[100000]"], None)  # 7.5 million weights, 28.6 MiB
    found = with_memory({"device": {"memoryMi": {"pod": 1, "device": 1}, "devicesPerPod": 2}}, {}, experiment, None)
    memory = found["device"]["memoryMi"]
    assert found["device"]["devicesPerPod"] == 2
    assert 339 < memory["pod"] < 400
    assert 5.5 * 28 < memory["device"] < 6 * 29
    assert 96 + 2.5 * 28 < found["lps"]["memoryMi"]["pod"] < 96 + 2.5 * 29 + 1
    asked = {"device": {"memoryMi": {"device": 50}}}
    assert with_memory(asked, asked, experiment, None)["device"]["memoryMi"] == {"pod": memory["pod"], "device": 50}
    assert with_memory({"device": 3}, {}, experiment, None) == {"device": 3}


def test_files_of_own_code_go_to_the_chart_in_place_of_earlier_ones(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("A = 1\n")
    earlier = {"code": {"files": {"old.py": "B = 2\n"}, "image": "x"}, "gps": {}}
    assert with_code(earlier, [path]) == {"code": {"files": {"mine.py": "A = 1\n"}}, "gps": {}}
    assert with_code(earlier, []) == earlier


def test_own_code_that_cannot_be_sent_is_refused(tmp_path: Path) -> None:
    (tmp_path / "large.py").write_text("#" * 1_000_001)
    (tmp_path / "my-code.py").write_text("")
    (tmp_path / "bytes.py").write_bytes(b"\xff")
    wrong = {
        "large.py": "more than the 1,000,000",
        "bytes.py": "cannot be read as text",
        "none.py": "cannot be read",
        "my-code.py": "rename",
    }
    for name, message in wrong.items():
        with pytest.raises(ExperimentError, match=message):
            with_code({}, [tmp_path / name])
    (tmp_path / "other").mkdir()
    same = [tmp_path / "twice.py", tmp_path / "other" / "twice.py"]
    for path in same:
        path.write_text(f"# {path}")
    with pytest.raises(ExperimentError, match="another file has the same name"):
        with_code({}, same)


def test_another_number_of_lpss_than_the_experiment_makes_is_refused() -> None:
    experiment = load_for_cluster(DIGITS, ("method.clusters=3",), None)
    asked = {"lps": {"replicas": 2}}
    with pytest.raises(ExperimentError, match=r"lps\.replicas is 2, but experiment digits needs 3"):
        with_lps_count(asked, asked, experiment)
    with pytest.raises(ExperimentError, match=r"lps\.replicas is \[3\]"):
        with_lps_count({}, {"lps": {"replicas": [3]}}, experiment)
    unknown = load_for_cluster(DIGITS, (), None)
    assert with_lps_count(asked, asked, unknown) == asked
    assert with_lps_count({"lps": 3}, {"lps": 3}, unknown) == {"lps": 3}
