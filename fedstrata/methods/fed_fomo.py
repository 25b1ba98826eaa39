"""FedFOMO (Zhang et al., Personalized Federated Learning with First Order Model Optimization, ICLR 2021).

Every device has its own model. The GPS sends each device the models of some other devices. The device measures all
these models on some of its examples, on which it does not train. The gain of a model is the difference between the
losses of the device's own model and this model. This difference is divided by the distance of the two models (Eq. 3 of
the paper). The device starts from a mean of the models with a positive gain, weighted by gain (Eq. 4). The GPS adds up
the gains that each device reports over the rounds. It sends the device the models with the highest sums, and sometimes
a random model.

The paper leaves two points open. Here "the device's own model" in Eq. 3 and 4 is the model with which the device's last
training started. The result of this training is one of the received models. So if the training did not lower the loss,
its result has no weight in the mix. If no model has a positive gain, the device starts from the same model as in the
last round.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedstrata.errors import DataError, PayloadError
from fedstrata.methods.base import (
    Answers,
    Arrays,
    Channel,
    Measurement,
    Method,
    MethodSettings,
    Moment,
    Outcome,
    Plan,
    Question,
    Reach,
    Work,
    all_layers,
)
from fedstrata.models import Model
from fedstrata.tensors.layout import Flat

if TYPE_CHECKING:
    from fedstrata.datasets import Examples

GAINS = "gains"
BEGAN = "began"  # weights at the start of the device's last training
LARGEST = 1e30  # limit of losses and gains; it also replaces the loss of a diverged model, which is NaN
SPLIT_ADDRESS, OFFERS_ADDRESS = 0xF0_40_5E, 0xF0_40_0F  # addresses that only these draws use

Gains = NDArray[np.float64]
Parts = tuple["Examples", "Examples"]


class FedFomo(Method):
    """Give each device a model of its own: a mix of the received models that lower its loss."""

    class Options(MethodSettings):
        """Hold the number of models that a device receives, and the share of its examples for measuring these
        models.
        """

        offered: int = Field(default=5, ge=1)
        """Number M of other devices' models that a device receives per round."""
        explore: float = Field(default=0.3, ge=0, le=1)
        """Share ε of the M models that is drawn at random in the first round."""
        explore_less: float = Field(default=0.05, ge=0, le=1)
        """Amount by which ε falls every round, down to 0."""
        validation_share: float = Field(default=0.2, gt=0, lt=1)
        """Share of a device's examples on which it measures models instead of training."""

    fetches_all = True
    has_personal_state = True

    def refuses(self) -> Mapping[str, str]:
        """Refuse several LPS rounds per global round."""
        return {"training.lps_rounds_per_global_round": "the GPS must distribute the models anew in every round"}

    @property
    def clusters_known(self) -> int:
        """The number of devices, because each device is a cluster."""
        return self.facts.device_count

    @property
    def most_offered(self) -> int:
        """The largest number of models that a device receives in a round: its own model, and as many models of other
        devices as the option `offered` says.
        """
        return min(int(self.options.offered) + 1, self.facts.device_count)

    def channels(self, model: Model) -> tuple[Channel, ...]:
        """Return one channel: the whole model. Each device is a cluster of its own. So the model of the cluster is the
        model that the device trained last.
        """
        return all_layers(model, Reach.CLUSTER)

    # --- questions ------------------------------------------------------------------------------

    def questions(self) -> Sequence[Question]:
        """Return the question that asks each device for the gain of each model that it received."""
        gains = {"gains": ("float64", (self.most_offered,))}
        return (Question(name=GAINS, moment=Moment.RECEIVED, arrays=gains, fewer_rows=True),)

    async def answer(self, question: Question, work: Work, heard: Mapping[int, Any]) -> Arrays:
        """Return the gain of each received model, shape (received models,), in the order of the received models."""
        return {"gains": await self._gains(work)}

    def check_answer(self, question: Question, arrays: Arrays, relayed_by: Iterable[int]) -> None:
        """Raise PayloadError if there is no gain, or if the absolute value of a gain is above `LARGEST`. `plan` checks
        the number of gains.
        """
        if not len(arrays["gains"]) or np.abs(arrays["gains"]).max() > LARGEST:
            raise PayloadError(f"the answer must have at least one gain, and gains from -{LARGEST:g} to {LARGEST:g}")

    # --- the plan -------------------------------------------------------------------------------

    def plan(self, moment: Moment, answers: Answers, before: Plan | None) -> Plan:
        """Return a plan with one cluster per device. Its `offers` name the models that each device receives in the next
        global round.
        """
        if before is None:
            clusters: tuple[tuple[int, ...], ...] = tuple((device.device_index,) for device in answers.devices)
            affinity = np.zeros((len(clusters), len(clusters)))
        else:
            clusters, affinity = before.clusters, np.array(before.memory["affinity"])
            for index, arrays in answers.of(GAINS).items():
                place = before.cluster_of(index)
                offered = before.offers[place]
                if len(arrays["gains"]) == len(offered):  # otherwise it is unknown which gain belongs to which model
                    affinity[place, list(offered)] += arrays["gains"]
        affinity = np.clip(affinity, -LARGEST, LARGEST)
        next_round = answers.global_round + 1
        offers = tuple(self._offered(place, affinity[place], next_round) for place in range(len(clusters)))
        rule = "one cluster a device"
        return Plan(clusters=clusters, rule=rule, offers=offers, memory={"affinity": affinity.tolist()})

    def _offered(self, own: int, affinity: Gains, global_round: int) -> tuple[int, ...]:
        """Return the cluster numbers of the models that a device receives: its own, those with the highest sums of
        gains, and some random ones.
        """
        rng = np.random.default_rng([self.facts.seed, OFFERS_ADDRESS, global_round, own])
        # In random order, so that low indexes have no advantage at equal gains.
        others = rng.permutation(np.delete(np.arange(len(affinity)), own))
        count = min(int(self.options.offered), len(others))
        share = max(0.0, self.options.explore - self.options.explore_less * global_round)
        at_random = int((rng.random(count) < share).sum())
        by_gain = others[np.argsort(-affinity[others], kind="stable")]
        chosen, rest = by_gain[: count - at_random], by_gain[count - at_random :]
        drawn = rng.choice(rest, at_random, replace=False)
        return tuple(sorted([own, *chosen.tolist(), *drawn.tolist()]))

    # --- local work -----------------------------------------------------------------------------

    async def local(self, work: Work) -> Outcome:
        """Train the mix of the received models on the device's examples that are not set aside for measuring models."""
        mixed = self._mixed(work, await self._gains(work))
        training, _ = await self._parts(work)
        trained = await work.train(mixed, on=training)
        return Outcome(
            weights=trained.weights,
            train_loss=trained.train_loss,
            measured=trained.measured,
            personal={BEGAN: mixed},
        )

    def trained_examples(self, examples: int, lps_round: int) -> int:
        """Return the number of examples in one training on the examples that are not set aside."""
        return self.facts.training.trained_examples(examples - set_aside(examples, self.options.validation_share))

    async def measure(self, work: Work) -> tuple[Measurement, Measurement | None]:
        """Measure the device's model: the mix of the received models (Eq. 4). There is no second measurement."""
        return await work.measure(self._mixed(work, await self._gains(work))), None

    def _began(self, work: Work) -> Flat:
        began: Flat = work.personal.get(BEGAN, work.start)
        return began

    def _mixed(self, work: Work, gains: Gains) -> Flat:
        """Return the mix of Eq. 4. It begins with the weights with which the device's last training started, and moves
        them towards each model with a positive gain. The size of a move is the model's share of all positive gains.
        """
        return mixed(self._began(work), work.received, gains)

    async def _gains(self, work: Work) -> Gains:
        """Return the gains of all received models, measured once per round."""
        if GAINS not in work.noted:
            _, validation = await self._parts(work)
            began = self._began(work)
            losses = [(await work.measure(each, on=validation)).loss for each in (began, *work.received)]
            trained = work.model.trainable.size  # without statistics, which are not trained
            lengths = distances(began[:trained], [each[:trained] for each in work.received])
            work.noted[GAINS] = gains_of(losses[0], losses[1:], lengths)
        found: Gains = work.noted[GAINS]
        return found

    async def _parts(self, work: Work) -> Parts:
        """Return the device's examples for training, and its examples for measuring models."""
        share = self.options.validation_share
        return await work.once(GAINS, lambda: split(work.examples, share, [work.seed, work.device_index]))


def split(examples: "Examples", share: float, address: Sequence[int]) -> Parts:
    """Divide a device's examples into two parts: for training, and a share for measuring models. Each part has at least
    one example.

    The seed of the random division is `address`.

    Raises:
        DataError: there is only one example.
    """
    if len(examples) < 2:
        raise DataError(
            f"method fedfomo divides a device's examples into two parts and needs at least two; a device has "
            f"{len(examples)}; give it more"
        )
    aside = set_aside(len(examples), share)
    order = np.random.default_rng([*address, SPLIT_ADDRESS]).permutation(len(examples))
    return examples.part(np.sort(order[aside:])), examples.part(np.sort(order[:aside]))


def set_aside(examples: int, share: float) -> int:
    """Return the number of a device's examples that are set aside for measuring models: at least one, and not all."""
    return min(max(1, round(share * examples)), examples - 1)


def distances(began: Flat, models: Sequence[Flat]) -> list[float]:
    """Return the Euclidean distance of each model from `began`, the weights with which the device's last training
    started.
    """
    return [float(np.sqrt(np.square(each.astype(np.float64) - began).sum())) for each in models]


def gains_of(loss: float, losses: Sequence[float], lengths: Sequence[float]) -> Gains:
    """Return the gain of each model (Eq. 3): `loss` minus the model's loss, divided by the model's distance in
    `lengths`. The gain of a model at distance 0 is 0.
    """
    here, there = (np.nan_to_num(np.array(each), nan=LARGEST, posinf=LARGEST) for each in ([loss], losses))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        raw = np.where(np.array(lengths) > 0, (here - there) / np.array(lengths), 0.0)
    found: Gains = np.clip(np.nan_to_num(raw), -LARGEST, LARGEST)
    return found


def mixed(began: Flat, models: Sequence[Flat], gains: Gains) -> Flat:
    """Return the mix of models by Eq. 4. The weights are max(gain, 0), scaled to sum 1. If no gain is positive, return
    `began`, the weights with which the device's last training started.
    """
    helpful = np.maximum(gains, 0.0)
    if not helpful.any():
        return began
    helpful = helpful / helpful.max()  # so that the sum of the largest gains stays finite
    total = np.zeros(len(began))
    for share, each in zip(helpful / helpful.sum(), models, strict=True):
        if share:
            total += share * each
    return total.astype(np.float32)
