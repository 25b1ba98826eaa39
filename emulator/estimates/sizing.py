"""Calculate the memory that an experiment's pods need. benchmarks/memory_devices.py measures the real memory."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.console.units import human_bytes
from emulator.estimates.check_times import expected_homes
from emulator.estimates.device_processes import device_ranges
from fedstrata.datasets import Dataset, Examples, dataset_info
from fedstrata.datasets.rows import Rows
from fedstrata.experiment import Experiment, LocalOptimiserSettings, SyntheticSettings
from fedstrata.methods import Moment, make_method
from fedstrata.methods.cohort import cohort_size
from fedstrata.models import Model, build_model
from fedstrata.partitions import Shift, device_shifts, example_counts, held_out_counts
from fedstrata.processors import memory_here, processor_of
from fedstrata.rules.registry import make_rule
from fedstrata.rules.spool import BLOCK_BYTES
from fedstrata.streams.architectures import Architectures
from fedstrata.streams.homes import lps_known
from fedstrata.streams.streams import streams_of

MIB = 1 << 20
# A process that has loaded torch and other libraries (measured: 339 MiB). Convolutions take more, for one device at a
# time (measured: 78 MiB for cnn, and 160 MiB for dropout_cnn, which has the largest activations).
PROCESS_BYTES, CONVOLUTIONS_BYTES = 360 * MIB, 160 * MIB
EVALUATED, COPIES = 512, 3  # examples in a batch of an evaluation; copies of activations (measured for cnn: 2.4)
# Vectors as long as a model that a device holds. A device that has taken part holds the received and the trained model,
# its update, payloads, and what their memory leaves free (measured: 5.2 for fedavg, 6.0 with tables, 6.5 with personal
# state). Another device only receives the final model, to measure it (measured: 1.4).
MODELS_OF_A_DEVICE, MODELS_OF_AN_IDLE_DEVICE, MODELS_OF_STATE = 5.5, 2, 1.25
# For each vector of a kept optimiser's state, which is also read and saved (measured: 3.5 for adam, 3.6 for momentum).
MODELS_OF_KEPT = 3.75
# The vectors of an optimiser's state, and its largest number of copies of a tensor during a step.
OF_OPTIMISER: Mapping[str, tuple[int, int]] = {
    "sgd": (0, 0), "adam": (2, 2), "adamw": (2, 2), "rmsprop": (1, 1), "adagrad": (1, 1),
}  # fmt: skip
MODELS_OF_A_TRAINING = 8  # on a processor with its own memory: weights, gradients, velocities and copies
OTHER_BYTES_OF_A_DEVICE = MIB // 2
DEFAULT_ELEMENTS = 64  # elements per example, if the shape of an own data set is unknown
# Guesses of the numbers of examples, if they are known only from data that are not here: of a device, and of all.
LOCAL_EXAMPLES, SHARED_EXAMPLES = 20_000, 100_000
# Examples of the published data sets. Every device process loads them, one byte per element.
PUBLISHED = {
    "digits": 1_797, "fcube": 5_000, "fashion-mnist": 70_000, "emnist": 131_600,
    "cifar-10": 60_000, "cifar-100": 60_000, "svhn": 99_289,
}  # fmt: skip
DRAWN_EXAMPLES, DRAWN_BYTES = 600, 12  # `synthetic` has 453 examples per device on average; 8 + 4 bytes while drawn
LPS_PROCESS_BYTES = 96 * MIB


@dataclass(frozen=True, kw_only=True)
class PodMemory:
    """Hold the bytes that a pod with devices needs: for its process, and for each device, by index. Only a device that
    takes part in rounds needs all its bytes, and at most `most_active` devices take part. Each other device needs
    `saved` bytes less.
    """

    process: int
    devices: Sequence[int]
    saved: int
    most_active: int

    def of(self, devices: int) -> int:
        """Return the bytes that the largest pod needs, if each pod has this number of consecutive devices."""
        pods = [self.devices[first : first + devices] for first in range(0, len(self.devices), devices)]
        return self.process + max(sum(pod) - max(0, len(pod) - self.most_active) * self.saved for pod in pods)


def device_memory(experiment: Experiment, dataset: Dataset | None) -> PodMemory:
    """Return the memory that pods with devices need, including a reserve. `dataset` is None if the data are not on this
    machine. Then each device is assumed to have as many examples as the experiment's `limits.max_examples` allows, but
    at most `SHARED_EXAMPLES`. Without this key, the number is a guess.

    Raises:
        FedstrataError: the model or the method cannot be made, or the data cannot be divided among the devices.
    """
    elements = math.prod(dataset_info(experiment.data).input_shape) or DEFAULT_ELEMENTS
    method = make_method(experiment)
    architectures = Architectures(experiment, method).all
    largest = max(each.streams.whole.size for each in architectures)
    asks_before = any(question.moment is Moment.BEFORE for question in method.questions())
    received = (method.most_offered or method.clusters_known) if method.fetches_all else 1
    others = max(0, received - 1)  # models of other clusters that the device receives
    keeps = method.has_personal_state or any(each.streams.own.size for each in architectures)
    of_optimiser, of_step = _optimiser_models(experiment.training.optimiser)
    kept = of_optimiser if experiment.training.optimiser.state == "kept" else 0
    held = MODELS_OF_A_DEVICE + MODELS_OF_STATE * keeps + MODELS_OF_KEPT * kept
    models = round((held + others) * 4 * largest) + OTHER_BYTES_OF_A_DEVICE
    # A device that has answered questions before training has its inputs also in float64. While it computes the answer,
    # it has them twice.
    answering = 8 * elements if asks_before else 0
    if dataset is None:
        trained = [min(examples_of_a_device(experiment), SHARED_EXAMPLES)] * experiment.device_count
        copies = [each * elements for each in trained]
    else:
        trained = example_counts(experiment, dataset)
        copies = _copied_bytes(experiment, dataset, trained)
    return PodMemory(
        process=PROCESS_BYTES
        + (of_optimiser + of_step) * 4 * largest  # in the training of one device at a time
        + answering * max(trained)
        + _data_set_bytes(experiment, dataset, elements)
        + max(_activation_bytes(experiment, each.model, dataset) for each in architectures),
        devices=tuple(models + copy + answering * each for copy, each in zip(copies, trained, strict=True)),
        saved=round((held - MODELS_OF_AN_IDLE_DEVICE) * 4 * largest),
        most_active=_most_active(experiment),
    )


def _optimiser_models(settings: LocalOptimiserSettings) -> tuple[int, int]:
    """Return two numbers of vectors that are as long as the model. The first is the number in the optimiser's state,
    and the second the number that a step needs in addition.
    """
    state, of_step = OF_OPTIMISER[settings.name]
    return state + bool(getattr(settings, "momentum", 0)), of_step


def processor_memory(experiment: Experiment, dataset: Dataset, processes: int = 1) -> int:
    """Return how many bytes the largest of `processes` device processes needs on a processor with its own memory: what
    the processor takes for itself, the training data of the process's devices, and the tensors of one training. Not yet
    measured on a GPU.
    """
    architectures = Architectures(experiment, make_method(experiment)).all
    train, info = dataset.train, dataset.info
    an_example = 0 if train.is_drawn else 4 * math.prod(info.input_shape) + 8 * math.prod(info.target_shape)
    tensors = MODELS_OF_A_TRAINING * 4 * max(each.streams.whole.size for each in architectures)
    activations = max(_activation_bytes(experiment, each.model, dataset) for each in architectures)
    counts = example_counts(experiment, dataset)
    parts = device_ranges(len(counts), processes)
    data = max(sum(counts[part.start : part.stop]) for part in parts) * an_example
    return processor_of(experiment).context_bytes + data + tensors + activations


def lacking_room(experiment: Experiment, dataset: Dataset | None, processes: int, runs: int = 1) -> str:
    """Return a message if this machine's processor has too little memory for the processes of a run. Otherwise, or
    without a data set, return "". `runs` runs at the same time share the memory equally.
    """
    has = memory_here(experiment)
    processes = min(processes, experiment.device_count)
    if dataset is None or has is None:
        return ""
    needed, share = processor_memory(experiment, dataset, processes), has // (processes * runs)
    if needed <= share:
        return ""
    fewer = "use fewer device processes, or " if processes > 1 else ""
    fewer = f"do fewer than {runs} runs at the same time (--jobs), or " if runs > 1 else fewer
    return (
        f"devices.processor {experiment.devices.processor}: a process needs about {human_bytes(needed)} of its memory, "
        f"and has {human_bytes(share)}; {fewer}set a smaller training.batch_size, model or data set"
    )


def _most_active(experiment: Experiment) -> int:
    """Return the largest number of devices that can take part in the run, if each round asks devices that no earlier
    round has asked. If the number of LPSs depends on the run, these are all devices.
    """
    training = experiment.training
    if not lps_known(experiment, make_method(experiment)):
        return experiment.device_count
    sizes = map(len, expected_homes(experiment))
    return sum(min(size, training.lps_rounds * cohort_size(size, training.participation)) for size in sizes)


def examples_of_a_device(experiment: Experiment) -> int:
    """Return the largest number of training examples that a device may have."""
    return experiment.limits.max_examples or LOCAL_EXAMPLES


def are_examples_guessed(experiment: Experiment, dataset: Dataset | None) -> bool:
    """Return whether the numbers of the devices' examples are guesses, because the data set is not on this machine."""
    return dataset is None and experiment.limits.max_examples is None


def _copied_bytes(experiment: Experiment, dataset: Dataset, trained: Sequence[int]) -> list[int]:
    """Return the bytes of each device's copy of its examples. `trained` has the number of its training examples."""
    owned = zip(trained, held_out_counts(experiment, dataset), device_shifts(experiment, dataset), strict=True)
    return [
        n * _bytes_of_an_example(dataset.train, shift) + tested * _bytes_of_an_example(dataset.test, shift)
        for n, tested, shift in owned
    ]


def _data_set_bytes(experiment: Experiment, dataset: Dataset | None, elements: int) -> int:
    """Return the bytes that the data set takes in a process with devices. If the user's own data are not here, return
    the bytes of the devices' training examples.
    """
    known = PUBLISHED.get(experiment.data.name)
    if known is not None:
        return known * elements
    if experiment.data.name == "synthetic":
        law = experiment.data.synthetic or SyntheticSettings()
        return law.num_devices * DRAWN_EXAMPLES * elements * DRAWN_BYTES
    if dataset is not None:
        whole = {id(array): array for part in (dataset.train, dataset.test) for array in map(_whole, _arrays(part))}
        return sum(array.nbytes for array in whole.values() if not isinstance(array, np.memmap))
    examples = examples_of_a_device(experiment)
    if not experiment.partition.is_local:
        examples = min(experiment.device_count * examples, SHARED_EXAMPLES)
    return examples * elements * 4


def _activation_bytes(experiment: Experiment, model: Model, dataset: Dataset | None) -> int:
    """Return an upper bound of the bytes that layers' outputs take, for one device at a time. Each output of a layer is
    counted for every place of the input: pixels of a convolution, and steps of a sequence.
    """
    if model.dense or dataset is None:
        return 0 if model.dense else CONVOLUTIONS_BYTES
    shape, is_tokens = dataset.train.input_shape, dataset.train.stored.dtype == np.int64
    pixels, steps = math.prod(shape[1:]), shape[0] if is_tokens or len(shape) == 2 else 1
    shapes = [*(tensor.shape for tensor in model.layout.tensors), *model.frozen.values()]
    outputs = sum(each[0] * (pixels if len(each) > 2 else steps) for each in shapes if len(each) > 1)
    tested = min(EVALUATED, max(held_out_counts(experiment, dataset)))
    rows = COPIES * max(experiment.training.batch_size, tested)
    return min(CONVOLUTIONS_BYTES, 4 * rows * outputs)


def _arrays(examples: Examples) -> Iterator[NDArray[Any]]:
    """Yield the arrays of examples, and the arrays of a map-style data set that has their inputs."""
    yield from examples.stored.held() if isinstance(examples.stored, Rows) else [examples.stored]
    yield from ([] if examples.targets is None else [examples.targets])
    yield from (*examples.more.values(), *examples.columns.values())


def _whole(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array of which this array is a part. The whole array stays in memory."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _bytes_of_an_example(examples: Examples, shift: Shift) -> int:
    """Return the bytes of one example in a device's copy, which `shift` has changed. Inputs of a map-style data set are
    not copied.
    """
    arrays = [*examples.more.values(), *examples.columns.values()]
    arrays += [] if examples.targets is None else [examples.targets]
    of_inputs = 0 if examples.is_drawn else shift.type_after(examples.stored.dtype).itemsize
    others: int = sum(array.dtype.itemsize * math.prod(array.shape[1:]) for array in arrays)
    return others + of_inputs * math.prod(examples.input_shape)


def lps_memory(experiment: Experiment) -> int:
    """Return how many more bytes an LPS needs than an idle LPS. If clusters span LPSs, the LPS needs 5.5 × the bytes of
    the tensors that devices of all clusters send. Otherwise it needs 2.5 × the bytes of the tensors that a device of
    its own cluster sends. benchmarks/memory.py measures these factors. A rule that keeps updates on disk needs blocks
    of these updates in memory and, at most, five matrices of products. benchmarks/rules.py measures this.

    Raises:
        FedstrataError: the model, the method or the rule cannot be made.
    """
    method, model = make_method(experiment), build_model(experiment.model, dataset_info(experiment.data))
    streams = streams_of(experiment, method, model)
    of_rule = 0
    if make_rule(experiment, "lps").keeps_updates:
        of_rule = 4 * BLOCK_BYTES + 5 * 8 * max(map(len, expected_homes(experiment))) ** 2
    if not streams.spans:
        return 10 * streams.travelling.size + of_rule
    return 22 * streams.vector(max(1, method.clusters_known)).tensors.size + of_rule
