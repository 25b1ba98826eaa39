"""LPS rounds as the page's document has them: a list of values each, in the order of rounds.csv's columns."""

from typing import Protocol

ROUND_COLUMNS = (
    "global_round", "lps_round", "lps_id", "devices", "num_examples", "loss", "accuracy", "seconds", "bytes_up",
    "bytes_down", "lowest_accuracy", "highest_accuracy",
)  # fmt: skip
RoundValues = list[str | int | float | None]


class RoundRow(Protocol):
    """One LPS round as rounds.csv has it."""

    @property
    def global_round(self) -> int: ...
    @property
    def lps_round(self) -> int: ...
    @property
    def lps_id(self) -> str: ...
    @property
    def devices(self) -> int: ...
    @property
    def num_examples(self) -> int: ...
    @property
    def loss(self) -> float | None: ...
    @property
    def accuracy(self) -> float | None: ...
    @property
    def seconds(self) -> float: ...
    @property
    def bytes_up(self) -> int: ...
    @property
    def bytes_down(self) -> int: ...
    @property
    def lowest_accuracy(self) -> float | None: ...
    @property
    def highest_accuracy(self) -> float | None: ...


def round_key(values: RoundValues) -> tuple[str | int | float | None, ...]:
    """What a later row of the same LPS round replaces an earlier one by: its LPS round and its cluster."""
    return values[1], values[2]


def round_values(row: RoundRow) -> RoundValues:
    """A row's values."""
    return [getattr(row, column) for column in ROUND_COLUMNS]
