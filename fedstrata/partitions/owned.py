"""The examples that each device owns. They depend only on the experiment, the labels or columns of the data set, and
the device's index.

Splits compute with indices and labels, never with inputs. The split is made once for all devices, and is kept as long
as the data set is in memory. Only the inputs of the requested device are copied. No two devices own the same training
example.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from fedstrata.datasets import Dataset, Examples
from fedstrata.errors import DataError, ExperimentError, PluginError
from fedstrata.experiment import Experiment
from fedstrata.experiment.sections import PLUGIN
from fedstrata.partitions.assignment import Assignment
from fedstrata.partitions.base import Partition
from fedstrata.partitions.local_data import LocalPartition
from fedstrata.partitions.set_aside import own_tests, with_set_aside
from fedstrata.partitions.shifts import GroupShift, Place, Shift
from fedstrata.partitions.stock import no_indices
from fedstrata.plugins import or_failed


@dataclass(frozen=True, kw_only=True)
class DeviceData:
    """Hold the data of one device. `test` may be empty if there are fewer test examples than devices."""

    train: Examples
    test: Examples


@dataclass(frozen=True, kw_only=True, eq=False)
class PublicData:
    """Hold examples that no device owns: inputs (n, *input_shape), and labels (n,) if devices may know them."""

    inputs: NDArray[np.float32]
    labels: NDArray[np.int64] | None


_assignments: WeakKeyDictionary[Dataset, dict[tuple[Partition, int], Assignment]] = WeakKeyDictionary()


def device_data(experiment: Experiment, dataset: Dataset, device_index: int) -> DeviceData:
    """Return the examples of one device. The result does not depend on the process or on earlier calls.

    With partition `local` the data set is the device's own folder, and the device owns all of it.

    Raises:
        ExperimentError: there is no such device, or a task asks for a label that the data set does not have.
        DataError: the data set has fewer examples than the partition needs.
    """
    if not 0 <= device_index < experiment.device_count:
        raise ExperimentError(f"device {device_index} is not one of 0 to {experiment.device_count - 1}")
    if isinstance(experiment.partition, LocalPartition):
        return _of_board(experiment.partition, dataset, experiment.seed, device_index)
    assignment = _assignment(experiment, dataset)
    trained, tested = np.sort(assignment.train[device_index]), np.sort(assignment.test[device_index])
    train = dataset.train.part(trained)
    held_out = dataset.train if assignment.tests_on_training_data else dataset.test
    test = held_out.part(tested)
    if assignment.shifts is None:
        return DeviceData(train=train, test=test)
    shift = assignment.shifts[device_index]
    return DeviceData(
        train=shift.apply(train, Place(indices=trained, is_training_data=True)),
        test=shift.apply(test, Place(indices=tested, is_training_data=assignment.tests_on_training_data)),
    )


def _of_board(partition: LocalPartition, dataset: Dataset, seed: int, device_index: int) -> DeviceData:
    """Return all examples in the device's own folder, divided into training and test examples.

    Raises:
        DataError: the folder has no tests and `test_share` is not set. Or it has tests and `test_share` is also set.
    """
    everything = np.arange(len(dataset.train))
    if (partition.test_share is None) != bool(len(dataset.test)):
        raise DataError(
            "this device's folder has test examples, and partition.test_share is set, too; remove one of them"
            if len(dataset.test)
            else "this device's folder has no test examples; add some, or set partition.test_share"
        )
    if partition.test_share is None:
        return DeviceData(train=dataset.train.part(everything), test=dataset.test.part(np.arange(len(dataset.test))))
    train, test = (np.sort(each) for each in own_tests(partition, everything, seed, device_index))
    return DeviceData(train=dataset.train.part(train), test=dataset.train.part(test))


def public_data(experiment: Experiment, dataset: Dataset) -> PublicData:
    """Return the public examples, which no device owns. They are the same for every device.

    Raises:
        ExperimentError: the experiment has no public examples.
        DataError: devices leave fewer examples than the public set needs.
    """
    partition = experiment.partition
    if not isinstance(partition, Partition) or partition.public is None:
        raise ExperimentError("there are no public examples; set their number in partition.public.examples")
    part = dataset.train if partition.public.source == "train" else dataset.test
    if part.more:
        raise ExperimentError(
            "partition.public needs data with one input, and these have further inputs (data.more); remove one of both"
        )
    taken = part.take(np.sort(_assignment(experiment, dataset).public))
    return PublicData(inputs=taken.inputs, labels=taken.labels if partition.public.labelled else None)


def example_counts(experiment: Experiment, dataset: Dataset) -> list[int]:
    """Return the number of training examples of each device. Raises the errors of `device_data`."""
    return [len(examples) for examples in _assignment(experiment, dataset).train]


def held_out_counts(experiment: Experiment, dataset: Dataset) -> list[int]:
    """Return the number of test examples of each device. Raises the errors of `device_data`."""
    return [len(examples) for examples in _assignment(experiment, dataset).test]


def device_shifts(experiment: Experiment, dataset: Dataset) -> Sequence[Shift]:
    """Return the shift of each device, which changes the device's examples. A device with unchanged examples also has a
    shift. Raises the errors of `device_data`.
    """
    return _assignment(experiment, dataset).shifts or [GroupShift()] * experiment.device_count


def label_drift(experiment: Experiment, dataset: Dataset) -> Sequence[float]:
    """Return, for each device, the total variation distance between its label shares and the shares that the partition
    intends. If the partition intends no label shares, return an empty sequence. Raises the errors of `device_data`.
    """
    return _assignment(experiment, dataset).drift


def check_partition(experiment: Experiment, dataset: Dataset) -> None:
    """Check the partition before devices start.

    Raises:
        FedstrataError: the errors of `device_data`.
        DataError: a device has more training examples than `bounds.max_examples`.
    """
    if experiment.partition.is_local:
        return
    counts, most = example_counts(experiment, dataset), experiment.most_examples
    if max(counts) > most:
        largest = experiment.device_ids()[int(np.argmax(counts))]
        raise DataError(
            f"device {largest} has {max(counts)} training examples, more than bounds.max_examples, {most}; raise it"
        )


def _assignment(experiment: Experiment, dataset: Dataset) -> Assignment:
    """Return the assignment of examples to devices. It is computed once per data set, partition and seed, and deleted
    together with the data set.
    """
    partition, seed = experiment.partition, experiment.seed
    if not isinstance(partition, Partition):
        raise ExperimentError("partition.kind local: each device has its own data set, so no data set is divided")
    known = _assignments.setdefault(dataset, {})
    if (partition, seed) not in known:
        known[partition, seed] = with_set_aside(_divided(partition, dataset, seed), partition, dataset, seed)
    return known[partition, seed]


def _divided(partition: Partition, dataset: Dataset, seed: int) -> Assignment:
    """Return the assignment of a partition. Raises PluginError if a partition of the user fails, or returns an
    assignment that is not possible.
    """
    if not PLUGIN.match(partition.kind):
        return partition.divide(dataset, seed)
    with or_failed(f"partition {partition.kind} failed in divide:", partition):
        found = partition.divide(dataset, seed)
        is_possible = isinstance(found, Assignment) and _is_possible(found, partition.device_count, dataset)
    if not is_possible:
        raise PluginError(
            f"partition {partition.kind}: divide must return an Assignment that gives each of the "
            f"{partition.device_count} devices at least one of the training examples 0 to {len(dataset.train) - 1} "
            "(integers), none to two devices, and existing tests"
        )
    return found


def _is_possible(found: Assignment, devices: int, dataset: Dataset) -> bool:
    """Return whether an assignment is valid: each device has training examples, no two devices have the same training
    example, and all indices are integers and exist in the data set.
    """
    if any(np.asarray(each).dtype.kind not in "iu" for each in (*found.train, *found.test) if len(each)):
        return False
    owned, tests = (np.concatenate([*part, no_indices()]) for part in (found.train, found.test))
    of_tests = dataset.train if found.tests_on_training_data else dataset.test
    return (
        len(found.train) == len(found.test) == devices
        and all(map(len, found.train))
        and len(np.unique(owned)) == len(owned)
        and bool(np.isin(owned, np.arange(len(dataset.train))).all())
        and bool(np.isin(tests, np.arange(len(of_tests))).all())
    )
