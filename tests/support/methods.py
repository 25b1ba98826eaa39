"""Methods of a known class, and devices that answer them."""

from collections.abc import Mapping
from typing import Any

from fedstrata.methods import Candidate, Facts


def method_with(kind: type[Any], section: Mapping[str, Any], facts: Facts) -> Any:
    """Return the method with its checked section."""
    return kind(kind.Options.model_validate(section), facts)


def made(kind: type[Any], devices: int = 10, groups: int | None = None, seed: int = 0, **options: Any) -> Any:
    """Return the method with these options, for inputs of four numbers in two classes."""
    facts = Facts(device_count=devices, seed=seed, true_groups=groups, input_shape=(4,), num_classes=2)
    return method_with(kind, {"name": "tried", **options}, facts)


def candidates(count: int, tasks: str = "") -> list[Candidate]:
    """Devices 0, 1, … with ten examples each; `tasks` gives the true task of each as a letter."""
    return [
        Candidate(device_index=index, num_examples=10, true_task=tasks[index] if tasks else None)
        for index in range(count)
    ]
