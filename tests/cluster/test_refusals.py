"""What cannot work ends in a message that a person can act on."""

from pathlib import Path

from tests.cluster.conftest import Lab


def test_an_unknown_value_is_refused_by_name(lab: Lab) -> None:
    said = lab.up("experiments/digits.yaml", {"devicez": {"replicas": 3}}, code=2)
    assert "devicez" in said


def test_replicas_that_contradict_the_experiment_are_refused(lab: Lab) -> None:
    said = lab.up("experiments/digits.yaml", {"device": {"replicas": 3}}, code=2)
    assert "device.replicas is 3" in said
    assert "10" in said


def test_a_missing_image_is_named(lab: Lab) -> None:
    values = {"lps": {"image": {"tag": "no-such-tag"}}}
    said = lab.up("experiments/digits.yaml", values, sets=("method.clusters=3",), release="noimage", code=4)
    assert "ErrImageNeverPull" in said or "ImagePull" in said
    assert "no-such-tag" in said
    lab.here("down", release="noimage")


def test_an_experiment_that_is_none_never_reaches_the_cluster(lab: Lab, tmp_path: Path) -> None:
    experiment = tmp_path / "wrong.yaml"
    experiment.write_text("name: wrong\npartition: {kind: tasks, tasks: []}\n")
    assert "partition" in lab.up(experiment, code=2)
    assert lab.pods("gps") == []


def test_more_data_than_there_is_never_reaches_the_cluster(lab: Lab) -> None:
    said = lab.up("experiments/digits.yaml", sets=("partition.tasks.0.examples_per_device=100000",), code=3)
    assert "partition.tasks.0.examples_per_device" in said
    assert lab.pods("gps") == []


def test_a_release_that_is_not_there_is_said_to_be_so(lab: Lab) -> None:
    assert "no GPS pod" in lab.here("status", "--once", release="nobody", code=6)
