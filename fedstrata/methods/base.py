"""The contract between methods and tiers. A method is one file: a subclass of `Method` that says what is new.

The tiers carry out four things and know no method by name: a device **answers questions**, the GPS makes **plans**
from the answers, a device does its **local work**, and what leaves it is summed up stream by stream. Every part has a
default, and the defaults together are FedAvg in clusters with shared layers. This is a whole method; all layers are
averaged over everybody, and a device that holds little data is pulled back harder:

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
>>> method = Careful.of({"name": "careful", "mu": 0.5}, Facts(device_count=3))
>>> method.plan(Moment.BEFORE, Answers([Candidate(device_index=index) for index in range(3)]), None).clusters
((0, 1, 2),)
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import NonNegativeFloat

from fedstrata.errors import PluginError
from fedstrata.experiment.privacy import PrivacySettings
from fedstrata.experiment.sections import MethodSettings, TrainingSettings
from fedstrata.methods.work import Array, Arrays, Measurement, Outcome, Pull, Trained, Work
from fedstrata.tensors.layout import Flat, Layout

if TYPE_CHECKING:
    from fedstrata.models import Model

__all__ = [
    "Answers", "Array", "Arrays", "Candidate", "Channel", "Facts", "Measurement", "Method", "MethodSettings", "Moment",
    "NonNegativeFloat", "Outcome", "Plan", "Pull", "Question", "Reach", "Trained", "Work", "all_layers",
    "shared_and_rest",
]  # fmt: skip

Matrix = NDArray[np.float64]


# --- what travels -------------------------------------------------------------------------------------------


class Reach(Enum):
    """Who shares one value of a channel."""

    EVERYWHERE = "everywhere"
    CLUSTER = "cluster"
    DEVICE = "device"  # it never leaves the device, which keeps it from round to round


@dataclass(frozen=True, kw_only=True)
class Channel:
    """Tensors that are shared alike. Its streams are its current values: one, one a cluster, or one a device.

    They are the model's, or **tables**, tensors of the method's own with names of their own, which begin at 0: scores
    of public examples, for instance. Devices find tables in `work.tables` and give them back in `Outcome.tables`. A
    stream moves by the mean of what devices send, trained minus received; one whose shares a plan says (`weights`)
    becomes the mean of whole values.
    """

    name: str
    tensors: Layout
    reach: Reach


def all_layers(model: "Model", reach: Reach) -> tuple[Channel, ...]:
    """One channel of the whole model."""
    return (Channel(name="model", tensors=model.layout, reach=reach),)


def shared_and_rest(model: "Model", rest: Reach) -> tuple[Channel, ...]:
    """The model's shared layers everywhere, the other layers as far as `rest` says."""
    others = [name for name in model.layout.names if name not in model.shared]
    return (
        Channel(name="shared", tensors=model.layout.select(model.shared), reach=Reach.EVERYWHERE),
        Channel(name="head", tensors=model.layout.select(others), reach=rest),
    )


# --- questions and answers ----------------------------------------------------------------------------------


class Moment(Enum):
    """When devices are asked."""

    BEFORE = "before"  # once, before training; of several questions each when all have answered the one before
    RECEIVED = "received"  # each global round: devices have its models and have not trained
    TRAINED = "trained"  # each global round: devices have trained, and nothing of it has left them


@dataclass(frozen=True, kw_only=True)
class Question:
    """What devices are asked: small arrays by name, each with its dtype and the largest shape that it may have.

    The first side of a shape may be less, the others are as said. Of a `relayed` question the answers are streamed to
    the other devices, too, which fold each as it comes (`Method.hear`).
    """

    name: str
    moment: Moment
    arrays: Mapping[str, tuple[str, tuple[int, ...]]]
    relayed: bool = False


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A device as the GPS sees it when it makes a plan."""

    device_index: int
    num_examples: int = 1
    true_task: str | None = None  # known where the experiment itself gave the device its data


@dataclass(frozen=True)
class Answers:
    """What the GPS has been told: the devices that take part, and what they answered by question.

    Both are given in ascending order of device indexes, whatever the order of arrivals: no plan depends on it.
    """

    devices: Sequence[Candidate]
    given: Mapping[str, Mapping[int, Arrays]] = field(default_factory=dict)
    global_round: int = -1  # counted from 0; -1 before training

    def __post_init__(self) -> None:
        object.__setattr__(self, "devices", sorted(self.devices, key=lambda device: device.device_index))

    def of(self, question: str) -> Mapping[int, Arrays]:
        """The answers to a question, by device index in ascending order."""
        return dict(sorted(self.given.get(question, {}).items()))


# --- plans --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Which devices form which cluster, by number, and the rule that made them."""

    clusters: tuple[tuple[int, ...], ...]  # device indexes; a cluster may be empty where the method asks every round
    rule: str
    parents: tuple[int, ...] = ()  # by cluster, the one of the plan before whose values it goes on from; (): its own
    # By channel, for each of its streams the share of every device in its next value: a linear mix. Of a channel that
    # is not named, everybody who shares a stream has a part in it, each by its examples.
    weights: Mapping[str, tuple[Mapping[int, float], ...]] = field(default_factory=dict)
    # By cluster, those whose models its devices receive from the next global round on, where it is not all; ascending,
    # and the cluster's own is among them.
    offers: tuple[tuple[int, ...], ...] = ()
    withdrawn: tuple[str, ...] = ()  # tensors that stay at devices from the next global round on, as those before
    told: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # to all devices, from the next global round on
    affinity: Matrix | None = None  # how alike devices are, in [0, 1], which the grouping was read from
    related: tuple[int, ...] = ()  # the device indexes of its rows
    memory: Mapping[str, Any] = field(default_factory=dict)  # of the method, for its next plan; JSON values

    @classmethod
    def ordered(cls, clusters: Iterable[Iterable[int]], rule: str, **rest: Any) -> "Plan":
        """Clusters in the order of their lowest device, devices in order: no result depends on label numbers."""
        return cls(clusters=tuple(sorted(tuple(sorted(cluster)) for cluster in clusters)), rule=rule, **rest)

    def check_covers(self, devices: Sequence[Candidate], *, may_be_empty: bool = False) -> None:
        """Raise PluginError unless every device is in one cluster, and no cluster is empty where none may be."""
        grouped = sorted(index for cluster in self.clusters for index in cluster)
        is_whole = grouped == sorted(device.device_index for device in devices)
        if not is_whole or not (may_be_empty or all(self.clusters)):
            raise PluginError(f"a method puts every device into one cluster, and this one made {list(self.clusters)}")

    def cluster_of(self, device_index: int) -> int:
        """The number of a device's cluster. Raises KeyError for a device that is in none."""
        for number, cluster in enumerate(self.clusters):
            if device_index in cluster:
                return number
        raise KeyError(device_index)


# --- methods ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of a run before it begins."""

    device_count: int
    seed: int = 0
    input_shape: tuple[int, ...] = ()
    num_classes: int = 0
    public_examples: int = 0  # that belong to nobody
    public_labelled: bool = False  # whether devices are told their labels
    public_tests: bool = False  # whether devices are tested on them
    true_groups: int | None = None  # how many groups the partition itself has, where it has any
    training: TrainingSettings = field(default_factory=TrainingSettings)
    privacy: PrivacySettings | None = None
    make_model: "Callable[[], Model] | None" = field(default=None, repr=False, compare=False)

    @cached_property
    def layout(self) -> Layout:
        """The model's, for a question whose arrays are as large as some of its tensors; made where it is asked for."""
        if self.make_model is None:
            raise PluginError("a method asks for the model's layout where no model is known; give Facts a make_model")
        return self.make_model().layout


EVERYBODY = ("training.participation", "schedule.leave", "newcomers that train")  # if a method needs all devices


class Method:
    """FedAvg inside each cluster, the shared layers averaged over all (McMahan et al. 2017), everybody in one cluster.

    A subclass overrides what is new. Everything runs at a device but `plan`, `sponsors` and `place`, which run at the
    GPS and do without torch. Methods keep nothing between calls: what lasts is in plans and in a device's personal
    state. Who overrides `plan` overrides `place`, too, or places no late devices.
    """

    Options: ClassVar[type[MethodSettings]] = MethodSettings
    fetches_all: ClassVar[bool] = (
        False  # whether a device receives every cluster's model, or those of the plan's offers
    )
    mixes: ClassVar[bool] = False  # whether plans have weights
    withdraws: ClassVar[bool] = False  # whether plans withdraw tensors
    has_personal_state: ClassVar[bool] = False  # whether an Outcome has something in `personal`
    noises_profiles: ClassVar[bool] = False  # whether all its answers are noised where `facts.privacy.profiles` says so

    def __init__(self, options: Any, facts: Facts) -> None:
        self.options = options
        self.facts = facts
        self.check()

    @classmethod
    def of(cls, section: Mapping[str, Any], facts: Facts) -> Self:
        """The method with its section of the experiment file. Raises ValidationError for keys that it has not."""
        return cls(cls.Options.model_validate(section), facts)

    def check(self) -> None:
        """Raise ExperimentError where options and facts do not go together."""

    @property
    def clusters_known(self) -> int:
        """How many clusters there will be, as far as that is known before the run; 0 where the plan has to tell."""
        return 1

    def refuses(self) -> Mapping[str, str]:
        """Return the features that the method does not go with, each with the reason.

        Features have the names of `fedstrata.checks.combinations`: mostly keys of the experiment file.
        """
        return {}

    @property
    def most_offered(self) -> int | None:
        """Of how many clusters a device receives the models at most, where it fetches them; None: of all."""
        return None

    def channels(self, model: "Model") -> tuple[Channel, ...]:
        """What travels how far; together all tensors of the model, and tables, if there are any."""
        return shared_and_rest(model, Reach.CLUSTER)

    def initial(self, model: "Model", cluster: int) -> Flat:
        """The weights that a cluster begins with, shape (size,)."""
        return model.initial(self.facts.seed)

    # questions

    def questions(self) -> Sequence[Question]:
        """What devices are asked; those before training in this order, and at most one in a global round."""
        return ()

    def tells(self) -> Mapping[str, tuple[str, tuple[int, ...]]]:
        """What a plan may tell all devices: arrays by name, with dtype and largest shape as those of a question."""
        return {}

    async def answer(self, question: Question, work: Work, heard: Mapping[int, Any]) -> Arrays:
        """A device's answer. `heard` has, by device index, what `hear` made of the others' relayed answers."""
        raise NotImplementedError(f"{type(self).__name__} asks {question.name} and has no answer to it")

    async def hear(self, question: Question, work: Work, arrays: Arrays) -> Any:
        """What a device keeps of another's relayed answer."""
        raise NotImplementedError(f"{type(self).__name__} relays {question.name} and hears nothing")

    def check_answer(self, question: Question, arrays: Arrays, relayed_by: Iterable[int]) -> None:
        """Raise PayloadError for an answer, of the right shapes, that cannot be one; `relayed_by` was heard for it."""

    def check_answer_of(self, device: Candidate, question: Question, arrays: Arrays, relayed_by: Iterable[int]) -> None:
        """As `check_answer`, which is what it does by default, where it also counts whose answer it is."""
        self.check_answer(question, arrays, relayed_by)

    def relays(self) -> Sequence[int]:
        """The devices whose answers to relayed questions are relayed, by index in ascending order."""
        return range(self.facts.device_count)

    # plans

    def plan(self, moment: Moment, answers: Answers, before: Plan | None) -> Plan:
        """The plan from now on."""
        return Plan(clusters=(tuple(device.device_index for device in answers.devices),), rule="one cluster")

    def sponsors(self, plan: Plan) -> tuple[tuple[int, ...], ...]:
        """By cluster the devices whose relayed answers a late device hears."""
        return ()

    @classmethod
    def places_late(cls) -> bool:
        """Whether a device can be placed that comes after the first plan: `place` is as near as `plan`, or nearer."""
        plans, places = (next(kind for kind in cls.__mro__ if name in vars(kind)) for name in ("plan", "place"))
        return issubclass(places, plans)

    def place(self, late: Candidate, answers: Answers, plan: Plan) -> int:
        """The cluster, by number, of a device that comes after a plan; by default the only one.

        `answers` are of the devices that the plan was made of, and the late device's own, to questions before training
        that are not relayed.
        """
        return 0

    # local work

    async def local(self, work: Work) -> Outcome:
        """A round's local work: by default the experiment's stochastic gradient descent from what was received."""
        return Outcome.of(await work.train(work.start))

    async def measure(self, work: Work) -> tuple[Measurement, Measurement | None]:
        """What the device would use does on held-out examples; and what it received does, where that is another."""
        return await work.measure(work.start), None
