"""Label means: cluster devices once, before training, by the mean of each label in a random projection.

A device projects the d features Φ(x) of each input x to z(x) = A Φ(x) / ‖Φ(x)‖, and clips z to length one. The matrix A
has m orthogonal rows of length √(d/m). All devices draw the same A from the experiment's seed. For each label c the
device sends three values: the sum s_c of z, the count n_c, and a quarter of q_c, the sum of ‖z‖². Only the GPS receives
these values. w is the standard deviation of the noise on each number, 0 without noise. For each device, the GPS leaves
out the labels with fewer than two examples, or fewer than 3 w. For each label c that is left, it computes the mean μ_c
= s_c / n_c. It also computes p_c, the share of label c in the examples of these labels. A device's spread is Σ ‖z −
μ_c‖² over the examples of these labels, divided by Σ (n_c − 1). v is the lower median of the spreads of all devices
that have such labels.

For devices i and j, there are two kinds of similarity, called views:

    r_c(i, j) = exp(−2 max(‖μ_ic − μ_jc‖² − b_c, 0) / v),   b_c = e_ic + e_jc,   e_ic = v / n_ic + m w² / n_ic²
    mass      = Σ_c min(p_ic, p_jc) r_c
    meaning   = mean of r_c over the labels that both devices have, weighted by 1 / b_c

`mass` is near one if the devices have similar examples in similar shares. `meaning` is near one if each label has
similar inputs on both devices, whatever the shares.

The distance of two devices is one minus their similarity. The GPS clusters the devices by average linkage of these
distances. It uses the view with the higher silhouette, unless the option `view` names one. If no number of clusters is
set, the silhouette decides the number, too.

With `privacy.profiles`, devices divide z by the option `clip` before z is clipped, and add Gaussian noise to all
numbers. `profiles/label_means.py` says how much a single example can change an answer.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from pydantic import Field

from fedstrata.experiment.privacy import ProfilePrivacy
from fedstrata.methods.base import (
    Answers,
    Arrays,
    Candidate,
    Channel,
    Matrix,
    Moment,
    Plan,
    Question,
    Reach,
    Work,
    shared_and_rest,
)
from fedstrata.methods.clustering import ClusterOptions, Grouping, closest
from fedstrata.methods.profiles.features import FeatureOptions, feature_dim, feature_map
from fedstrata.methods.profiles.label_means import (
    check_sums,
    grouped,
    label_sums,
    likeness,
    means_of,
    noise_deviation,
    noised,
    projected,
    spread_of,
)
from fedstrata.methods.profiles.relevance import landmarks
from fedstrata.models import Model

LABELS, SUMS = "labels", "sums"


class LabelMeans(Grouping):
    """Group devices once, before training, by the mean input of each label. Two kinds of similarity (views) are
    computed.
    """

    class Options(ClusterOptions, FeatureOptions):
        """Hold the number of values to which inputs are projected, the kind of similarity, the layers that each cluster
        averages, and the number of devices from which clusters are formed.
        """

        sketch: int = Field(default=64, ge=1, le=4096)
        """Number m of values to which an input is projected; the inputs' dimension if that is less."""
        view: Literal["clearest", "mass", "meaning"] = "clearest"
        """Similarity of devices: `mass` compares their examples, `meaning` only the inputs of each label, and
        `clearest` takes the clearer of both.
        """
        averaging: Literal["all", "shared", "without_heads"] = "all"
        """`all` averages all layers in each cluster, `shared` averages shared layers over all devices, and
        `without_heads` averages only shared layers, in each cluster.
        """
        landmarks: int = Field(default=512, ge=2)
        """Largest number of devices from which clusters are formed, drawn by the seed; all other devices join these
        clusters.
        """

    noises_profiles = True

    @property
    def needs_labels(self) -> bool:
        """True, because devices compute a mean for each label."""
        return True

    def channels(self, model: Model) -> tuple[Channel, ...]:
        """Return the channels. A channel is a set of layers that are averaged over the same devices. The option
        `averaging` decides which layers these are.
        """
        if self.options.averaging == "all":
            return super().channels(model)
        if self.options.averaging == "shared":
            return shared_and_rest(model, Reach.CLUSTER)
        base, head = shared_and_rest(model, Reach.DEVICE)
        return replace(base, reach=Reach.CLUSTER), head

    def questions(self) -> Sequence[Question]:
        """Return the question that asks each device for three values per label: s_c, n_c and q_c / 4. Only the GPS
        reads the answers.
        """
        rows = min(self.options.sketch, feature_dim(self.options, self.facts.input_shape))
        shape = (self.facts.num_classes, rows + 2)
        return (Question(name=LABELS, moment=Moment.BEFORE, arrays={SUMS: ("float32", shape)}),)

    @property
    def _privacy(self) -> ProfilePrivacy | None:
        return self.facts.privacy.profiles if self.facts.privacy is not None else None

    @property
    def _deviation(self) -> float:
        """Return w, the standard deviation of the noise on each number; 0 without noise."""
        shape = self.questions()[0].arrays[SUMS][1]
        return noise_deviation(self._privacy, shape) if self._privacy is not None else 0.0

    async def answer(self, question: Question, work: Work, heard: Mapping[int, Any]) -> Arrays:
        """Return the sums by label, shape (classes, m + 2)."""
        features, privacy, (classes, width) = feature_map(self.options), self._privacy, question.arrays[SUMS][1]

        def sums() -> Matrix:
            clip = privacy.clip if privacy is not None else 1.0
            points = projected(features(work.examples.inputs), width - 2, self.facts.seed, clip)
            found = label_sums(points, work.examples.labels, classes)
            return noised(found, len(points), privacy, work.noise) if privacy is not None else found

        return {SUMS: (await work.once(f"label sums {width} {privacy}", sums)).astype(np.float32)}

    def check_answer_of(self, device: Candidate, question: Question, arrays: Arrays, relayed_by: Iterable[int]) -> None:
        """Raise PayloadError for sums that are impossible with the device's number of examples. With noise, a larger
        range is allowed.
        """
        check_sums(arrays[SUMS], device.num_examples, self._deviation)

    def plan(self, moment: Moment, answers: Answers, before: Plan | None) -> Plan:
        """Cluster the devices by average linkage, with the chosen kind of similarity (view).

        If there are more devices than the option `landmarks`, the seed draws `landmarks` devices. Only the drawn
        devices are clustered. Each other device joins the most similar cluster.
        """
        options, given = self.options, answers.of(LABELS)
        indexes = [device.device_index for device in answers.devices]
        drawn = landmarks(len(indexes), self.facts.seed, exact_up_to=options.landmarks, count=options.landmarks)
        views = ("mass", "meaning") if options.view == "clearest" else (options.view,)
        found = grouped([given[index][SUMS] for index in indexes], self._deviation, drawn, views, options.given)
        clusters = [[indexes[place] for place in np.flatnonzero(found.labels == one)] for one in set(found.labels)]
        related = tuple(indexes[place] for place in drawn)
        return Plan.ordered(clusters, found.rule, affinity=found.affinity, related=related, memory={"view": found.view})

    def place(self, late: Candidate, answers: Answers, plan: Plan) -> int:
        """Return the number of the cluster with the highest mean similarity of its devices to the late device. The
        kind of similarity (view) is the one with which the plan was made.
        """
        given = answers.of(LABELS)
        sent = [given[index][SUMS] for index in (*plan.related, late.device_index)]
        spread = spread_of(sent, self._deviation)
        own, others = (means_of(some, self._deviation, spread) for some in (sent[-1:], sent[:-1]))
        row = likeness(own, others)[plan.memory["view"]][0]
        return closest(dict(zip(plan.related, row.tolist(), strict=True)), plan.clusters)
