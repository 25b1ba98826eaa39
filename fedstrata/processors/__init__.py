"""Processors, on which devices compute. `fedstrata.tensors.processor` defines the interface and has the CPU, and
`registry` maps names to processors.
"""

from fedstrata.processors.registry import (
    PROCESSORS,
    lacking,
    memory_here,
    processor_of,
    started,
    with_memory,
    with_memory_to_try,
)
from fedstrata.tensors.processor import Processor

__all__ = [
    "PROCESSORS", "Processor", "lacking", "memory_here", "processor_of", "started", "with_memory", "with_memory_to_try",
]  # fmt: skip
