"""The processors by name. The module makes the processor of an experiment from its key `devices.processor`."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from fedstrata.errors import ExperimentError, PluginError, ResourceError
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
IN_A_RUN = (
    "compare its memory with the estimate of `fedstrata check`, and set a smaller training.batch_size or let fewer "
    "devices share it"
)
IN_A_TRY = "end other programs on it, or set a smaller training.batch_size or a smaller model"
PROCESSORS = Classes(section="processor", base=Processor, known=REGISTRY, elsewhere=ELSEWHERE, tag="processor")


def processor_of(experiment: Experiment) -> Processor:
    """Return the processor on which the devices of an experiment compute. Nothing is started. Raises PluginError if the
    user's own processor cannot be made, or its `context_bytes` are no number of bytes.
    """
    name = experiment.devices.processor
    kind: Any = PROCESSORS.kind(name, "devices")
    if name in REGISTRY:
        known: Processor = CPU if name == "cpu" else kind()
        return known
    with or_failed(f"processor {name} failed with"):
        own: Any = guarded(f"processor {name}", kind, Processor)
        made: Processor = own()
    taken: Any = made.context_bytes
    if not isinstance(taken, int) or isinstance(taken, bool) or taken < 0:
        raise PluginError(f"processor {name}: context_bytes is {taken!r}; give an integer of at least 0")
    return made


def lacking(experiment: Experiment) -> str:
    """Return what this machine lacks to use the experiment's processor, with advice, or ""."""
    return _lacking(experiment, processor_of(experiment))


def _lacking(experiment: Experiment, processor: Processor) -> str:
    missing = processor.missing()
    return missing and f"devices.processor {experiment.devices.processor}: {missing}"


def memory_here(experiment: Experiment) -> int | None:
    """Return the size, in bytes, of the memory of this machine's processor for the experiment. If the processor is
    missing, or has no memory of its own, return None. Raises PluginError if the user's own processor returns no number
    of bytes.
    """
    processor = processor_of(experiment)
    found: Any = None if processor.missing() else processor.memory()
    if found is not None and (not isinstance(found, int) or isinstance(found, bool) or found < 1):
        raise PluginError(
            f"processor {experiment.devices.processor}: memory returns {found!r}; return an integer above 0, or None"
        )
    return found


def started(experiment: Experiment, share: float = 1.0) -> Processor:
    """Return the experiment's processor, ready to compute. If other processes use it, too, this process takes at most
    `share` of the processor's memory. Raises ExperimentError if this machine lacks something that the processor needs,
    or if the processor has no memory left.
    """
    processor = processor_of(experiment)
    if said := _lacking(experiment, processor):
        raise ExperimentError(said)
    try:
        processor.start()
        if share < 1:
            processor.limit(share)
    except ResourceError as error:
        raise ExperimentError(f"devices.processor {experiment.devices.processor}: {error}") from None
    except Exception as error:
        if _full(processor, error) is None:
            raise
        raise ExperimentError(
            f"devices.processor {experiment.devices.processor} has no memory left for a process, which takes "
            f"{processor.context_bytes >> 20} MB before it holds data; end other programs on it, or use fewer device "
            "processes"
        ) from error
    return processor


def _full(processor: Processor, error: BaseException) -> BaseException | None:
    """Return the error that says that the processor has no memory left: this one, or one of its causes."""
    told: BaseException | None = error
    while told is not None and not processor.is_full(told):
        told = told.__cause__  # code of the user, or of torch, may have failed because of it
    return told


@contextmanager
def with_memory(experiment: Experiment, processor: Processor, worker: str, advice: str = IN_A_RUN) -> Iterator[None]:
    """Run the `with` block. Raises ResourceError, which names `worker` and gives `advice`, if the processor has no
    memory left for the block.
    """
    try:
        yield
    except Exception as error:
        if (told := _full(processor, error)) is None:
            raise
        raise ResourceError(
            f"{worker}: devices.processor {experiment.devices.processor} has no memory left; {advice} "
            f"({describe(told)})"
        ) from error


def with_memory_to_try(experiment: Experiment) -> AbstractContextManager[None]:
    """Return a context like `with_memory`, for a training that tries an experiment before its run."""
    return with_memory(experiment, processor_of(experiment), "a try of the experiment", IN_A_TRY)
