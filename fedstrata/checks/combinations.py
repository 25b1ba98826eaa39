"""Hold one table of pairs of features that an experiment cannot combine, with the reasons.

`check_combinations` refuses an experiment with such a pair. `make reference` writes docs/reference/combinations.md from
the table. A method adds its own rows with `Method.refuses`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fedstrata.attacks import Entry, attacks_of
from fedstrata.errors import ExperimentError, PluginError
from fedstrata.experiment import MODELS, Experiment
from fedstrata.methods import Method, Moment, Reach, places_late
from fedstrata.rules.registry import TIERS, make_rule, sends_sums
from fedstrata.streams.homes import asks_in_training, lps_count, spans_lps


@dataclass(frozen=True, kw_only=True)
class Feature:
    """Define a feature that an experiment has or lacks.

    The function `said` returns the key and the value with which the experiment file asks for the feature. If the
    experiment lacks the feature, `said` returns "". The text `without` says how to avoid the feature.

    With `is_missing`, the feature is the absence of something, such as "answers without noise". Messages then say that
    the other feature needs what is absent.
    """

    said: Callable[[Experiment, Method], str]
    without: str
    is_missing: bool = False


@dataclass(frozen=True)
class Refusal:
    """Name two features that do not go together, and the reason."""

    when: tuple[str, str]
    why: str

    def said(self, experiment: Experiment, method: Method) -> str:
        """If the experiment has both features, return a message with the fault, the values and advice. Otherwise return
        "".
        """
        one, other = (FEATURES[name] for name in self.when)
        first = one.said(experiment, method)
        second = first and other.said(experiment, method)
        if not second:
            return ""
        verb = "needs" if other.is_missing else "does not go with"
        return f"{first} {verb} {second}: {self.why}; {one.without}, or {other.without}"


def _if(has: object, said: str) -> str:
    return said if has else ""


def _setting(key: str, without: str = "", off: Sequence[object] = (None, "none")) -> Feature:
    """Return a feature that an experiment has if the value of `key` is not one of `off`. `without` says how to avoid
    the feature. If the key is a section, error messages name only the section.
    """
    path = key.replace("-", "_").split(".")

    def said(experiment: Experiment, _: Method) -> str:
        found: object = experiment
        for part in (*path, "name"):
            found = getattr(found, part, found if part == "name" else None)
        return _if(found not in off, f"{key} {found}" if isinstance(found, str | int | float) else key)

    return Feature(said=said, without=without or f"remove {key}")


def _method_that(has: Callable[[Method], object], without: str = "choose another method") -> Feature:
    return Feature(
        said=lambda experiment, method: _if(has(method), f"method {experiment.method.name}"), without=without
    )


def _lack_of(what: str, has: Callable[[Experiment], object], without: str = "") -> Feature:
    return Feature(
        said=lambda experiment, _: _if(not has(experiment), what), without=without or f"add {what}", is_missing=True
    )


def _scheduled(kind: str) -> Feature:
    def said(experiment: Experiment, _: Method) -> str:
        entries = enumerate(experiment.schedule if experiment.clock != "none" else ())
        return next((f"schedule.{number}.{kind}" for number, entry in entries if getattr(entry, kind) is not None), "")

    return Feature(said=said, without="remove this entry")


ROUNDS = "training.lps_rounds_per_global_round"
SOME_ROUNDS = _setting(ROUNDS, f"set {ROUNDS}: 1", off=(1,))


def _participation(experiment: Experiment, _: Method) -> str:
    training = experiment.training
    return _if(not training.asks_all(experiment.device_count), f"training.participation {training.participation}")


def _rounds_apart(experiment: Experiment, method: Method) -> str:
    has_several, rounds = lps_count(experiment) > 1, SOME_ROUNDS.said(experiment, method)
    return _if(has_several and rounds, f"{rounds} with topology")


def _spans(experiment: Experiment, method: Method) -> str:
    return _if(spans_lps(experiment, method), "topology" if experiment.topology else f"method {experiment.method.name}")


def _asynchronous(experiment: Experiment, _: Method) -> str:
    rounds = experiment.training.rounds
    return _if(rounds.asynchronous, f"training.rounds.lps {rounds.lps.kind}")


def _automatic(experiment: Experiment, _: Method) -> str:
    rounds = experiment.training.rounds.lps
    return _if(rounds.kind == "timed" and rounds.period == "auto", "training.rounds.lps.period auto")


def _virtual_deadline(experiment: Experiment, _: Method) -> str:
    deadline_s = experiment.deadlines.lps.deadline_s
    return _if(experiment.clock == "virtual" and deadline_s is not None, f"deadlines.lps.deadline_s {deadline_s}")


def _tables(experiment: Experiment, method: Method) -> str:
    channels = method.channels(method.facts.model)
    has_state = any(channel.counts_absent for channel in channels) or method.server_optimiser or method.tells()
    return _if(has_state, f"method {experiment.method.name}")


def _quorum(experiment: Experiment, _: Method) -> str:
    devices, found = experiment.device_count, experiment.deadlines
    tiers = {"enrolment": found.enrolment, "lps": found.lps, "gps": found.gps}
    low = (tier for tier, each in tiers.items() if each.quorum(devices) < devices)
    return next((f"deadlines.{tier}.quorum_ratio {tiers[tier].quorum_ratio:g}" for tier in low), "")


def _newcomers_that_train(experiment: Experiment, _: Method) -> str:
    late = experiment.newcomers
    return _if(late is not None and late.from_global_round <= experiment.training.global_rounds, "newcomers")


def _unnoised_answers(experiment: Experiment, method: Method) -> str:
    asked = ", ".join(question.name for question in method.questions() if question.moment is Moment.BEFORE)
    is_bare = experiment.privacy is None or experiment.privacy.profiles is None
    return _if(asked and is_bare, f"privacy.profiles with method {experiment.method.name} ({asked})")


def _counted_as_absent(experiment: Experiment, method: Method) -> str:
    absent = _participation(experiment, method) or _scheduled("leave").said(experiment, method)
    if not absent or not any(channel.counts_absent for channel in method.channels(method.facts.model)):
        return ""
    return f"{absent} with method {experiment.method.name}"


def _averaged_statistics(experiment: Experiment, method: Method) -> str:
    if experiment.model.name in MODELS or experiment.model.buffers != "average":
        return ""
    model = method.facts.model
    travels = {name for each in method.channels(model) if each.reach is not Reach.DEVICE for name in each.tensors.names}
    return _if(travels & {*model.statistics}, "model.buffers average")


def _not_plain_sgd(experiment: Experiment, _: Method) -> str:
    optimiser = experiment.training.optimiser
    return _if(not optimiser.is_plain, f"training.optimiser {optimiser.name}")


def _no_body_and_head(experiment: Experiment, method: Method) -> str:
    shared, trained = {*method.facts.model.shared}, {*method.facts.model.trainable.names}
    has_both = trained & shared and trained - shared
    return _if(not has_both, f"model.shared [{', '.join(method.facts.model.shared)}]")


def _attacks_that(has: Callable[[Entry], object]) -> Feature:
    """Return a feature that an experiment has if an entry of `attacks` has it."""

    def said(experiment: Experiment, _: Method) -> str:
        found = (f"attacks.{each.number} {each.attack.options.name}" for each in attacks_of(experiment) if has(each))
        return next(found, "")

    return Feature(said=said, without="remove this entry")


SECTIONS = (
    "training.lps_optimiser", "training.gps_optimiser", "deadlines.enrolment.deadline_s", "deadlines.lps.deadline_s",
    "deadlines.gps.deadline_s",
    "newcomers", "bounds.max_update_norm", "secure_aggregation", "privacy.updates", "privacy.profiles",
)  # fmt: skip
LINKS = ("links.device-lps.up", "links.lps-gps.up")
AGGREGATION = ("aggregation.lps", "aggregation.gps")
AT_PARENTS = (*AGGREGATION, "attacks at parents")
FEATURES: Mapping[str, Feature] = {
    # what the experiment file asks for
    "training.participation": Feature(said=_participation, without="remove training.participation"),
    ROUNDS: SOME_ROUNDS,
    "LPS rounds with topology": Feature(
        said=lambda experiment, method: _if(
            experiment.topology and SOME_ROUNDS.said(experiment, method), f"{ROUNDS} with topology"
        ),
        without=SOME_ROUNDS.without,
    ),
    "LPS rounds apart": Feature(said=_rounds_apart, without=SOME_ROUNDS.without),
    **{key: _setting(key) for key in SECTIONS},
    **{key: _setting(key, f"set {key}: float32", off=("float32",)) for key in LINKS},
    **{key: _setting(key, f"set {key}: mean", off=("mean",)) for key in AGGREGATION},
    "architectures": _setting("architectures", off=((),)),
    "times": Feature(said=lambda experiment, _: experiment.timed_key, without="remove this key"),
    "clock: virtual": _setting("clock", "set clock: real", off=("none", "real")),
    "no timeline": _lack_of("clock: virtual", lambda experiment: experiment.clock == "virtual", "set clock: virtual"),
    "deadlines.lps in virtual time": Feature(
        said=_virtual_deadline, without="remove deadlines.lps, or set clock: real"
    ),
    "asynchronous rounds": Feature(said=_asynchronous, without="remove training.rounds"),
    "period: auto": Feature(said=_automatic, without="set period to a duration"),
    "not plain SGD": Feature(
        said=_not_plain_sgd, without="choose optimiser sgd, without nesterov, clip_norm and state: kept"
    ),
    "schedule.leave": _scheduled("leave"),
    "schedule.move": _scheduled("move"),
    "newcomers that train": Feature(said=_newcomers_that_train, without="remove newcomers"),
    "quorum below 1": Feature(said=_quorum, without="remove quorum_ratio"),
    "privacy.updates.covers: sum": _setting(
        "privacy.updates.covers", "set privacy.updates.covers: update", off=(None, "update")
    ),
    "partition.kind: local": Feature(
        said=lambda experiment, _: _if(experiment.partition.is_local, "partition.kind local"),
        without="choose another partition",
    ),
    "partition.tests: global": _setting(
        "partition.tests", "set partition.tests: own", off=(None, "own", "alike", "validation")
    ),
    "attacks": _attacks_that(lambda _: True),
    "attacks.lps": _attacks_that(lambda entry: entry.lps),
    "attacks at parents": _attacks_that(lambda entry: entry.lps or entry.attack.colludes),
    "devices that collude": _attacks_that(lambda entry: entry.attack.colludes and not entry.lps),
    "averaged statistics": Feature(said=_averaged_statistics, without="set model.buffers: device"),
    # what the experiment file lacks
    "no clock": _lack_of(
        "a clock",
        lambda experiment: "clock" in experiment.model_fields_set,
        "add clock: virtual or clock: real, or add clock: none to ignore all times",
    ),
    "no normalisation": Feature(
        said=lambda experiment, method: _if(not method.facts.model.normalisations, f"model {experiment.model.name}"),
        without="choose a model with normalisation layers",
    ),
    "no body and head": Feature(
        said=_no_body_and_head, without="list some of the layers that train, but not all, in model.shared"
    ),
    "no dense last layer": Feature(
        said=lambda experiment, method: _if(not method.facts.model.last_weight, f"model {experiment.model.name}"),
        without="choose a model with a dense last layer",
    ),
    "no topology": _lack_of("topology", lambda experiment: experiment.topology),
    "no secure_aggregation": _lack_of("secure_aggregation", lambda experiment: experiment.secure_aggregation),
    # what the method does
    "clusters span LPSs": Feature(
        said=_spans,
        without="give each cluster its own LPS: remove topology, and choose a method that plans before training",
    ),
    "several clusters span LPSs": Feature(
        said=lambda experiment, method: _if(method.clusters_known != 1, _spans(experiment, method)),
        without="choose a method with a single cluster, such as fedavg",
    ),
    "several clusters": _method_that(
        lambda method: method.clusters_known != 1, "choose a method with a single cluster, such as fedavg"
    ),
    "partial sums": Feature(
        said=lambda experiment, method: _if(
            sends_sums(experiment, spans=spans_lps(experiment, method)), _spans(experiment, method)
        ),
        without=f"set {ROUNDS} to 2 or more",
    ),
    "plans mix updates": _method_that(lambda method: method.mixes),
    "asks in each round": _method_that(lambda method: asks_in_training(method) is not None),
    "asks after training": _method_that(lambda method: asks_in_training(method) is Moment.TRAINED),
    "needs labels": _method_that(lambda method: method.needs_labels),
    "task without labels": Feature(
        said=lambda experiment, method: _if(not method.facts.task.labelled, f"task {experiment.task.name}"),
        without="choose task classification",
    ),
    "answers without noise": Feature(said=_unnoised_answers, without="add privacy.profiles", is_missing=True),
    "profiles without noise": _method_that(
        lambda method: not method.noises_profiles, "choose method one_shot or label_means"
    ),
    "absent devices count": Feature(said=_counted_as_absent, without="choose another method"),
    "state over all devices": Feature(said=_tables, without="choose another method"),
    "places no late device": _method_that(lambda method: not places_late(type(method))),
}
VARIANCE = "could move a variance of batch normalisation below 0"
CLOUD = "the method needs the GPS after each LPS round"
VIRTUAL = "on the virtual clock only LPS rounds have deadlines"
REFUSALS = (
    Refusal((ROUNDS, "plans mix updates"), CLOUD),
    Refusal((ROUNDS, "asks after training"), CLOUD),
    Refusal(
        ("training.lps_optimiser", "clusters span LPSs"),
        "the GPS takes the steps of such clusters, with training.gps_optimiser",
    ),
    Refusal(
        ("links.lps-gps.up", "partial sums"),
        "with one LPS round per global round, LPSs send exact partial sums of the clusters that span LPSs",
    ),
    Refusal(
        ("aggregation.lps", "secure_aggregation"),
        "masks hide single updates from an LPS, and devices that lie would not clip their own",
    ),
    *(Refusal((key, "plans mix updates"), "a mix is a sum of updates with weights") for key in AT_PARENTS),
    *(
        Refusal((key, "asks in each round"), "a plan that changes in a round needs the sums of that round")
        for key in AT_PARENTS
    ),
    *(
        Refusal((key, "absent devices count"), "the method needs the mean over all devices, also absent ones")
        for key in AT_PARENTS
    ),
    Refusal(
        ("partition.tests: global", "several clusters"),
        "the devices of one cluster have only a part of the test set, so no cluster's model is measured on all of it",
    ),
    Refusal(("attacks", "partition.kind: local"), "such devices are real, and must never attack"),
    Refusal(
        ("attacks", "privacy.updates.covers: sum"),
        "the devices of a sum share its noise, and an attacker may send less than its share",
    ),
    Refusal(("attacks", "averaged statistics"), f"an attack {VARIANCE}"),
    Refusal(("attacks.lps", "no topology"), "without topology each cluster has one LPS, and the plan decides which"),
    Refusal(("devices that collude", "secure_aggregation"), "the LPS replaces their updates, and masks hide them"),
    Refusal(("task without labels", "needs labels"), "the method needs labels, or a model with one output per label"),
    Refusal(("training.lps_optimiser", "averaged statistics"), f"an optimiser's step {VARIANCE}"),
    Refusal(("training.gps_optimiser", "averaged statistics"), f"an optimiser's step {VARIANCE}"),
    Refusal(("links.device-lps.up", "averaged statistics"), f"rounding of an update {VARIANCE}"),
    Refusal(("links.lps-gps.up", "averaged statistics"), f"rounding of an update {VARIANCE}"),
    Refusal(("privacy.updates", "averaged statistics"), f"noise {VARIANCE}"),
    Refusal(("times", "no clock"), "times have no effect without a clock"),
    Refusal(("deadlines.enrolment.deadline_s", "clock: virtual"), VIRTUAL),
    Refusal(("deadlines.gps.deadline_s", "clock: virtual"), VIRTUAL),
    Refusal(
        ("schedule.move", "no topology"), "a device moves to another LPS, and without topology each cluster has one LPS"
    ),
    Refusal(("period: auto", "no timeline"), "only the virtual clock knows how long the work of each device takes"),
    Refusal(
        ("asynchronous rounds", "training.participation"),
        "a round asks all devices that have no update under way",
    ),
    Refusal(
        ("asynchronous rounds", "deadlines.lps in virtual time"),
        "no device is late, because its update is part of a later round",
    ),
    *(
        Refusal(("asynchronous rounds", key), "the devices of a round are not known when it begins")
        for key in ("schedule.leave", "schedule.move", "newcomers")
    ),
    *(
        Refusal(("asynchronous rounds", key), "masks and noise are for the devices of one round")
        for key in ("secure_aggregation", "privacy.updates")
    ),
    *(
        Refusal(("asynchronous rounds", key), "all devices of a plan must take part in the same round")
        for key in ("asks in each round", "plans mix updates", "state over all devices")
    ),
    *(
        Refusal(("asynchronous rounds", key), "updates of earlier models are only averaged")
        for key in (*AT_PARENTS, "training.lps_optimiser")
    ),
    Refusal(("asynchronous rounds", "averaged statistics"), f"an update of an earlier model {VARIANCE}"),
    Refusal(("newcomers", "places no late device"), "the method has no rule that places newcomers into clusters"),
    Refusal(("newcomers", "plans mix updates"), "the weights of the mix are decided before newcomers enrol"),
    Refusal(("newcomers", "asks in each round"), "each new plan is made from the devices of the previous plan alone"),
    Refusal(
        ("secure_aggregation", "plans mix updates"),
        "LPSs apply the weights of a mix to single updates, and masks hide single updates",
    ),
    Refusal(("secure_aggregation", "asks after training"), "answers about updates reveal what masks hide"),
    Refusal(
        ("secure_aggregation", "several clusters span LPSs"),
        "masks cancel only in the sum over all devices of an LPS, and there each of these clusters has its own sum",
    ),
    Refusal(("secure_aggregation", "bounds.max_update_norm"), "no server can measure the norm of a masked update"),
    Refusal(
        ("privacy.updates", "plans mix updates"),
        "the method gives single updates different weights, and private updates all have the same weight",
    ),
    Refusal(("privacy.updates", "asks in each round"), "no noise covers the answers that devices give in rounds"),
    Refusal(
        ("privacy.updates", "answers without noise"),
        "without privacy.profiles no noise covers the answers that devices give before training",
    ),
    Refusal(
        ("privacy.updates.covers: sum", "no secure_aggregation"),
        "without secure_aggregation an LPS sees single updates",
    ),
    Refusal(("privacy.updates.covers: sum", "links.device-lps.up"), "this encoding rounds each single update"),
    Refusal(("privacy.profiles", "profiles without noise"), "the method shares no profile that noise is defined for"),
)


def _own_refusals(experiment: Experiment, method: Method) -> Iterator[str]:
    """Yield a message for each feature of the experiment that the method refuses with `Method.refuses`, a rule with
    `Rule.refuses`, or an attack with `Attack.refuses`.
    """
    own: list[tuple[str, str, Mapping[str, str]]] = [("method", experiment.method.name, method.refuses())]
    for tier in TIERS:
        rule = make_rule(experiment, tier)
        own.append((f"aggregation.{tier}", rule.options.name, rule.refuses()))
    own += [("attack", each.attack.options.name, each.attack.refuses()) for each in attacks_of(experiment)]
    for what, name, refused in own:
        if not isinstance(refused, Mapping):
            raise PluginError(
                f"{what} {name}: refuses must return a mapping from features to reasons, not {refused!r:.80}"
            )
        for key, why in refused.items():
            if key not in FEATURES:
                raise PluginError(
                    f"{what} {name} refuses {key!r}, which is not a feature; choose from {', '.join(FEATURES)}"
                )
            if said := FEATURES[key].said(experiment, method):
                another = f"choose another {what.partition('.')[0]}"
                yield f"{said} does not go with {what} {name}: {why}; {FEATURES[key].without}, or {another}"


def refusals(experiment: Experiment, method: Method) -> list[str]:
    """Return a message for each forbidden pair of features in the experiment, in the order of the table. Messages of
    the method's own rows are included.
    """
    by_table = (row.said(experiment, method) for row in REFUSALS)
    return [*filter(None, by_table), *_own_refusals(experiment, method)]


def check_combinations(experiment: Experiment, method: Method) -> None:
    """Check an experiment for features that do not go together. Raises ExperimentError for the first such pair."""
    if found := refusals(experiment, method):
        raise ExperimentError(found[0])
