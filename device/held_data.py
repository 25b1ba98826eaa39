"""The data of a device as tensors, from which the batches of training are gathered."""

from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch

from fedstrata.datasets import Examples
from fedstrata.tasks import Task
from fedstrata.tensors.processor import Processor


class HeldData(NamedTuple):
    """Hold all examples of a device on a processor. The first axis of each tensor counts the examples."""

    inputs: torch.Tensor
    more: dict[str, torch.Tensor]  # further inputs by name
    targets: torch.Tensor


# By examples, then by processor and task. An entry ends with its examples.
_kept: WeakKeyDictionary[Examples, dict[tuple[Processor, Task], HeldData]] = WeakKeyDictionary()


def may_be_held(examples: Examples, processor: Processor) -> bool:
    """Return whether a device's examples can be held as tensors, from which batches are gathered. Inputs that are read
    item by item cannot. On the CPU, pixels cannot be held in this way either, because they stay bytes in memory.
    """
    return not examples.is_drawn and (processor.keeps_data or not examples.scale)


def held_data(examples: Examples, task: Task, processor: Processor) -> HeldData:
    """Return a device's examples as tensors on a processor. If the processor has its own memory, the tensors stay there
    as long as `examples` exists.
    """
    if not processor.keeps_data:
        return _on(processor, examples, task)
    kept = _kept.setdefault(examples, {})
    if (processor, task) not in kept:
        kept[processor, task] = _on(processor, examples.scaled(), task)
    return kept[processor, task]


def _on(processor: Processor, examples: Examples, task: Task) -> HeldData:
    more = {name: processor.held(array) for name, array in examples.more.items()}
    return HeldData(processor.held(examples.inputs), more, processor.held(task.targets(examples)))
