"""Calculate the memory that an experiment's pods need. benchmarks/memory_devices.py measures the real memory."""

import math
from dataclasses import dataclass

from fedstrata.datasets import dataset_info
from fedstrata.experiment import Experiment, SyntheticSettings
from fedstrata.experiment.partition import LocalPartition
from fedstrata.methods import Moment, make_method
from fedstrata.models import build_model
from fedstrata.streams.architectures import Architectures
from fedstrata.streams.streams import streams_of

MIB = 1 << 20
# A process that has loaded torch and other libraries (measured: 339 MiB). Convolutions take more, for one device at a
# time (measured: 25 MiB for cnn, and 160 MiB for dropout_cnn, which has the largest activations).
PROCESS_BYTES, CONVOLUTIONS_BYTES = 360 * MIB, 160 * MIB
MODELS_OF_A_DEVICE = 8  # vectors as long as a model: received, trained, gradients, velocities, update, payload
OTHER_BYTES_OF_A_DEVICE = MIB // 2
DEFAULT_ELEMENTS = 64  # elements per example, if the shape of an own data set is unknown
LOCAL_EXAMPLES = 20_000  # a guess for a board's own data, whose size is unknown
# Examples of the published data sets. Every device process loads them, one byte per element.
PUBLISHED = {
    "digits": 1_797, "fcube": 5_000, "fashion-mnist": 70_000, "emnist": 131_600,
    "cifar-10": 60_000, "cifar-100": 60_000, "svhn": 99_289,
}  # fmt: skip
DRAWN_EXAMPLES, DRAWN_BYTES = 600, 12  # `synthetic` has 453 examples per device on average; 8 + 4 bytes while drawn
LPS_PROCESS_BYTES = 96 * MIB


@dataclass(frozen=True, kw_only=True)
class PodMemory:
    """Hold the bytes that a pod with devices needs: for its process, and for each device in the process."""

    process: int
    device: int

    def of(self, devices: int) -> int:
        """Return the bytes that a pod needs for this number of devices."""
        return self.process + devices * self.device


def device_memory(experiment: Experiment) -> PodMemory:
    """Return the memory that pods with devices need, including a reserve.

    Raises:
        FedstrataError: the model or the method cannot be made.
    """
    info = dataset_info(experiment.data)
    elements = math.prod(info.input_shape) or DEFAULT_ELEMENTS
    examples = examples_of_a_device(experiment)
    method = make_method(experiment)
    architectures = Architectures(experiment, method).all
    is_dense = all(each.model.dense for each in architectures)
    largest = max(each.streams.whole.size for each in architectures)
    asks_before = any(question.moment is Moment.BEFORE for question in method.questions())
    received = (method.most_offered or method.clusters_known) if method.fetches_all else 1
    others = max(0, received - 1)  # models of other clusters that the device receives
    # The device's data: one byte per element, and 8 more in float64 while it answers questions before training.
    data = examples * elements * (9 if asks_before else 1)
    return PodMemory(
        process=PROCESS_BYTES + _data_set_bytes(experiment, elements) + (0 if is_dense else CONVOLUTIONS_BYTES),
        device=(MODELS_OF_A_DEVICE + others) * 4 * largest + data + OTHER_BYTES_OF_A_DEVICE,
    )


def examples_of_a_device(experiment: Experiment) -> int:
    """Return the largest number of training examples that a device may have."""
    return experiment.limits.max_examples or LOCAL_EXAMPLES


def _data_set_bytes(experiment: Experiment, elements: int) -> int:
    """Return the bytes that the data set takes in a process with devices. For the user's own data, only the training
    examples of the devices are counted.
    """
    known = PUBLISHED.get(experiment.data.name)
    if known is not None:
        return known * elements
    if experiment.data.name == "synthetic":
        law = experiment.data.synthetic or SyntheticSettings()
        return law.num_devices * DRAWN_EXAMPLES * elements * DRAWN_BYTES
    owners = 1 if isinstance(experiment.partition, LocalPartition) else experiment.device_count
    return owners * examples_of_a_device(experiment) * elements * 4


def lps_memory(experiment: Experiment) -> int:
    """Return how many more bytes an LPS needs than an idle LPS. If clusters span LPSs, the LPS needs 5.5 × the bytes of
    the tensors that devices of all clusters send. Otherwise it needs 2.5 × the bytes of the tensors that a device of
    its own cluster sends. benchmarks/memory.py measures these factors.

    Raises:
        FedstrataError: the model or the method cannot be made.
    """
    method, model = make_method(experiment), build_model(experiment.model, dataset_info(experiment.data))
    streams = streams_of(experiment, method, model)
    if not streams.spans:
        return 10 * streams.travelling.size
    return 22 * streams.vector(max(1, method.clusters_known)).tensors.size
