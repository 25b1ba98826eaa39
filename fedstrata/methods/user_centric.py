"""User-centric aggregation: every device gets its own weighted mean (mix) of all devices' models (Mestoukirdi et al.
2021).

Before training, every device sends its gradient g_i at the initial weights. It also sends the mean squared distance of
its batches' gradients from g_i, σ_i² = (1/K) Σ_k ‖g_i^k − g_i‖² (Eq. 7 of the paper). Let Δ_ij = ‖g_i − g_j‖². In every
round, device j has the weight w_ij ∝ n_j exp(−Δ_ij / (2 σ_i σ_j)) in the model of device i (Eq. 6). To save downloads,
the rows of the matrix W of these weights are clustered by k-means. The devices of a cluster share one model: the mix
with the weights of the cluster's centroid (section III-B).

Departures: examples are shuffled before they are divided into batches; the paper leaves their order open. A device may
send a sketch of its gradient, which keeps distances approximately (`fedstrata.methods.sketch`). σ_i is limited to three
times the usual value for batches of this size (`capped`). Otherwise a device could make itself similar to all others by
a large σ.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedstrata.errors import ExperimentError, PayloadError
from fedstrata.methods.base import (
    Answers,
    Arrays,
    Channel,
    Matrix,
    Method,
    MethodSettings,
    Moment,
    Plan,
    Question,
    Reach,
    Work,
    all_layers,
)
from fedstrata.methods.clustering import lower_median
from fedstrata.methods.gradients import Gradient, gradient_at
from fedstrata.methods.row_groups import row_groups
from fedstrata.methods.sketch import LARGEST, check_sketch, sketch_of
from fedstrata.models import Model

GRADIENT = "gradient"
WIDEST = 9.0  # larger variances are limited to this multiple of the median, so σ to three times the usual
BATCHES_ADDRESS = 0x0C_E7_12  # an address that only the draws of the batches use


class UserCentric(Method):
    """Give each device, or each group of similar devices, its own weighted mean of the models of all devices."""

    class Options(MethodSettings):
        """Hold the number of models, and the settings of the gradients by which devices are compared."""

        streams: Literal["auto", "all"] | Annotated[int, Field(ge=1)] = "all"
        """Number m of models: `all` is one per device, `auto` the number with the highest mean silhouette."""
        most_streams: int = Field(default=16, ge=2)
        """Largest number of models that `auto` considers."""
        batches: int = Field(default=10, ge=2)
        """Number K of batches of which gradients are compared; more batches give the models of other devices more
        weight.
        """
        sketch: int | None = Field(default=None, ge=16, le=1 << 16)
        """Length of a count sketch that replaces the gradient; without this key the whole gradient is sent."""

    mixes = True

    @property
    def needs_labels(self) -> bool:
        """True, because devices compute gradients of the cross-entropy."""
        return True

    def check(self) -> None:
        """Raise ExperimentError if the options ask for more streams (mixed models) than devices."""
        streams = self.options.streams
        if isinstance(streams, int) and streams > self.facts.device_count:
            raise ExperimentError(
                f"method.streams is {streams}, more than the {self.facts.device_count} devices; lower it"
            )

    @property
    def clusters_known(self) -> int:
        """The number of clusters, which is the number of streams (mixed models). It is 0 if the method chooses this
        number by silhouettes.
        """
        streams = self.options.streams
        return {"auto": 0, "all": self.facts.device_count}[streams] if isinstance(streams, str) else int(streams)

    def channels(self, model: Model) -> tuple[Channel, ...]:
        """Return one channel with the whole model. Each stream of the channel is one mixed model."""
        return all_layers(model, Reach.CLUSTER)

    # --- questions ------------------------------------------------------------------------------

    def questions(self) -> Sequence[Question]:
        """Return the question that asks each device for σ², and for its gradient or a sketch of its gradient."""
        length = self.options.sketch or self.facts.trainable.size
        arrays = {"gradient": ("float32", (length,)), "variance": ("float64", (1,))}
        return (Question(name=GRADIENT, moment=Moment.BEFORE, arrays=arrays),)

    async def answer(self, question: Question, work: Work, heard: Mapping[int, Any]) -> Arrays:
        """Return the gradient, shape (size,), or its sketch, shape (sketch,), and σ², shape (1,). The gradient is
        computed at the initial weights over all examples, without dropout.
        """
        weights = work.start

        def gradients() -> tuple[Gradient, float]:
            parts = shuffled_parts(len(work.examples), self.options.batches, [work.seed, work.device_index])
            return mean_and_variance([gradient_at(work.model, weights, work.examples, part) for part in parts], parts)

        mean, variance = await work.once(GRADIENT, gradients)
        sent = sketch_of(mean.astype(np.float32), self.options.sketch, work.seed) if self.options.sketch else mean
        return {"gradient": sent.astype(np.float32), "variance": np.array([variance])}

    def check_answer(self, question: Question, arrays: Arrays, relayed_by: Iterable[int]) -> None:
        """Raise PayloadError for a gradient with impossibly large numbers, or if σ² is below 0. `plan` later limits a
        large σ².
        """
        check_sketch(arrays["gradient"], "gradient")
        if not 0 <= arrays["variance"][0] <= LARGEST:
            raise PayloadError(
                f"the answer has the variance {arrays['variance'].tolist()}; expected one number from 0 to {LARGEST:g}"
            )

    # --- the plan -------------------------------------------------------------------------------

    def plan(self, moment: Moment, answers: Answers, before: Plan | None) -> Plan:
        """Return a plan. It has the streams (mixed models), the devices that use each stream, and the weight of every
        device in each stream.
        """
        given = answers.of(GRADIENT)
        devices = sorted(answers.devices, key=lambda device: device.device_index)
        indexes = [device.device_index for device in devices]
        examples = np.array([device.num_examples for device in devices], np.float64)
        variances = np.array([given[index]["variance"][0] for index in indexes])
        alike = likeness(
            np.stack([given[index]["gradient"] for index in indexes]),
            capped(variances, np.maximum(examples / self.options.batches, 1.0)),
        )
        rows = alike * examples
        rows /= rows.sum(axis=1, keepdims=True)
        groups, rule = row_groups(rows, self.options.streams, self.options.most_streams)
        mixes = [dict(zip(indexes, rows[group].mean(axis=0).tolist(), strict=True)) for group in groups]
        clusters = [[indexes[place] for place in group] for group in groups]
        return Plan.ordered(clusters, rule, weights={"model": tuple(mixes)}, affinity=alike, related=tuple(indexes))


def shuffled_parts(examples: int, parts: int, address: Sequence[int]) -> list[NDArray[np.int64]]:
    """Shuffle the indexes of this many examples, and divide them into `parts` parts of nearly equal size. If there are
    fewer examples than parts, there are fewer parts. The seed is `address`.
    """
    order = np.random.default_rng([*address, BATCHES_ADDRESS]).permutation(examples)
    return np.array_split(order, min(parts, examples))


def mean_and_variance(gradients: Sequence[Gradient], parts: Sequence[NDArray[np.int64]]) -> tuple[Gradient, float]:
    """Return the gradient over all parts, shape (size,), and σ². `gradients` has the gradient of each part, and σ² is
    their mean squared distance from the gradient over all parts.
    """
    mean = sum(gradient * len(part) for gradient, part in zip(gradients, parts, strict=True))
    mean = np.asarray(mean) / sum(len(part) for part in parts)
    return mean, float(np.mean([np.sum((gradient - mean) ** 2) for gradient in gradients]))


def capped(variances: NDArray[np.float64], batch_sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Limit each device's σ² to plausible values, and return the results, shape (N,). `batch_sizes` has the size of
    each device's batches.

    The mean over b examples has 1/b of the variance of a single example. So b σ² estimates the variance of a single
    example. This estimate is limited to nine times the lower median over all devices with a positive value.
    """
    of_one = variances * batch_sizes
    if not of_one.any():
        return variances
    return np.minimum(variances, WIDEST * lower_median(of_one[of_one > 0]) / batch_sizes)


def likeness(gradients: NDArray[Any], variances: NDArray[np.float64]) -> Matrix:
    """Return exp(−Δ_ij / (2 σ_i σ_j)) for gradients (N, size), shape (N, N), with ones on the diagonal.

    If σ_i is 0, the numbers in row and column i are 1 for devices with the same gradient, and 0 for all others.
    """
    from scipy.spatial.distance import pdist, squareform

    distances: Matrix = squareform(pdist(gradients.astype(np.float64), "sqeuclidean"))
    spread = 2.0 * np.sqrt(np.outer(variances, variances))
    with np.errstate(over="ignore"):
        exponents = distances / np.maximum(spread, np.finfo(np.float64).tiny)
    matrix: Matrix = np.exp(-exponents)
    return matrix
