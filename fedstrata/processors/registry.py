"""The processors by name. The module makes the processor of an experiment from its key `devices.processor`."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fedstrata.errors import ExperimentError, ResourceError
from fedstrata.experiment import Experiment
from fedstrata.experiment.registry import Classes
from fedstrata.plugins import describe, guarded, or_failed
from fedstrata.tensors.processor import CPU, Processor

# By name `module:Class`. The module is imported when the name is first used.
REGISTRY: Mapping[str, str] = {
    "cpu": "fedstrata.tensors.processor:Cpu",
    "cuda": "fedstrata.processors.cuda:Cuda",
}
# Names in other libraries. The names are plain, as `plain_name` returns them.
ELSEWHERE: Mapping[str, str] = dict.fromkeys(("gpu", "nvidia"), "a GPU of NVIDIA is cuda here")
PROCESSORS = Classes(section="processor", base=Processor, known=REGISTRY, elsewhere=ELSEWHERE, tag="processor")


def processor_of(experiment: Experiment) -> Processor:
    """Return the processor on which the devices of an experiment compute. Nothing is started. Raises PluginError if the
    user's own processor cannot be made.
    """
    name = experiment.devices.processor
    kind: Any = PROCESSORS.kind(name, "devices")
    if name in REGISTRY:
        known: Processor = CPU if name == "cpu" else kind()
        return known
    with or_failed(f"processor {name} failed with"):
        own: Any = guarded(f"processor {name}", kind, Processor)
        made: Processor = own()
    return made


def lacking(experiment: Experiment) -> str:
    """Return what this machine lacks to use the experiment's processor, with advice, or ""."""
    return _lacking(experiment, processor_of(experiment))


def _lacking(experiment: Experiment, processor: Processor) -> str:
    missing = processor.missing()
    return missing and f"devices.processor {experiment.devices.processor}: {missing}"


def started(experiment: Experiment) -> Processor:
    """Return the experiment's processor, ready to compute. Raises ExperimentError if this machine lacks what it needs,
    or has no room.
    """
    processor = processor_of(experiment)
    if said := _lacking(experiment, processor):
        raise ExperimentError(said)
    try:
        processor.start()
    except ResourceError as error:
        raise ExperimentError(f"devices.processor {experiment.devices.processor}: {error}") from None
    return processor


@contextmanager
def with_memory(experiment: Experiment, processor: Processor, device_id: str) -> Iterator[None]:
    """Run a block of a device's work. Raises ResourceError if the processor has no memory left for it."""
    try:
        yield
    except Exception as error:
        told: BaseException | None = error
        while told is not None and not processor.is_full(told):
            told = told.__cause__  # code of the user may have failed because of it
        if told is None:
            raise
        raise ResourceError(
            f"{device_id}: devices.processor {experiment.devices.processor} has no memory left; compare its memory "
            "with the estimate of `fedstrata check`, and set a smaller training.batch_size or let fewer devices share "
            f"it ({describe(told)})"
        ) from error
