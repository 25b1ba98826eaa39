"""What a parent lets one child claim in a round: how far its update goes, and on how many examples it measured."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstrata.errors import PayloadError
from fedstrata.process.quoting import quoted
from fedstrata.v1 import rounds_pb2 as pb


@dataclass(frozen=True)
class ChildLimits:
    """Without arguments, none: of LPSs the GPS expects sums, and checks what they stand for in other ways."""

    max_update_norm: float | None = None  # L2, of an update as it is sent
    held_out: Mapping[str, int] | None = None  # by child, the examples that it measures on, as told when it enrolled

    def squares_of(self, values: NDArray[Any]) -> float:
        """What a stretch of an update adds to the square of its norm; 0 where norms are not limited."""
        return 0.0 if self.max_update_norm is None else float(np.square(values, dtype=np.float64).sum())

    def check_norm(self, child_id: str, squares: float) -> None:
        """Refuse an update whose values so far have these squares in all. Raises PayloadError."""
        if self.max_update_norm is not None and not squares <= self.max_update_norm**2:
            raise PayloadError(
                f"{child_id} sends an update with an L2 norm of {math.sqrt(squares):.6g} or more; "
                f"bounds.max_update_norm is {self.max_update_norm:g}"
            )

    def check_measured(self, evaluations: Iterable[pb.Evaluation]) -> None:
        """Refuse measurements on other numbers of examples than the device has to measure on. Raises PayloadError."""
        if self.held_out is None:
            return
        for evaluation in evaluations:
            told = self.held_out.get(evaluation.device_id, 0)
            if evaluation.num_examples != told:
                raise PayloadError(
                    f"{quoted(evaluation.device_id)} measured on {evaluation.num_examples} examples, and enrolled with "
                    f"{told} to measure on"
                )


NO_LIMITS = ChildLimits()
