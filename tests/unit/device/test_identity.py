"""Which devices a process hosts: by index, by name, or by its pod's ordinal."""

import pytest

from device.identity import device_indexes, parse_indexes
from fedstrata.errors import ExperimentError
from fedstrata.experiment_file import parse_experiment

TEN = parse_experiment("{name: ten, partition: {kind: iid, devices: 10, examples_per_device: 5}}")
BOARDS = parse_experiment(
    "{name: boards, data: {name: folder, input_shape: [4], num_classes: 2}, "
    "partition: {kind: local, names: [kitchen, garage]}}"
)


@pytest.mark.parametrize(
    ("text", "indexes"),
    [("3", [3]), ("0-3", [0, 1, 2, 3]), ("0-2,7", [0, 1, 2, 7]), ("7, 1-2", [1, 2, 7]), ("1-3,2-4", [1, 2, 3, 4])],
)
def test_indexes_are_ranges_and_numbers(text: str, indexes: list[int]) -> None:
    assert parse_indexes(text) == indexes


@pytest.mark.parametrize("text", ["", "a", "-1", "1-", "1--2", "1;2", "1,", "1-2-3", "9999999"])
def test_what_is_no_index_is_refused(text: str) -> None:
    with pytest.raises(ExperimentError, match="takes indexes such as 0-3,7"):
        parse_indexes(text)


@pytest.mark.parametrize("text", ["10", "0-10", "5-4"])
def test_a_device_that_the_experiment_does_not_have_is_refused(text: str) -> None:
    with pytest.raises(ExperimentError, match="the experiment has devices 0 to 9"):
        device_indexes(TEN, text, None)


def test_a_board_is_found_by_its_name() -> None:
    assert device_indexes(BOARDS, None, "garage") == [1]
    with pytest.raises(ExperimentError, match="no device is called 'attic'; the experiment has kitchen, garage"):
        device_indexes(BOARDS, None, "attic")


@pytest.mark.parametrize(
    ("pod_name", "per_pod", "indexes"),
    [("run-device-0", "1", [0]), ("run-device-2", "4", [8, 9]), ("device-1", "3", [3, 4, 5])],
)
def test_a_pod_hosts_the_devices_of_its_ordinal(
    monkeypatch: pytest.MonkeyPatch, pod_name: str, per_pod: str, indexes: list[int]
) -> None:
    monkeypatch.setenv("FEDSTRATA_POD_NAME", pod_name)
    monkeypatch.setenv("FEDSTRATA_DEVICES_PER_POD", per_pod)
    assert device_indexes(TEN, None, None) == indexes


def test_one_device_a_pod_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSTRATA_POD_NAME", "device-6")
    monkeypatch.delenv("FEDSTRATA_DEVICES_PER_POD", raising=False)
    assert device_indexes(TEN, None, None) == [6]


@pytest.mark.parametrize(("pod_name", "per_pod"), [("", "1"), ("device", "1"), ("device-1", "0"), ("device-1", "²")])
def test_without_any_word_of_who_it_is_a_process_does_not_start(
    monkeypatch: pytest.MonkeyPatch, pod_name: str, per_pod: str
) -> None:
    monkeypatch.setenv("FEDSTRATA_POD_NAME", pod_name)
    monkeypatch.setenv("FEDSTRATA_DEVICES_PER_POD", per_pod)
    with pytest.raises(ExperimentError, match="give --devices or --device-name, or set FEDSTRATA_POD_NAME"):
        device_indexes(TEN, None, None)


def test_a_pod_beyond_the_last_device_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSTRATA_POD_NAME", "device-10")
    monkeypatch.setenv("FEDSTRATA_DEVICES_PER_POD", "1")
    with pytest.raises(ExperimentError, match="the experiment has devices 0 to 9"):
        device_indexes(TEN, None, None)
