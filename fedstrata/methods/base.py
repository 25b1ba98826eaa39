"""The contract between methods and tiers. A method is one file with a subclass of `Method`.

The code of the tiers contains no name of a method. The tiers do four kinds of work. Devices **answer questions**, the
GPS makes **plans** from the answers, devices do their **local work**, and servers average the results. `Method` has a
default for each kind of work, and the defaults together are FedAvg. The class below is a whole method. It averages all
layers over all devices. During training it pulls a device's weights towards the received weights, and the pull is
stronger on devices with little data:

>>> class Careful(Method):
...     class Options(MethodSettings):
...         mu: NonNegativeFloat = 0.1
...
...     def channels(self, model):
...         return all_layers(model, Reach.EVERYWHERE)
...
...     async def local(self, work):
...         received, mu = work.start, self.options.mu / len(work.examples)
...         trained = await work.train(received, correct=Pull(mu), beside=(received,))
...         return Outcome.of(trained)
...
>>> method = Careful(Careful.Options(name="careful", mu=0.5), Facts(device_count=3))
>>> method.plan(Moment.BEFORE, Answers([Candidate(device_index=index) for index in range(3)]), None).clusters
((0, 1, 2),)
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import NonNegativeFloat

from fedstrata.errors import PluginError
from fedstrata.experiment.privacy import PrivacySettings
from fedstrata.experiment.sections import AnyServerOptimiser, MethodSettings, TrainingSettings
from fedstrata.methods.work import Array, Arrays, ForwardPass, Measurement, Outcome, Pull, Steps, Trained, Work
from fedstrata.tasks import CLASSIFICATION, Task
from fedstrata.tensors.layout import Flat, Layout

if TYPE_CHECKING:
    from fedstrata.models import Model

__all__ = [
    "Answers", "Array", "Arrays", "Candidate", "Channel", "Facts", "ForwardPass", "Measurement", "Method",
    "MethodSettings", "Moment", "NonNegativeFloat", "Outcome", "Plan", "Pull", "Question", "Reach", "Steps",
    "Trained", "Work", "all_layers", "head_of", "shared_and_rest",
]  # fmt: skip

Matrix = NDArray[np.float64]


# --- what travels -------------------------------------------------------------------------------------------


class Reach(Enum):
    """Define which devices share the values of a channel.

    `EVERYWHERE`: all devices share them. `CLUSTER`: the devices of a cluster share them. `DEVICE`: devices share
    nothing. The tensors never leave the device, and the device keeps them from round to round.
    """

    EVERYWHERE = "everywhere"
    CLUSTER = "cluster"
    DEVICE = "device"


@dataclass(frozen=True, kw_only=True)
class Channel:
    """Define a channel: tensors that are averaged over the same devices.

    A channel has one set of current values for all devices, or one set per cluster. Each such set is called a stream.
    Devices send the difference between trained and received values. A server adds the weighted mean of these
    differences to the stream. A device's weight is its number of examples. If a plan sets `weights` for the channel,
    the weighted mean of the devices' whole values replaces the stream instead.

    The tensors are the model's, or **tables**: additional float32 tensors that the method defines and names, and that
    begin at 0. A device finds tables in `Work.tables` and returns the next tables in `Outcome.tables`.
    """

    name: str
    """Name of the channel."""
    tensors: Layout
    """Names and shapes of the tensors. A table: `fedstrata.tensors.Layout.of({"control": (100,)})`, of 100 numbers."""
    reach: Reach
    """Devices that share the values of these tensors."""
    counts_absent: bool = False
    """If true, a device that does not take part in a round counts in the mean, with a difference of 0. Optimisers of
    servers do not change such a channel. Only methods with one cluster may set this.
    """


def all_layers(model: "Model", reach: Reach) -> tuple[Channel, ...]:
    """Return one channel with the whole model."""
    return (Channel(name="model", tensors=model.layout, reach=reach),)


def shared_and_rest(model: "Model", rest: Reach) -> tuple[Channel, ...]:
    """Return two channels: the shared layers with reach `EVERYWHERE`, and the other layers with reach `rest`."""
    return (
        Channel(name="shared", tensors=model.layout.select(model.shared), reach=Reach.EVERYWHERE),
        Channel(name="head", tensors=model.layout.select(head_of(model)), reach=rest),
    )


def head_of(model: "Model") -> tuple[str, ...]:
    """Return the names of the layers that are not shared, in the layout's order."""
    return tuple(name for name in model.layout.names if name not in model.shared)


# --- questions and answers ----------------------------------------------------------------------------------


class Moment(Enum):
    """Define when devices answer a question.

    `BEFORE`: once, before training. The GPS asks the next such question after all devices have answered the previous
    one. `RECEIVED`: in each global round, when devices have received the models of the round. `TRAINED`: in each global
    round, when devices have trained but have not yet sent an update.
    """

    BEFORE = "before"
    RECEIVED = "received"
    TRAINED = "trained"


@dataclass(frozen=True, kw_only=True)
class Question:
    """Define a question: small arrays that the GPS asks devices for. If an answer has an array with a name, dtype or
    shape that the question does not declare, the GPS refuses the answer unread.
    """

    name: str
    """Name of the question; the record counts bytes under this name."""
    moment: Moment
    """The moment at which devices are asked."""
    arrays: Mapping[str, tuple[str, tuple[int, ...]]]
    """Dtype and shape of each array, by the array's name."""
    fewer_rows: bool = False
    """If true, the first dimension of an array in an answer may be smaller."""
    relayed: bool = False
    """If true, the GPS also sends each answer to the other devices (`Method.hear`)."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Describe a device that `Method.plan` puts into a cluster."""

    device_index: int
    """Index of the device."""
    num_examples: int = 1
    """Number of the device's training examples."""
    true_task: str | None = None
    """True task of the device. It is known only if the experiment divides the data among devices."""


@dataclass(frozen=True)
class Answers:
    """Hold the answers from which a plan is made, and the devices that take part. Devices are in ascending order of
    their indexes.
    """

    devices: Sequence[Candidate]
    """Devices that take part."""
    given: Mapping[str, Mapping[int, Arrays]] = field(default_factory=dict)
    """Answers by name of the question, then by device index."""
    global_round: int = -1
    """Global round in which devices answered, counted from 0. It is -1 before training."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "devices", sorted(self.devices, key=lambda device: device.device_index))

    def of(self, question: str) -> Mapping[int, Arrays]:
        """Return the answers to a question by device index, in ascending order."""
        return dict(sorted(self.given.get(question, {}).items()))


# --- plans --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Define the clusters, and the values and models that devices get, until the next plan."""

    clusters: tuple[tuple[int, ...], ...]
    """Device indexes by cluster. A cluster may be empty if the method asks in every round."""
    rule: str
    """Text for the record: the rule that made the clusters."""
    parents: tuple[int, ...] = ()
    """For each cluster, the number of the cluster of the previous plan that it continues. If empty, each cluster
    continues the one with the same number.
    """
    weights: Mapping[str, tuple[Mapping[int, float], ...]] = field(default_factory=dict)
    """Share of each device in the next value of a stream, by channel, then by stream. Shares are rounded to multiples
    of 2⁻²⁰. In channels without an entry, the weight of a device is its number of examples.
    """
    offers: tuple[tuple[int, ...], ...] = ()
    """For each cluster, the numbers of the clusters from which its devices receive models, from the next global round
    on. The numbers are ascending, and include the cluster itself. If empty, devices receive the models of all clusters.
    """
    withdrawn: tuple[str, ...] = ()
    """Tensors that stay on devices from the next global round on, in addition to those that earlier plans withdrew."""
    told: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Arrays that the GPS sends to all devices from the next global round on."""
    affinity: Matrix | None = None
    """Similarity of devices in [0, 1] from which the groups were made, for the record."""
    related: tuple[int, ...] = ()
    """Device indexes of the rows of `affinity`."""
    memory: Mapping[str, Any] = field(default_factory=dict)
    """JSON values that the method needs when it makes its next plan. It finds them in the argument `before` of `plan`.
    """

    @classmethod
    def ordered(cls, clusters: Iterable[Iterable[int]], rule: str, **rest: Any) -> "Plan":
        """Return a plan with these clusters, sorted by their lowest device index. The devices of each cluster are in
        ascending order. `rest` has other fields of the plan.
        """
        return cls(clusters=tuple(sorted(tuple(sorted(cluster)) for cluster in clusters)), rule=rule, **rest)

    def check_covers(self, devices: Sequence[Candidate], *, may_be_empty: bool = False) -> None:
        """Raise PluginError unless every device is in exactly one cluster. Also raise it for an empty cluster, unless
        `may_be_empty` is set.
        """
        grouped = sorted(index for cluster in self.clusters for index in cluster)
        is_whole = grouped == sorted(device.device_index for device in devices)
        if not is_whole or not (may_be_empty or all(self.clusters)):
            raise PluginError(
                f"a plan must put every device into exactly one cluster; this plan has {list(self.clusters)}"
            )

    def cluster_of(self, device_index: int) -> int:
        """Return the number of a device's cluster. Raises KeyError for a device without a cluster."""
        for number, cluster in enumerate(self.clusters):
            if device_index in cluster:
                return number
        raise KeyError(device_index)


# --- methods ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Hold the facts of a run that are known before the run begins."""

    device_count: int
    """Number of devices."""
    seed: int = 0
    """Seed of the experiment."""
    input_shape: tuple[int, ...] = ()
    """Shape of one example."""
    num_classes: int = 0
    """Number of different labels."""
    task: Task = CLASSIFICATION
    """Task that devices learn."""
    public_examples: int = 0
    """Number of public examples."""
    public_labelled: bool = False
    """Whether devices know the labels of public examples."""
    public_tests: bool = False
    """Whether devices are tested on public examples."""
    true_groups: int | None = None
    """Number of true groups in the partition; None if it has none."""
    training: TrainingSettings = field(default_factory=TrainingSettings)
    """Section `training` of the experiment."""
    privacy: PrivacySettings | None = None
    """Section `privacy` of the experiment; None if it has none."""
    cohort: Callable[[int], Sequence[int]] = field(default=lambda _: (), repr=False, compare=False)
    """Function of an LPS round. It returns the indexes of the devices that are asked in this round. It returns nothing
    if every device is asked in every round.
    """
    absences: bool = False
    """True if devices may be absent in a round, because of `training.participation` or `schedule.leave`."""
    make_model: "Callable[[], Model] | None" = field(default=None, repr=False, compare=False)
    """Function that constructs the model."""

    @cached_property
    def model(self) -> "Model":
        """The model. It is constructed at the first access."""
        if self.make_model is None:
            raise PluginError("the method needs the model, and Facts has no make_model; pass make_model to Facts")
        return self.make_model()

    @property
    def layout(self) -> Layout:
        """Layout of the model: the names and shapes of its tensors. `questions` needs it if devices answer with such
        tensors.
        """
        return self.model.layout

    @property
    def trainable(self) -> Layout:
        """Layout of the model's tensors with a gradient. `questions` needs it if devices answer with such tensors."""
        return self.model.trainable


# the features that a method refuses if devices and servers must change their state together
JOINED_LATE_OR_LOST = ("newcomers that train", "quorum below 1")
# the features that a method refuses if it needs all devices in every round
EVERYBODY = ("training.participation", "schedule.leave", *JOINED_LATE_OR_LOST)


def one_training(method: "Method", examples: int, lps_round: int) -> int:
    """Return the number of examples, with repetitions, in one training on a device that has `examples` examples. The
    section `training` decides the number, and it is the same in each LPS round.
    """
    return method.facts.training.trained_examples(examples)


class Method:
    """Define a method. This class, without a subclass, is FedAvg with one cluster (McMahan et al. 2017).

    A subclass overrides only the functions that differ from FedAvg. `answer`, `hear`, `local` and `measure` run on a
    device. All other functions run at servers, too, so they must not need torch. A method object stores nothing between
    calls. Everything that it must remember is in plans and in the personal state of devices. A subclass that overrides
    `plan` must also override `place`; otherwise it cannot place late devices.
    """

    Options: ClassVar[type[MethodSettings]] = MethodSettings
    """The method's options, a subclass of `MethodSettings`. pydantic checks them."""
    fetches_all: ClassVar[bool] = False
    """If true, devices receive the models of several clusters: of all clusters, or of the clusters in the plan's
    `offers`.
    """
    mixes: ClassVar[bool] = False
    """Whether plans have `weights`."""
    withdraws: ClassVar[bool] = False
    """Whether plans have `withdrawn` tensors."""
    has_personal_state: ClassVar[bool] = False
    """If true, outcomes have `personal` state, which the device can keep sealed on its disk."""
    discarded: ClassVar[frozenset[int]] = frozenset()
    """Numbers of trainings for a model that the device measures, then deletes. Like measuring, they take no
    time on a clock, and their optimisers always begin anew.
    """
    trained_examples: ClassVar[Callable[[Any, int, int], int | None]] = one_training
    """Method `trained_examples(examples, lps_round)`. It returns on how many examples, with repetitions, `local` trains
    in an LPS round on a device with this many examples, or None if the number depends on the data. Estimates before a
    run use it. The default `one_training` is one training as the section `training` says. A subclass that overrides
    `local` must set it again; otherwise the number is unknown.
    """
    server_optimiser: AnyServerOptimiser | None = None
    """Settings of the optimiser with which a server applies the mean update of devices: the LPS of a cluster or, if
    clusters span LPSs, the GPS. If None, the optimisers of the section `training` apply.
    """
    noises_profiles: ClassVar[bool] = False
    """If true, the method adds noise from `Work.noise` to all answers when `privacy.profiles` is set."""

    def __init__(self, options: Any, facts: Facts) -> None:
        self.options = options
        self.facts = facts
        self.check()

    def check(self) -> None:
        """Raise ExperimentError if the options contradict the facts of the run."""

    @property
    def needs_labels(self) -> bool:
        """True if the method needs a label for each example, or one output per label. Such a method refuses tasks
        without labels.
        """
        return False

    @property
    def clusters_known(self) -> int:
        """Number of clusters. It is 0 if the plan decides the number."""
        return 1

    def refuses(self) -> Mapping[str, str]:
        """Return the features, such as keys of the experiment file, that the method refuses, each with the reason.

        `FEATURES` in `fedstrata.checks.combinations` has the names of all features.
        """
        return {}

    @property
    def most_offered(self) -> int | None:
        """Largest number of models that a device receives in a round, for methods with `fetches_all`. None means the
        models of all clusters.
        """
        return None

    def channels(self, model: "Model") -> tuple[Channel, ...]:
        """Return the method's channels. Each tensor of the model is in exactly one channel, and each table of the
        method, too.
        """
        return shared_and_rest(model, Reach.CLUSTER)

    def initial(self, model: "Model", cluster: int) -> Flat:
        """Return the first weights of a cluster, shape (size,)."""
        return model.initial(self.facts.seed)

    # questions

    def questions(self) -> Sequence[Question]:
        """Return the questions for devices. Questions before training are asked in this order. A method has at most
        one question that devices answer in every global round.
        """
        return ()

    def tells(self) -> Mapping[str, tuple[str, tuple[int, ...]]]:
        """Declare the arrays that a plan may send to all devices (`Plan.told`). Return the dtype and shape of each, as
        in `Question.arrays`.
        """
        return {}

    async def answer(self, question: Question, work: Work, heard: Mapping[int, Any]) -> Arrays:
        """Return the device's answer to a question. `heard` has the results of `hear` for the relayed answers of other
        devices, by the other device's index.
        """
        raise PluginError(f"{type(self).__name__} asks {question.name}, but does not implement answer")

    async def hear(self, question: Question, work: Work, arrays: Arrays) -> Any:
        """Return a value computed from the relayed answer of another device. The device's own next answer receives
        these values as the argument `heard`.
        """
        raise PluginError(f"{type(self).__name__} relays {question.name}, but does not implement hear")

    def check_answer(self, question: Question, arrays: Arrays, relayed_by: Iterable[int]) -> None:
        """Raise PayloadError if an answer has the right shapes but impossible values. `relayed_by` has the indexes of
        the devices from which the answering device had received relayed answers.
        """

    def check_answer_of(self, device: Candidate, question: Question, arrays: Arrays, relayed_by: Iterable[int]) -> None:
        """Raise PayloadError for impossible values, as `check_answer` does. This check may depend on the device that
        answers. It is called only for questions before training.
        """
        self.check_answer(question, arrays, relayed_by)

    def relays(self) -> Sequence[int]:
        """Return the indexes, ascending, of the devices from which the GPS relays answers to other devices."""
        return range(self.facts.device_count)

    # plans

    def plan(self, moment: Moment, answers: Answers, before: Plan | None) -> Plan:
        """Make the plan that holds from now on. `before` is the previous plan; None for the first plan."""
        return Plan(clusters=(tuple(device.device_index for device in answers.devices),), rule="one cluster")

    def sponsors(self, plan: Plan) -> tuple[tuple[int, ...], ...]:
        """Return the sponsors of each cluster. These are the devices from which the GPS relays answers to a late
        device.
        """
        return ()

    def place(self, late: Candidate, answers: Answers, plan: Plan) -> int:
        """Choose the cluster of a device that joins after the first plan, and return the number of this cluster.

        `answers` has the answers to questions before training, from the devices of the plan and from the late device.
        Answers to relayed questions are left out, because only devices use them.
        """
        return 0

    # local work

    async def local(self, work: Work) -> Outcome:
        """Do the device's work of an LPS round, and return its outcome. By default the device trains the received model
        with the experiment's optimiser.
        """
        return Outcome.of(await work.train(work.start))

    async def measure(self, work: Work) -> tuple[Measurement, Measurement | None]:
        """Measure, on held-out examples, the model that the device uses. If the device uses another model than the
        received one, also measure the received model. Otherwise the second result is None.
        """
        return await work.measure(work.start), None


def uses_own_model(method: type[Method]) -> bool:
    """Return whether devices use another model than the received one, such as their own model or a mix."""
    return method.measure is not Method.measure


def places_late(method: type[Method]) -> bool:
    """Return whether a method can choose a cluster for a device that joins after the first plan."""
    return _follows(method, "place", "plan")


def trained_examples_of(method: Method, examples: int, lps_round: int) -> int | None:
    """Return the number of examples, with repetitions, on which a device that has `examples` examples trains in an LPS
    round. Return None if the number is unknown before the run.
    """
    return method.trained_examples(examples, lps_round) if says_trained_examples(type(method)) else None


def says_trained_examples(method: type[Method]) -> bool:
    """Return whether a method's `trained_examples` describes the method's own `local`, not the `local` of a base
    class.
    """
    return _follows(method, "trained_examples", Method.local.__name__)


def _follows(method: type[Method], name: str, other: str) -> bool:
    """Return whether the class that defines `name` is a subclass of the class that defines `other`, or the same class.
    Both are names of attributes of `method`.
    """
    own, others = (next(kind for kind in method.__mro__ if each in vars(kind)) for each in (name, other))
    return issubclass(own, others)
