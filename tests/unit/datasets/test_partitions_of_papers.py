"""Partitions of papers, index by index, against a second implementation of each paper's rule."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fedstrata.datasets import Dataset
from fedstrata.errors import DataError, ExperimentError
from tests.support.splits import all_devices, experiment, numbered

SEEDS = range(10)
EVEN, ODD = [120] * 10, [200, 3, 150, 0, 90, 1, 250, 40, 130, 36]
Owned = list[list[int]]


def data(counts: list[int]) -> Dataset:
    return numbered(counts, [5] * len(counts))


def found(dataset: Dataset, seed: int, **partition: Any) -> Owned:
    """The sorted indices of each device's training examples: the input of an example is its index."""
    devices = all_devices(experiment(partition, seed), dataset)
    return [[int(value) for value in device.train.inputs[:, 0]] for device in devices]


def of_label(dataset: Dataset, label: int) -> list[int]:
    return [index for index, each in enumerate(dataset.train.labels) if each == label]


def shuffled(dataset: Dataset, label: int, seed: int) -> list[int]:
    return list(np.random.default_rng([seed, 101, label]).permutation(of_label(dataset, label)))


def in_order(owned: Sequence[Sequence[int]]) -> Owned:
    return [sorted(map(int, each)) for each in owned]


# --- label_dirichlet ---------------------------------------------------------------------------------------


def of_niid_bench(
    dataset: Dataset, seed: int, devices: int, beta: float, minimum: int, *, capped: bool = True
) -> Owned:
    """`noniid-labeldir` of NIID-Bench: a label is cut at the cumulated shares, and the whole is drawn until it fits."""
    total, draw = len(dataset.train), 0
    while True:
        rng = np.random.default_rng([seed, 0x6C646972, draw])
        owned: Owned = [[] for _ in range(devices)]
        for label in range(10):
            order = shuffled(dataset, label, seed)
            shares = rng.dirichlet(np.repeat(beta, devices))
            if capped:
                open_to = [len(each) < total / devices for each in owned]
                shares = np.array([share * is_open for share, is_open in zip(shares, open_to, strict=True)])
                if shares.sum() == 0:
                    shares = np.array(open_to if any(open_to) else [True] * devices, np.float64)
            cuts = (np.cumsum(shares / shares.sum()) * len(order)).astype(int)
            begin = 0
            for device in range(devices):
                end = len(order) if device == devices - 1 else cuts[device]
                owned[device] += order[begin:end]
                begin = end
        if min(map(len, owned)) >= minimum:
            return in_order(owned)
        draw += 1


@pytest.mark.parametrize("counts", [EVEN, ODD], ids=["even", "odd"])
@pytest.mark.parametrize(("beta", "devices", "minimum"), [(0.1, 5, 10), (0.5, 20, 10), (1e3, 12, 1), (1e-3, 4, 1)])
@pytest.mark.parametrize("capped", [True, False])
def test_label_dirichlet_is_that_of_niid_bench(
    counts: list[int], beta: float, devices: int, minimum: int, *, capped: bool
) -> None:
    dataset = data(counts)
    for seed in SEEDS:
        owned = found(
            dataset, seed, kind="label_dirichlet", devices=devices, concentration=beta, minimum=minimum, capped=capped
        )
        assert owned == of_niid_bench(dataset, seed, devices, beta, minimum, capped=capped)
        assert sorted(index for each in owned for index in each) == list(range(len(dataset.train)))


def test_a_small_concentration_gives_a_label_to_one_device_and_a_large_one_to_all_alike() -> None:
    dataset = data(EVEN)
    for beta, most in ((1e-3, range(118, 121)), (1e6, range(28, 34))):
        owned = found(dataset, 3, kind="label_dirichlet", devices=4, concentration=beta, minimum=1, capped=False)
        counts = [np.bincount(dataset.train.labels[each], minlength=10) for each in owned]
        assert {int(of_label) for of_label in np.max(counts, axis=0)} <= {*most}


@pytest.mark.parametrize(
    ("kind", "counts", "keys"),
    [
        ("label_dirichlet", [30, 20], {"devices": 51, "minimum": 1}),
        ("label_dirichlet", EVEN, {"devices": 60, "concentration": 1e-3}),
        ("quantity", [30, 20], {"devices": 51, "minimum": 1}),
        ("quantity", EVEN, {"devices": 60, "concentration": 1e-3}),
    ],
)
def test_a_minimum_that_no_draw_gives_is_told_with_the_keys_to_change(
    kind: str, counts: list[int], keys: dict[str, Any]
) -> None:
    with pytest.raises(DataError, match=r"were not divided among \d\d devices .* lower partition.minimum or "):
        found(data(counts), 3, kind=kind, **keys)


# --- quantity ----------------------------------------------------------------------------------------------


def of_quantity_skew(dataset: Dataset, seed: int, devices: int, beta: float, minimum: int) -> Owned:
    """`iid-diff-quantity` of NIID-Bench, with the minimum of whole examples."""
    order = list(np.random.default_rng([seed, 101]).permutation(len(dataset.train)))
    for draw in range(1000):
        shares = np.random.default_rng([seed, 0x7174736B, draw]).dirichlet(np.repeat(beta, devices))
        cuts = [0, *(np.cumsum(shares / shares.sum()) * len(order)).astype(int)[:-1], len(order)]
        owned = [order[cuts[device] : cuts[device + 1]] for device in range(devices)]
        if min(map(len, owned)) >= minimum:
            return in_order(owned)
    raise AssertionError


@pytest.mark.parametrize(("beta", "devices", "minimum"), [(0.5, 8, 10), (5, 30, 1), (1e3, 12, 70), (1e-3, 1, 10)])
def test_quantity_is_the_skew_of_niid_bench(beta: float, devices: int, minimum: int) -> None:
    for seed in SEEDS:
        owned = found(data(ODD), seed, kind="quantity", devices=devices, concentration=beta, minimum=minimum)
        assert owned == of_quantity_skew(data(ODD), seed, devices, beta, minimum)


# --- shards ------------------------------------------------------------------------------------------------


def of_fedavg(dataset: Dataset, seed: int, devices: int, each: int) -> Owned:
    """Section 3 of the paper: sorted by label, cut into shards, some for each device; the first are longer by one."""
    ordered = [index for label in range(10) for index in of_label(dataset, label)]
    number = devices * each
    sizes = [len(ordered) // number + (shard < len(ordered) % number) for shard in range(number)]
    shards = [ordered[sum(sizes[:shard]) : sum(sizes[: shard + 1])] for shard in range(number)]
    seats = list(np.random.default_rng([seed, 0x73687264]).permutation(number))
    return in_order(
        [
            [index for shard in seats[device * each : (device + 1) * each] for index in shards[shard]]
            for device in range(devices)
        ]
    )


@pytest.mark.parametrize("counts", [EVEN, ODD], ids=["even", "odd"])
@pytest.mark.parametrize(("devices", "each"), [(10, 2), (7, 3), (450, 2), (1, 1)])
def test_shards_are_those_of_the_paper_about_fedavg(counts: list[int], devices: int, each: int) -> None:
    for seed in SEEDS:
        owned = found(data(counts), seed, kind="shards", devices=devices, shards_per_device=each)
        assert owned == of_fedavg(data(counts), seed, devices, each)


def test_with_the_papers_numbers_a_device_has_at_most_two_labels() -> None:
    dataset = data([60] * 10)
    owned = found(dataset, 1, kind="shards", devices=100)
    assert {len(each) for each in owned} == {6}
    assert {len(set(dataset.train.labels[each])) for each in owned} == {1, 2}


def test_more_shards_than_examples_are_refused() -> None:
    with pytest.raises(DataError, match=r"needs 26 x 2 shards, but the training data has 50 examples; lower "):
        found(data([30, 20]), 3, kind="shards", devices=26)


# --- label_quantity ----------------------------------------------------------------------------------------


def of_number_of_labels(dataset: Dataset, seed: int, devices: int, number: int) -> Owned:
    """`noniid-#label` of NIID-Bench: label i mod 10 and random others, each divided evenly among its devices."""
    labels = []
    for device in range(devices):
        others = [label for label in range(10) if label != device % 10]
        drawn = np.random.default_rng([seed, 0x6C717479, device]).permutation(others)
        labels.append({device % 10, *drawn[: number - 1]})
    owned: Owned = [[] for _ in range(devices)]
    for label in range(10):
        holders = [device for device in range(devices) if label in labels[device]]
        order = shuffled(dataset, label, seed)
        for part, device in zip(np.array_split(order, max(1, len(holders))), holders, strict=False):
            owned[device] += list(part)
    return in_order(owned)


@pytest.mark.parametrize("counts", [EVEN, ODD], ids=["even", "odd"])  # nine devices share three examples of a label
@pytest.mark.parametrize(("devices", "number"), [(3, 2), (12, 9), (15, 10), (20, 6)])
def test_label_quantity_is_that_of_niid_bench(counts: list[int], devices: int, number: int) -> None:
    for seed in SEEDS:
        owned = found(data(counts), seed, kind="label_quantity", devices=devices, labels_per_device=number)
        assert owned == of_number_of_labels(data(counts), seed, devices, number)


def test_twenty_devices_with_two_labels_each_have_all_examples_of_even_labels() -> None:
    owned = found(data(EVEN), 1, kind="label_quantity", devices=20)
    assert {len(set(data(EVEN).train.labels[each])) for each in owned} == {2}
    assert sorted(index for each in owned for index in each) == list(range(1200))
    assert owned == of_number_of_labels(data(EVEN), 1, 20, 2)


def test_devices_that_share_a_label_with_too_few_examples_are_told() -> None:
    with pytest.raises(DataError, match="the labels of device 2 have fewer examples than devices"):
        found(data([1, 30]), 3, kind="label_quantity", devices=4, labels_per_device=1)


def test_more_labels_than_there_are_are_refused() -> None:
    with pytest.raises(ExperimentError, match=r"labels_per_device is 3, but there are 2 labels; lower it"):
        found(data([30, 30]), 3, kind="label_quantity", devices=4, labels_per_device=3)


# --- pathological ------------------------------------------------------------------------------------------


def of_pfllib(dataset: Dataset, seed: int, devices: int, number: int, *, balanced: bool) -> Owned:
    """`pat` of PFLlib, least_samples 40: labels in turn go to the first devices that lack labels."""
    rng = np.random.default_rng([seed, 0x70617468])
    lacking, owned = dict.fromkeys(range(devices), number), {device: list[int]() for device in range(devices)}
    for label in range(10):
        chosen = [device for device in range(devices) if lacking[device]][: -(-devices * number // 10)]
        if not chosen:
            break
        order = shuffled(dataset, label, seed)
        even = int(len(order) / len(chosen))
        if balanced:
            sizes = [even] * (len(chosen) - 1)
        else:
            low = min(even, int(max(len(order) / len(chosen) / 10, 4)))
            sizes = list(rng.integers(low, max(even, low + 1), len(chosen) - 1))
        for device, size in zip(chosen, [*sizes, len(order)], strict=True):
            owned[device] += order[:size]
            order = order[size:]
            lacking[device] -= 1
    return in_order(list(owned.values()))


@pytest.mark.parametrize("counts", [EVEN, ODD], ids=["even", "odd"])  # of the odd labels, one has no example
@pytest.mark.parametrize(("devices", "number"), [(5, 2), (4, 3), (20, 5), (10, 10), (7, 4)])
@pytest.mark.parametrize("balanced", [True, False])
def test_pathological_is_that_of_pfllib(counts: list[int], devices: int, number: int, *, balanced: bool) -> None:
    for seed in SEEDS:
        keys = {"kind": "pathological", "devices": devices, "labels_per_device": number, "balanced": balanced}
        owned = found(data(counts), seed, **keys)
        assert owned == of_pfllib(data(counts), seed, devices, number, balanced=balanced)
        assert len({index for each in owned for index in each}) == sum(map(len, owned))  # no example is used twice


def test_twenty_devices_have_two_labels_of_sixty_examples_each_if_balanced() -> None:
    """Each of ten labels of 240 goes to four devices."""
    owned = found(data([240] * 10), 1, kind="pathological", devices=20, balanced=True)
    labels = [np.bincount(data([240] * 10).train.labels[each], minlength=10) for each in owned]
    assert [sorted(of_device)[-2:] for of_device in labels] == [[60, 60]] * 20
    assert [*np.flatnonzero(labels[0]), *np.flatnonzero(labels[4])] == [0, 1, 2, 3]


def test_the_last_device_of_pathological_can_have_fewer_labels() -> None:
    """Seven devices with four labels each, ten labels of three devices: the last gets what the other six leave."""
    owned = found(data([240] * 10), 1, kind="pathological", devices=7, labels_per_device=4)
    assert [len(set(data([240] * 10).train.labels[each])) for each in owned] == [4] * 6 + [2]


def test_a_device_for_which_no_example_is_left_is_told() -> None:
    with pytest.raises(DataError, match=r"no example is left for device \d+: .* lower partition.devices or "):
        found(data([3] * 10), 3, kind="pathological", devices=40, balanced=True)


def test_more_labels_than_there_are_are_refused_by_pathological() -> None:
    with pytest.raises(ExperimentError, match=r"labels_per_device is 3, but there are 2 labels; lower it"):
        found(data([30, 30]), 3, kind="pathological", devices=4, labels_per_device=3)


@pytest.mark.parametrize("kind", ["label_dirichlet", "quantity", "shards", "label_quantity", "pathological"])
def test_devices_are_tested_on_the_labels_that_they_train_on(kind: str) -> None:
    for device in all_devices(experiment({"kind": kind, "devices": 5}), data(EVEN)):
        assert set(device.test.labels) <= set(device.train.labels)
        assert 0 < len(device.test) <= 10
