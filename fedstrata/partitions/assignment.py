"""The result of a split: which device owns which examples."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from fedstrata.partitions.shifts import Shift
from fedstrata.partitions.stock import Drift, Indices, no_indices


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """Hold which examples each device owns: indices into the training and the test data, one array per device. Also
    hold the changes to the devices' examples.
    """

    train: Sequence[Indices]
    """By device, indices into the training data."""
    test: Sequence[Indices]
    """By device, indices into the test data."""
    tests_on_training_data: bool = False
    """True if `test` has indices into the training data."""
    validation: Sequence[Indices] = ()
    """By device, indices into the training data of examples for validation; empty without `validation_share`."""
    shifts: Sequence[Shift] | None = None
    """By device, the change of its examples; None if no device's examples are changed."""
    drift: Drift = ()
    """By device, the distance of its label shares from the drawn shares; empty if none are drawn."""
    public: Indices = field(default_factory=no_indices)
    """Public examples, in the part of the data that `public.source` names."""
