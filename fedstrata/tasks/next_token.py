"""Next token: predict the token that follows each position of a sequence."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from fedstrata.datasets import DatasetInfo, Examples
from fedstrata.errors import DataError, ExperimentError
from fedstrata.tasks.base import Metric, Sum, Task

if TYPE_CHECKING:
    from torch import Tensor

IGNORED = -100  # target of padding, which is ignored


class NextToken(Task):
    """Learn the next token at each position of a sequence, by cross-entropy. Positions with the target -100 are
    ignored.

    Targets are int64 of shape (n, length). Outputs have one score per token of the vocabulary, shape (n, length,
    num_classes). In training, all tokens of a batch have the same weight. The loss of an example is the mean over its
    tokens.
    """

    metrics = (
        Metric(name="perplexity", higher_is_better=False, about="exponential of the mean loss of a token"),
        Metric(name="accuracy", unit="percent", about="share of tokens that are hit"),
    )
    sums = (Sum(name="tokens", is_count=True), Sum(name="token_loss"), Sum(name="correct", is_count=True))

    def check(self, info: DatasetInfo) -> None:
        if not info.num_classes or not info.target_shape:
            raise ExperimentError(
                f"task next_token needs data.num_classes, the size of the vocabulary, and sequences as targets; set "
                f"data.num_classes (now {info.num_classes}) and data.target_shape (now {list(info.target_shape)})"
            )

    def output_shape(self, info: DatasetInfo) -> tuple[int, ...]:
        return (*info.target_shape, info.num_classes)

    def targets(self, examples: Examples) -> NDArray[Any]:
        found = super().targets(examples)
        if (wrong := (found < 0) & (found != IGNORED)).any():
            raise DataError(
                f"task next_token has the target {found[wrong][0]}; write {IGNORED} for positions to ignore, "
                "and tokens from 0 elsewhere"
            )
        return found

    def loss(self, outputs: "Tensor", targets: "Tensor") -> "Tensor":
        losses = _token_losses(outputs, targets).flatten(1)
        return losses.sum(1) / (targets != IGNORED).flatten(1).sum(1).clamp(min=1)

    def mean_loss(self, outputs: "Tensor", targets: "Tensor") -> "Tensor":
        return _token_losses(outputs, targets).sum() / (targets != IGNORED).sum().clamp(min=1)

    def measure(self, outputs: "Tensor", targets: "Tensor", examples: Examples) -> Sequence[float]:
        losses, is_token = _token_losses(outputs, targets), targets != IGNORED
        hits = (outputs.argmax(-1) == targets) & is_token
        return float(is_token.sum()), losses.double().sum().item(), float(hits.sum())

    def summarise(self, sums: Sequence[float], num_examples: int) -> Mapping[str, float | None]:
        tokens, loss, correct = sums
        if not tokens:
            return {}
        return {"perplexity": math.exp(min(loss / tokens, 700)), "accuracy": correct / tokens}


def _token_losses(outputs: "Tensor", targets: "Tensor") -> "Tensor":
    """Return the cross-entropy of each token, in the shape of `targets`. Ignored positions have 0."""
    from torch.nn.functional import cross_entropy

    return cross_entropy(outputs.movedim(-1, 1), targets, reduction="none", ignore_index=IGNORED)
