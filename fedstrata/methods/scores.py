"""Scores of public examples in place of weights (Gudur, Balaji and Perepu, Resource-Constrained Federated Learning with
Heterogeneous Labels and Models, 2020).

Devices may have different labels and different models. D₀ is a public data set. In round i device m trains its own
model on its private data D_m^i and computes the model's scores f_m of the public examples. For its labels l_m, the
device adds its model's scores to the received scores: f_m ← f_G(l_m) + α f_m with α = |D_m^i| / |D₀|. It sends the
result. The servers add up the results of all devices, label by label: f_G ← Σ β_m f_m. β_m is 1 for a label that only
one device has, and otherwise the accuracy of f_m. "Label by label" can mean two things, and the option `reading`
chooses one: the **rows** of the table that belong to public examples with the label, or the **column** of scores for
the label. A device can train its model on the received scores (`distil_epochs`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedstrata.datasets import Examples
from fedstrata.errors import ExperimentError, PayloadError
from fedstrata.methods.base import (
    EVERYBODY,
    Answers,
    Array,
    Arrays,
    Channel,
    Facts,
    Measurement,
    Method,
    MethodSettings,
    Moment,
    Outcome,
    Plan,
    Question,
    Reach,
    Work,
)
from fedstrata.methods.two_stages import softmax
from fedstrata.models import Model
from fedstrata.tensors.layout import Flat, Layout

LABELS = "labels"
TABLE, WEIGHTS = "table", "weights"
DISTILLING = 1  # training on the table has its own draws of batches
PORTION = 0x5C0_2E5  # an address that only the draws of a round's private data use
Values = NDArray[np.float64]  # shape (public examples, classes)
Mask = NDArray[np.bool_]


class Scores(Method):
    """Exchange the scores that models give to public examples, label by label. The models stay on their devices."""

    class Options(MethodSettings):
        """Hold the options of the method. They say which part of the table of scores belongs to a label, with which
        weights the devices' tables are added up, and how a device uses the sum.
        """

        reading: Literal["rows", "columns", "alone", "labels"] = "rows"
        """A label's part of the table: `rows` of its public examples, or `columns` of its scores; `alone` and `labels`
        exchange nothing.
        """
        normalised: bool = True
        """If true, sums are divided by the sum of the weights β; `false` is the formula as printed."""
        alpha: float | None = Field(default=None, gt=0)
        """Weight α of new scores; without this key the number of a device's examples divided by the number of public
        examples.
        """
        beta: Literal["accuracy", "equal"] = "accuracy"
        """Weight β of a device for a label that several devices have: the `accuracy` of its scores, or `equal` weights.
        """
        distil_epochs: int = Field(default=1, ge=0)
        """Epochs on the table, before training on a device's own data; with 0 a device learns nothing from others."""
        measure: Literal["model", "table"] = "model"
        """Object with the accuracy that a device reports: its `model`, or the `table`, which has only public examples.
        """
        examples_a_label: int | None = Field(default=None, ge=1)
        """Own examples of each label that a device trains on per round; without this key all of them."""
        least_share: float = Field(default=1.0, gt=0, le=1)
        """Least share of `examples_a_label`; for each label and round the share is drawn evenly between least and most.
        """
        most_share: float = Field(default=1.0, gt=0, le=1)
        """Largest share of `examples_a_label`."""

        @property
        def exchanges(self) -> bool:
            """Return whether devices exchange tables of scores."""
            return self.reading in {"rows", "columns"}

        @model_validator(mode="after")
        def _coherent(self) -> Self:
            if self.least_share > self.most_share:
                raise ValueError(f"least_share {self.least_share:g} is above most_share {self.most_share:g}; lower it")
            if self.examples_a_label is None and (self.least_share, self.most_share) != (1.0, 1.0):
                raise ValueError("least_share and most_share need examples_a_label, which is missing; add it")
            if self.measure == "table" and self.reading == "labels":
                raise ValueError("measure table needs a table, and reading labels has none; remove measure")
            return self

    mixes = True

    @property
    def needs_labels(self) -> bool:
        """True, because tables have a score for each label."""
        return True

    def check(self) -> None:
        """Raise ExperimentError if the partition lacks something that the options need: public examples, their labels,
        or public examples that are kept for tests.
        """
        options, facts = self.options, self.facts
        if not facts.public_examples:
            raise ExperimentError(
                "method scores needs public examples, and the partition has none; set their number in "
                "partition.public.examples"
            )
        uses_labels = options.reading in {"rows", "labels"} or (options.exchanges and options.beta == "accuracy")
        if uses_labels and not facts.public_labelled:
            raise ExperimentError(
                "method scores needs the public examples' labels; set partition.public.labelled: true, or "
                "method.reading: columns with method.beta: equal"
            )
        if options.measure == "table" and not (facts.public_tests and facts.public_labelled):
            raise ExperimentError(
                "method.measure table can only measure labelled public examples; set partition.public.tests: true and "
                "partition.public.labelled: true"
            )

    def refuses(self) -> Mapping[str, str]:
        """Refuse an optimiser of the GPS. Unless sums are divided by weights (`normalised`), refuse absent devices."""
        why = "with method.normalised: false the table is right only if every device takes part in every round"
        absent = {} if self.options.normalised else dict.fromkeys(EVERYBODY, why)
        moved = {"training.gps_optimiser": "the server's step would move the sums of scores and weights"}
        return {**absent, **moved} if self.options.exchanges else {}

    def channels(self, model: Model) -> tuple[Channel, ...]:
        """Return two channels. The first is the model, which stays on the device. The second is the table of scores
        with the weights β. Tables and weights are averaged over all devices.

        With `reading: alone`, each device keeps a table of its own scores. With `reading: labels`, there is no table.
        """
        own = Channel(name="model", tensors=model.layout, reach=Reach.DEVICE)
        table = {TABLE: (self.facts.public_examples, self.facts.num_classes)}
        if self.options.reading == "labels":
            return (own,)
        if self.options.reading == "alone":
            return (own, Channel(name=TABLE, tensors=Layout.of(table), reach=Reach.DEVICE))
        shapes = {**table, WEIGHTS: (self.facts.num_classes,)}
        return (own, Channel(name=TABLE, tensors=Layout.of(shapes), reach=Reach.EVERYWHERE))

    # --- before training ------------------------------------------------------------------------

    def questions(self) -> Sequence[Question]:
        """Return the question that asks devices for their labels. From the answers, the GPS counts the devices with
        each label.
        """
        if not self.options.exchanges:
            return ()
        owned = {"owned": ("int64", (self.facts.num_classes,))}
        return (Question(name=LABELS, moment=Moment.BEFORE, arrays=owned),)

    async def answer(self, question: Question, work: Work, heard: Mapping[int, object]) -> Arrays:
        """Return, for each label, 1 if the device has examples of it, and otherwise 0."""
        return {"owned": self._of(work).owned().astype(np.int64)}

    def check_answer(self, question: Question, arrays: Arrays, relayed_by: Iterable[int]) -> None:
        """Raise PayloadError unless the answer has a 0 or 1 for each label."""
        if not np.isin(arrays["owned"], (0, 1)).all():
            raise PayloadError("the answer must have a 0 or a 1 for each class")

    def tells(self) -> Mapping[str, tuple[str, tuple[int, ...]]]:
        """Declare the array that a plan sends to all devices: the number of devices with each label."""
        return {"owners": ("int64", (self.facts.num_classes,))} if self.options.exchanges else {}

    def plan(self, moment: Moment, answers: Answers, before: Plan | None) -> Plan:
        """Return a plan with one cluster. The table is the plain mean of the devices' tables."""
        plan = super().plan(moment, answers, before)
        if not self.options.exchanges:
            return plan
        owned = [arrays["owned"] for arrays in answers.of(LABELS).values()]
        owners = np.stack([np.zeros(self.facts.num_classes, np.int64), *owned]).sum(axis=0)
        even = {device.device_index: 1 / len(answers.devices) for device in answers.devices}
        return replace(plan, weights={TABLE: (even,)}, told={"owners": owners})

    # --- a round --------------------------------------------------------------------------------

    async def local(self, work: Work) -> Outcome:
        """Train on the table, then on the device's own data. Update the device's table with the model's scores."""
        own = self._portion(work)
        trained = await work.train(await self._taught(work), on=own)
        used, received = (None, None) if trained.measured is None else self._measured(work, trained.measured)
        tables: Arrays = {}
        if self.options.reading != "labels":
            said = softmax(await work.outputs(trained.weights, work.public.inputs))
            tables = self._of(work).sent(said, len(own))
        return Outcome(
            weights=trained.weights, train_loss=trained.train_loss, measured=used, measured_received=received,
            tables=tables,
        )  # fmt: skip

    async def measure(self, work: Work) -> tuple[Measurement, Measurement | None]:
        """Train the device's model on the table. Then measure the model, the table or both (`_measured`)."""
        return self._measured(work, await work.measure(await self._taught(work)))

    async def _taught(self, work: Work) -> Flat:
        """Train the device's model on the table or, with `reading: labels`, on public examples. Return the weights. If
        there are no scores or examples for the device's labels, or `distil_epochs` is 0, return the unchanged weights.
        """
        epochs, read, targets = self.options.distil_epochs, self._of(work), None
        if not epochs:
            return work.start
        if self.options.reading == "labels":
            labels = read.labels()[rows := read.rows()]
        else:
            table = read.values()
            sums = table.sum(axis=1)
            rows = sums > 0
            targets = (table[rows] / sums[rows, None]).astype(np.float32)
            labels = targets.argmax(axis=1)
        if not rows.any():
            return work.start
        on = Examples(inputs=work.public.inputs[rows], labels=labels.astype(np.int64))
        return (await work.train(work.start, number=DISTILLING, epochs=epochs, on=on, targets=targets)).weights

    def _portion(self, work: Work) -> Examples:
        """Return D_m^i: at most `examples_a_label` examples of each label, drawn by seed, device and round."""
        most, labels = self.options.examples_a_label, work.examples.labels
        if most is None:
            return work.examples
        rng = np.random.default_rng([work.seed, work.device_index, max(0, work.lps_round), PORTION])
        drawn = []
        for label in np.unique(labels):
            there = np.flatnonzero(labels == label)
            wanted = round(most * rng.uniform(self.options.least_share, self.options.most_share))
            drawn.append(rng.choice(there, min(max(1, wanted), len(there)), replace=False))
        return work.examples.part(np.sort(np.concatenate(drawn)))

    def _measured(self, work: Work, model: Measurement) -> tuple[Measurement, Measurement | None]:
        """Return the measurement of the object that the option `measure` names. If this is the model, and devices can
        measure the table, also return the measurement of the table. Otherwise the second result is None.
        """
        facts = self.facts
        if not (facts.public_tests and facts.public_labelled) or self.options.reading == "labels":
            return model, None
        received = self._of(work).measured()
        return (received, None) if self.options.measure == "table" else (model, received)

    def _of(self, work: Work) -> "DeviceTable":
        return DeviceTable(self.options, self.facts, work)


class DeviceTable:
    """Compute a device's part of the table in a round. The part consists of the rows of public examples with the
    device's labels, or of the columns of these labels.
    """

    def __init__(self, options: Scores.Options, facts: Facts, work: Work) -> None:
        self._options, self._facts, self._work = options, facts, work

    def owned(self) -> Mask:
        """Return a mask of the labels that the device has, shape (num_classes,)."""
        return np.isin(np.arange(self._facts.num_classes), self._work.examples.labels)

    def labels(self) -> Array:
        """Return the labels of the public examples. Raises ExperimentError if devices do not know these labels."""
        labels = self._work.public.labels
        if labels is None:
            raise ExperimentError(
                "method scores needs the public examples' labels; set partition.public.labelled: true"
            )
        return labels

    def rows(self) -> Mask:
        """Return a mask of the public examples that have one of the device's labels."""
        rows: Mask = self.owned()[self.labels()]
        return rows

    def _part(self) -> Mask:
        """Return the mask of the device's part of the table: the rows of public examples with the device's labels, or
        the columns of these labels.
        """
        if self._options.reading == "rows":
            return self.rows()[:, None]
        return self.owned()[None]

    def _by_label(self, values: Array) -> Array:
        """Return `values`, one number per label, in a shape that fits the table's rows or columns."""
        return values[self.labels()][:, None] if self._options.reading == "rows" else values[None]

    def values(self) -> Values:
        """Return f_G(l_m): the device's part of the received table. If devices exchange no tables, return the device's
        part of its own table. Scores outside this part are 0.
        """
        found = self._work.tables[TABLE].astype(np.float64)
        if self._options.exchanges and self._options.normalised:
            weights = self._by_label(self._work.tables[WEIGHTS].astype(np.float64))
            found = np.divide(found, weights, out=np.zeros_like(found), where=weights > 0)
        elif self._options.exchanges:
            found = found * self._facts.device_count
        return np.where(self._part(), found, 0.0)

    def sent(self, said: Values, num_examples: int) -> Arrays:
        """Return the tables that the device sends: β_m f_m, and β_m by label. f_m are the device's new scores, see
        `_updated`. With `normalised`, receivers divide the sum of the first table by the sum of the second. With
        `reading: alone`, return only f_m.
        """
        updated = self._updated(said, num_examples)
        if not self._options.exchanges:
            return {TABLE: updated}
        weights = self._weights(updated)
        return {TABLE: updated * self._by_label(weights), WEIGHTS: weights}

    def _updated(self, said: Values, num_examples: int) -> Values:
        """Return the new scores of the device, f_G(l_m) + α f_m. Here f_m are the model's scores, given as `said`.
        Without the option `alpha`, α is `num_examples` divided by the number of public examples.
        """
        alpha = self._options.alpha or num_examples / self._facts.public_examples
        return self.values() + np.where(self._part(), alpha * said, 0.0)

    def _weights(self, updated: Values) -> Array:
        """Return β_m by label. It is 1 for a label that only this device has, and 0 for labels that the device does not
        have. Otherwise it is the device's accuracy, or 1 with `beta: equal`.
        """
        shared = 1.0 if self._options.beta == "equal" else self._accuracy(updated)
        return np.where(self.owned(), np.where(self._work.told["owners"] == 1, 1.0, shared), 0.0)

    def _hits(self, table: Values) -> Mask:
        """Return which public examples the table classifies correctly, as a mask over the public examples with the
        device's labels. An example with no score above zero is not classified correctly.
        """
        rows = self.rows()
        found, labels = table[rows], self.labels()[rows]
        hits: Mask = (found.argmax(axis=1) == labels) & (found.max(axis=1, initial=0.0) > 0)
        return hits

    def _accuracy(self, table: Values) -> float:
        hits = self._hits(table)
        return float(hits.mean()) if len(hits) else 0.0

    def measured(self) -> Measurement:
        """Measure the table on public examples with the device's labels. For the loss, each row of the table is scaled
        to sum 1. The loss is the cross-entropy of the scaled rows.
        """
        table, rows = self.values(), self.rows()
        labels, found = self.labels()[rows], table[rows]
        sums = found.sum(axis=1)
        shares = np.divide(
            found[np.arange(len(labels)), labels], sums, out=np.full(len(labels), 1 / table.shape[1]), where=sums > 0
        )
        losses = -np.log(np.maximum(shares, np.finfo(np.float32).tiny))
        hits = self._hits(table)
        return Measurement(loss_sum=float(losses.sum()), sums=(float(hits.sum()),), num_examples=len(labels))
