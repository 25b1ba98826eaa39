"""Which examples each device owns: a pure function of the experiment, the data set's labels and the device.

All splits are index arithmetic over labels, done once for all devices and kept as long as the data set is;
inputs are copied for the device asked for only. No training example is given to two devices.
"""

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from fedstrata.datasets import Dataset, Examples, Pixels
from fedstrata.errors import DataError, ExperimentError
from fedstrata.experiment import (
    DirichletPartition,
    Experiment,
    IidPartition,
    LocalPartition,
    Partition,
    TaskPartition,
)

Indices = NDArray[np.int64]
Counts = NDArray[np.int64]  # how many examples of each label, shape (num_classes,)

# What a random stream is for. A stream's address is [seed, purpose, label or device index].
TRAIN_ORDER, TEST_ORDER, LABEL_SHARES = 101, 102, 103


@dataclass(frozen=True, kw_only=True)
class DeviceData:
    """What one device owns; `test` may be empty where there are fewer test examples than devices."""

    train: Examples | Pixels
    test: Examples | Pixels


@dataclass(frozen=True, kw_only=True)
class _Assignment:
    """Indices into the training and the test data, one array a device."""

    train: list[Indices]
    test: list[Indices]


class _Stock:
    """The examples of each label in a random order, handed out from the top."""

    def __init__(self, labels: NDArray[np.int64], num_classes: int, address: list[int]) -> None:
        self._piles = [
            np.random.default_rng([*address, label]).permutation(np.flatnonzero(labels == label))
            for label in range(num_classes)
        ]
        self.sizes: Counts = np.array([len(pile) for pile in self._piles], dtype=np.int64)
        self._taken = np.zeros_like(self.sizes)

    @property
    def left(self) -> Counts:
        """Examples of each label that nobody has yet."""
        left: Counts = np.maximum(self.sizes - self._taken, 0)
        return left

    def take(self, counts: Counts) -> Indices:
        """The next `counts` examples of each label, sorted by label; a pile at its end starts over."""
        starts, self._taken = self._taken, self._taken + counts
        rows = zip(self._piles, starts, counts, strict=True)
        return np.concatenate([pile.take(np.arange(start, start + count), mode="wrap") for pile, start, count in rows])


_assignments: WeakKeyDictionary[Dataset, dict[tuple[Partition, int], _Assignment]] = WeakKeyDictionary()


def device_data(experiment: Experiment, dataset: Dataset, device_index: int) -> DeviceData:
    """The examples of one device, the same whichever process asks and whatever was asked before.

    With partition `local` the data set is the device's own folder, and all of it is the device's.

    Raises:
        ExperimentError: there is no such device, or a task asks for a label that the data set does not have.
        DataError: the data set holds less than the partition asks for.
    """
    if not 0 <= device_index < experiment.device_count:
        raise ExperimentError(f"device {device_index} is not one of 0 to {experiment.device_count - 1}")
    if isinstance(experiment.partition, LocalPartition):
        train, test = np.arange(len(dataset.train)), np.arange(len(dataset.test))
    else:
        assignment = _assignment(experiment, dataset)
        train, test = (np.sort(part[device_index]) for part in (assignment.train, assignment.test))
    return DeviceData(train=dataset.train.part(train), test=dataset.test.part(test))


def check_partition(experiment: Experiment, dataset: Dataset) -> None:
    """Raise what `device_data` would for its data, before any device starts."""
    if not isinstance(experiment.partition, LocalPartition):
        _assignment(experiment, dataset)


def _assignment(experiment: Experiment, dataset: Dataset) -> _Assignment:
    """Computed once for a data set, partition and seed; forgotten with the data set."""
    known = _assignments.setdefault(dataset, {})
    key = (experiment.partition, experiment.seed)
    if key not in known:
        known[key] = _assign(experiment.partition, dataset, experiment.seed)
    return known[key]


def _assign(partition: Partition, dataset: Dataset, seed: int) -> _Assignment:
    match partition:
        case TaskPartition():
            return _by_task(partition, dataset, seed)
        case DirichletPartition():
            return _by_dirichlet(partition, dataset, seed)
        case IidPartition():
            return _alike(partition, dataset, seed)
        case LocalPartition():
            raise ExperimentError("partition.kind local: each device has a data set of its own, none is split")


# --- tasks -------------------------------------------------------------------------------------------------


def _by_task(partition: TaskPartition, dataset: Dataset, seed: int) -> _Assignment:
    """Most examples from the device's own task, a minority from the others; tests from its own task only.

    All own parts are set aside first. Examples lie sorted by label and are dealt like cards, so that devices
    of a task differ by at most one example of a label in their own part, and likewise in their minority.
    """
    _check_labels(partition, dataset.num_classes)
    stock = _Stock(dataset.train.labels, dataset.num_classes, [seed, TRAIN_ORDER])
    own = [stock.take(counts) for counts in _own_counts(partition, stock.left)]
    foreign = [stock.take(counts) for counts in _minority_counts(partition, stock.left)]
    held_out = _Stock(dataset.test.labels, dataset.num_classes, [seed, TEST_ORDER])
    train: list[Indices] = []
    test: list[Indices] = []
    for index, task in enumerate(partition.tasks):
        test_deck = held_out.take(np.where(_labels_of(partition, dataset.num_classes) == index, held_out.sizes, 0))
        for seat in range(task.devices):
            hand = own[index][seat :: task.devices], foreign[index][seat :: task.devices]
            train.append(np.concatenate(hand))
            test.append(test_deck[seat :: task.devices])
    return _Assignment(train=train, test=test)


def _labels_of(partition: TaskPartition, num_classes: int) -> NDArray[np.int64]:
    """For each label the index of its task, or −1."""
    owner = np.full(num_classes, -1, dtype=np.int64)
    for index, task in enumerate(partition.tasks):
        owner[list(task.labels)] = index
    return owner


def _minority_sizes(partition: TaskPartition) -> list[int]:
    """For each task, how many of a device's examples are from other tasks."""
    if len(partition.tasks) == 1:
        return [0]
    return [round(task.examples_per_device * partition.minority_ratio) for task in partition.tasks]


def _own_counts(partition: TaskPartition, left: Counts) -> list[Counts]:
    """For each task, what all its devices take of its own labels, as level as the data allow."""
    owner, counts = _labels_of(partition, len(left)), []
    for index, (task, minority) in enumerate(zip(partition.tasks, _minority_sizes(partition), strict=True)):
        available = np.where(owner == index, left, 0)
        own = task.examples_per_device - minority
        if task.devices * own > available.sum():
            raise DataError(
                f"task {task.name} asks for {task.devices} x {own} examples of labels {list(task.labels)}; "
                f"the training data has {available.sum()}: lower partition.tasks.{index}.examples_per_device"
            )
        counts.append(_level(task.devices * own, available))
    return counts


def _minority_counts(partition: TaskPartition, left: Counts) -> list[Counts]:
    """For each task, what all its devices take of the other tasks' labels, as level as the data allow.

    A task may use every label but its own. So where examples are scarce, the first to choose must leave what a
    later task can use, which is to say, must take some of the later task's own labels (`owed`). With that, all
    tasks are served whenever any assignment serves them (Hall's theorem); `_check_minority` refuses the rest.
    """
    owner = _labels_of(partition, len(left))
    left = np.where(owner >= 0, left, 0)
    pairs = zip(partition.tasks, _minority_sizes(partition), strict=True)
    demands = [task.devices * minority for task, minority in pairs]
    _check_minority(partition, demands, left, owner)
    counts = []
    for index, demand in enumerate(demands):
        taken = np.zeros_like(left)
        for later in range(index + 1, len(demands)):
            stock = np.where(owner == later, left, 0)
            owed = demand + demands[later] + stock.sum() - left.sum()
            taken += _level(max(0, int(owed)), stock)
        taken += _level(demand - int(taken.sum()), np.where(owner == index, 0, left - taken))
        left = left - taken
        counts.append(taken)
    return counts


def _check_labels(partition: TaskPartition, num_classes: int) -> None:
    for index, task in enumerate(partition.tasks):
        if max(task.labels) >= num_classes:
            raise ExperimentError(
                f"partition.tasks.{index}.labels: the data set has no label {max(task.labels)}; "
                f"its labels go from 0 to {num_classes - 1}"
            )


def _check_minority(partition: TaskPartition, demands: list[int], left: Counts, owner: NDArray[np.int64]) -> None:
    for index, (task, demand) in enumerate(zip(partition.tasks, demands, strict=True)):
        others = left[owner != index].sum()
        if demand > others:
            raise DataError(
                f"task {task.name} asks for {task.devices} x {demand // task.devices} minority examples; the "
                f"other tasks leave {others}: lower partition.minority_ratio or their examples_per_device"
            )
    if sum(demands) > left.sum():
        raise DataError(
            f"the tasks ask for {sum(demands)} minority examples; their own parts leave {left.sum()} of the "
            "training data: lower partition.minority_ratio or examples_per_device"
        )


def _level(total: int, available: Counts) -> Counts:
    """Counts that sum to `total`, as equal as `available` allows; it must hold that many."""
    counts = np.zeros_like(available)
    while total > 0:
        has_more = np.flatnonzero(available > counts)
        share = max(1, total // len(has_more))
        step = np.minimum(share, (available - counts)[has_more[:total]])
        counts[has_more[:total]] += step
        total -= int(step.sum())
    return counts


# --- Dirichlet ---------------------------------------------------------------------------------------------


def _by_dirichlet(partition: DirichletPartition, dataset: Dataset, seed: int) -> _Assignment:
    """Label shares of each device drawn from Dirichlet(concentration), and its examples by those shares.

    After T.-M. H. Hsu, H. Qi and M. Brown, Measuring the Effects of Non-Identical Data Distribution for
    Federated Visual Classification, 2019, with a uniform prior over labels. Devices draw in index order,
    without replacement; when a label has run out, its share falls to the device's remaining labels in
    proportion.
    """
    _check_total(partition, len(dataset.train))
    stock = _Stock(dataset.train.labels, dataset.num_classes, [seed, TRAIN_ORDER])
    train = []
    for device_index in range(partition.devices):
        rng = np.random.default_rng([seed, LABEL_SHARES, device_index])
        shares = rng.dirichlet(np.full(dataset.num_classes, partition.concentration))
        train.append(stock.take(_drawn(rng, partition.examples_per_device, shares, stock.left)))
    return _Assignment(train=train, test=_tests_like(train, dataset, seed))


def _drawn(rng: np.random.Generator, total: int, shares: NDArray[np.float64], left: Counts) -> Counts:
    """How many of each label come up in `total` draws by `shares` from what is `left`."""
    counts = np.zeros_like(left)
    while (missing := total - int(counts.sum())) > 0:
        more = left - counts
        weights = np.where(more > 0, shares, 0.0)
        if weights.sum() == 0:  # all the labels this device has a share of have run out
            weights = more.astype(np.float64)
        counts += np.minimum(rng.multinomial(missing, weights / weights.sum()), more)
    return counts


def _tests_like(train: list[Indices], dataset: Dataset, seed: int) -> list[Indices]:
    """For each device, an even share of the test examples in number, in the proportions of its training labels.

    Devices get different ones until a label's are used up; then those are given out again, so that a device
    is tested on what it has learnt. None gets an example twice; one whose labels have too few test examples
    gets fewer.
    """
    stock = _Stock(dataset.test.labels, dataset.num_classes, [seed, TEST_ORDER])
    share = max(1, len(dataset.test) // len(train))
    tests = []
    for indices in train:
        held = np.bincount(dataset.train.labels[indices], minlength=dataset.num_classes)
        tests.append(stock.take(np.minimum(_apportioned(share, np.where(stock.sizes > 0, held, 0)), stock.sizes)))
    return tests


def _apportioned(total: int, weights: Counts) -> Counts:
    """Counts that sum to `total` in proportion to `weights`, by largest remainders; zeros for no weights."""
    if not weights.sum():
        return np.zeros_like(weights)
    counts, remainders = np.divmod(total * weights, weights.sum())
    largest = np.argsort(-remainders, kind="stable")[: total - int(counts.sum())]
    counts[largest] += 1
    return counts


# --- IID ---------------------------------------------------------------------------------------------------


def _alike(partition: IidPartition, dataset: Dataset, seed: int) -> _Assignment:
    """Disjoint uniform draws for training; the test examples are shared out evenly."""
    _check_total(partition, len(dataset.train))
    total = partition.devices * partition.examples_per_device
    drawn = np.random.default_rng([seed, TRAIN_ORDER]).permutation(len(dataset.train))[:total]
    held_out = np.random.default_rng([seed, TEST_ORDER]).permutation(len(dataset.test))
    return _Assignment(
        train=list(drawn.reshape(partition.devices, partition.examples_per_device)),
        test=[held_out[index :: partition.devices] for index in range(partition.devices)],
    )


def _check_total(partition: DirichletPartition | IidPartition, available: int) -> None:
    if partition.devices * partition.examples_per_device > available:
        raise DataError(
            f"the partition asks for {partition.devices} x {partition.examples_per_device} examples; the "
            f"training data has {available}: lower partition.devices or partition.examples_per_device"
        )
