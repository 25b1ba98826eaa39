"""What a record says of noise, as far as the page shows it."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass as checked_dataclass

Epsilon = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@checked_dataclass(frozen=True, kw_only=True)
class NoisedUpdates:
    """ε of updates: of the whole run, and by when it ended."""

    covers: Literal["update", "sum"]
    epsilon: Epsilon
    delta: Epsilon
    epsilon_spent: Epsilon | None = None


@checked_dataclass(frozen=True, kw_only=True)
class Privacy:
    """The part `privacy` of `summary.json`; unknown keys are passed over."""

    is_protection: bool
    updates: NoisedUpdates | None = None
