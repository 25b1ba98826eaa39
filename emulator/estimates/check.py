"""Check an experiment before it runs, and estimate its bytes. `fedstrata check` prints the result."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from emulator.console.console_tables import plain_table
from emulator.console.units import counted, grouped, human_bytes
from emulator.estimates.asynchronous_times import print_timeline
from emulator.estimates.check_times import Payloads, check_deadline, expected_homes, print_links, print_times
from emulator.estimates.device_processes import process_count
from emulator.estimates.sizing import (
    are_examples_guessed,
    device_memory,
    examples_of_a_device,
    lacking_room,
    lps_memory,
    processor_memory,
)
from emulator.results.labels import drift_said
from fedstrata.attacks import attacks_of
from fedstrata.clock.clocks import clock_of
from fedstrata.datasets import Dataset, DatasetInfo, dataset_info, load_dataset
from fedstrata.errors import ExperimentError, PluginError
from fedstrata.experiment import Experiment
from fedstrata.experiment.quantities import written_devices
from fedstrata.experiment.sections import AggregationSettings, DeviceSettings
from fedstrata.methods import Method, Moment, make_method, uses_default
from fedstrata.methods.cohort import cohort_size
from fedstrata.models import check_inputs
from fedstrata.partitions import check_partition, example_counts
from fedstrata.partitions.tasks import TaskPartition
from fedstrata.privacy.report import privacy_lines
from fedstrata.process.quoting import printable
from fedstrata.processors import lacking, processor_of
from fedstrata.record.summary import TEST_SETS
from fedstrata.rpc.answer_messages import largest_bytes
from fedstrata.rules.registry import TIERS, Tier, make_rule, sends_sums
from fedstrata.rules.spool import FLOAT
from fedstrata.streams.architectures import Architectures
from fedstrata.streams.homes import are_placed_by_index, homes_of, lps_known
from fedstrata.streams.streams import streams_of
from fedstrata.tensors.codec import ELEMENT_BYTES, AnyEncoding

MOST_SAID = 8  # names in one line
EXACT_SAID = (
    f"An LPS sends {ELEMENT_BYTES['exact']} bytes a weight to the GPS, because devices of a cluster at different LPSs "
    "are averaged exactly. With training.lps_rounds_per_global_round of 2 or more it sends means, "
    "encoded as links.lps-gps.up says."
)


@dataclass(frozen=True, kw_only=True)
class ModelSize:
    """Hold the size of a model in elements, and how many of these elements are sent over each link."""

    elements: int
    frozen_elements: int  # elements that neither train nor travel
    travelling_elements: int  # elements sent between a device and its LPS
    stream_elements: int  # elements sent between an LPS and the GPS, for all known clusters
    fetched_elements: int  # elements of the several models that a device receives
    shared_layers: tuple[str, ...]
    own_layers: tuple[str, ...]  # layers that never leave a device
    is_exact: bool  # whether LPSs send exact partial sums to the GPS


@dataclass(frozen=True, kw_only=True)
class QuestionBytes:
    """Hold the largest possible number of payload bytes of all answers to one question of the method. `up` has the
    bytes that devices send. `down` has the bytes of answers that are forwarded to other devices.
    """

    name: str
    moment: Moment
    up: int
    down: int


@dataclass(frozen=True, kw_only=True)
class RoundBytes:
    """Hold the payload bytes of rounds. The link device-lps has the bytes of all devices that LPSs ask in an LPS
    round. The link lps-gps has the bytes of one LPS in a global round.
    """

    device_lps_down: int
    device_lps_up: int
    lps_gps_down: int
    lps_gps_up: int


def asked_devices(experiment: Experiment) -> int:
    """Return how many devices all LPSs together are expected to ask in an LPS round."""
    participation = experiment.training.participation
    return sum(cohort_size(len(home), participation) for home in expected_homes(experiment))


def question_bytes(experiment: Experiment) -> list[QuestionBytes]:
    """Return the largest possible number of bytes of all answers, for each question of the method."""
    method, devices, asked = make_method(experiment), experiment.device_count, asked_devices(experiment)
    relayed_by = len(method.relays())
    return [
        QuestionBytes(
            name=question.name,
            moment=question.moment,
            up=(devices if question.moment is Moment.BEFORE else asked) * largest_bytes(question),
            down=relayed_by * (devices - 1) * largest_bytes(question) if question.relayed else 0,
        )
        for question in method.questions()
    ]


def round_bytes(experiment: Experiment, model: ModelSize) -> RoundBytes:
    """Return the payload bytes of an LPS round and of a global round. They depend on the model's size and on the
    encodings of both links.
    """
    device_lps, lps_gps, asked = experiment.links.device_lps, experiment.links.lps_gps, asked_devices(experiment)
    up: AnyEncoding = "exact" if model.is_exact else lps_gps.up
    fetched = model.fetched_elements if make_method(experiment).fetches_all else model.travelling_elements
    update: AnyEncoding = device_lps.up if experiment.secure_aggregation is None else "exact"
    return RoundBytes(
        device_lps_down=asked * fetched * ELEMENT_BYTES[device_lps.down],
        device_lps_up=asked * model.travelling_elements * ELEMENT_BYTES[update],
        lps_gps_down=model.stream_elements * ELEMENT_BYTES[lps_gps.down],
        lps_gps_up=model.stream_elements * ELEMENT_BYTES[up],
    )


def cluster_count(method: Method) -> str:
    """Return the number of clusters as text. If it is not known before the run, the text says so."""
    return str(method.clusters_known or "as many as the method finds")


def lps_wanted(experiment: Experiment, method: Method) -> str:
    """Return a text with the number of LPSs, and whether each LPS serves one cluster."""
    if are_placed_by_index(experiment, method):
        return f"{lps_known(experiment, method)}, which clusters span"
    return f"{cluster_count(method)}, one per cluster"


def check_data(experiment: Experiment) -> Dataset | None:
    """Check that the data set and the deadlines allow a run. Return the data set. If only the boards have the data,
    return None.

    Raises:
        DataError: the data set is missing, or has fewer examples than the partition needs.
        ExperimentError: a built-in model does not accept the inputs, or too few devices can meet a deadline.
    """
    # With a local partition only the devices have the data.
    if experiment.partition.is_local:
        return None
    dataset = load_dataset(experiment.data, experiment.seed)
    check_fit(experiment, dataset)
    return dataset


def check_here(experiment: Experiment) -> Dataset | None:
    """Check that the experiment can run on this machine: its data, see `check_data`, and its processor. Raises
    ExperimentError if this machine lacks the processor.
    """
    if said := lacking(experiment):
        raise ExperimentError(said)
    return check_data(experiment)


def check_fit(experiment: Experiment, dataset: Dataset) -> None:
    """Check that devices, models and deadlines fit a data set. Raises FedstrataError like `check_data`."""
    check_partition(experiment, dataset)
    for settings in (experiment.model, *(entry.model for entry in experiment.architectures)):
        check_inputs(settings, dataset.train)
    check_deadlines(experiment, dataset)


def print_check(experiment: Experiment, dataset: Dataset | None, console: Console) -> None:
    """Print the topology of a checked experiment, its bytes and, with a clock, its expected times. `dataset` has the
    experiment's data. If only the boards have them, it is None.

    Raises:
        FedstrataError: the model or a `module:function` is not usable.
    """
    info = dataset_info(experiment.data)
    model = model_size(experiment, info)
    console.print(Text(experiment.run_id, style="bold"))
    console.print(_topology_table(experiment, info, model, dataset))
    if isinstance(experiment.partition, TaskPartition):
        console.print(_task_table(experiment.partition))
    console.print(_bytes_table(experiment, model))
    if model.is_exact:
        console.print(Text(EXACT_SAID))
    if clock_of(experiment).has_links:
        print_links(experiment, console)
        rounds = experiment.training.rounds.asynchronous
        if dataset is None:
            return  # only the devices know how many examples they have
        if rounds is None:
            print_times(experiment, payloads_of(experiment, model), dataset, console)
        else:
            print_timeline(experiment, rounds, dataset, console)


def check_deadlines(experiment: Experiment, dataset: Dataset) -> None:
    """Check that enough devices can meet the deadline. Raises ExperimentError if they cannot."""
    if clock_of(experiment).has_links and experiment.deadlines.lps.deadline_s is not None:
        payloads = payloads_of(experiment, model_size(experiment, dataset_info(experiment.data)))
        check_deadline(experiment, payloads, dataset)


def payloads_of(experiment: Experiment, model: ModelSize) -> Payloads:
    """Return how many bytes one child exchanges with its parent in a round."""
    whole, asked = round_bytes(experiment, model), asked_devices(experiment)
    return Payloads(
        device_down=whole.device_lps_down // asked,
        device_up=whole.device_lps_up // asked,
        lps_down=whole.lps_gps_down,
        lps_up=whole.lps_gps_up,
        answer=sum(each.up for each in question_bytes(experiment) if each.moment is not Moment.BEFORE) // asked,
    )


def model_size(experiment: Experiment, info: DatasetInfo) -> ModelSize:
    from fedstrata.models import build_model

    method, model = make_method(experiment), build_model(experiment.model, info)
    streams = streams_of(experiment, method, model)
    clusters = max(1, method.clusters_known)
    up = streams.vector(clusters).tensors if streams.spans else streams.everywhere
    offered = clusters if method.most_offered is None else min(method.most_offered, clusters)
    return ModelSize(
        elements=model.layout.size,
        frozen_elements=sum(map(math.prod, model.frozen.values())),
        travelling_elements=streams.travelling.size,
        stream_elements=up.size,
        fetched_elements=streams.vector(offered).tensors.size,
        shared_layers=streams.everywhere.names,
        own_layers=streams.own.names,
        is_exact=sends_sums(experiment, spans=streams.spans),
    )


def _measured(experiment: Experiment) -> dict[str, str]:
    """Return a row about the models that all devices measure. If each round asks all devices, return no row."""
    training = experiment.training
    if training.asks_all(experiment.device_count):
        return {}
    if training.evaluate_all_every is None:
        return {"measured": "the final model, by all devices; for earlier models, set training.evaluate_all_every"}
    each = counted(training.evaluate_all_every, "global round")
    return {"measured": f"the model after each {each}, and the final model, by all devices"}


def _rules(experiment: Experiment, method: Method) -> dict[str, str]:
    """Return rows about the rules by which the GPS and the LPSs combine updates, with the numbers of children that may
    lie. If the GPS and the LPSs take the mean, return no row.
    """
    if experiment.aggregation == AggregationSettings():
        return {}
    lps, count = lps_known(experiment, method), experiment.device_count
    homes = homes_of(experiment, method, [range(count)]) if lps == 1 or are_placed_by_index(experiment, method) else []
    fewest = min(map(len, homes), default=0)  # 0: the numbers are known only from the plan
    children = {"lps": cohort_size(fewest, experiment.training.participation), "gps": lps}
    said, too_many = [], []
    for tier, what in zip(TIERS, ("devices", "LPSs"), strict=True):
        rule, of = make_rule(experiment, tier), children[tier]
        may_lie = 0 if rule.is_sum else rule.withstands(of)
        if not isinstance(may_lie, int):
            raise PluginError(f"rule {rule.options.name}: withstands must return a whole number, not {may_lie!r:.80}")
        lies = f" ({may_lie} of {of} {what} may lie)" if of and not rule.is_sum else ""
        said.append(f"{tier.upper()} {rule.options.name}{lies}")
        too_many.append(may_lie + 1)
    below, above = too_many
    where = f"{below} under each of {counted(above, 'LPS')}"
    limit = f"{below * above} or more can be too many ({where}); " if fewest and lps else ""
    return {
        "combined by": ", ".join(said),
        "liars": f"{limit}a device with data unlike all others' counts as a liar, too",
    }


def _updates_on_disk(experiment: Experiment, model: ModelSize) -> dict[str, str]:
    """Return a row about the updates that rules keep on disk in a round. If no rule keeps updates, return no row."""
    homes, participation = expected_homes(experiment), experiment.training.participation
    most = max(cohort_size(len(home), participation) for home in homes)
    places: dict[Tier, tuple[str, int]] = {
        "lps": ("at an LPS", most * model.travelling_elements),
        "gps": ("at the GPS", len(homes) * model.stream_elements),
    }
    said = [
        f"{human_bytes(FLOAT.itemsize * elements)} {where}"
        for tier, (where, elements) in places.items()
        if make_rule(experiment, tier).keeps_updates
    ]
    return {"updates on disk": f"{' and '.join(said)}, until the round ends"} if said else {}


def _topology_table(experiment: Experiment, info: DatasetInfo, model: ModelSize, dataset: Dataset | None) -> Table:
    method = make_method(experiment)
    training, shape = experiment.training, "×".join(str(side) for side in info.input_shape)
    local = counted(training.local_epochs, "epoch") if training.local_epochs else f"{training.local_steps} steps"
    rows = {
        "GPS": f"1, {counted(training.global_rounds, 'global round')}",
        "clusters": cluster_count(method),
        "LPS": lps_wanted(experiment, method),
        "LPS rounds": f"{training.lps_rounds_per_global_round} per global round",
        **_rules(experiment, method),
        **_updates_on_disk(experiment, model),
        **_measured(experiment),
        "devices": f"{grouped(experiment.device_count)}, per LPS round {local} with batches of {training.batch_size}",
        **_processor(experiment, dataset),
        "data": f"{experiment.data.name}, {shape}, {_targets(info)}",
        **_roles(experiment, dataset),
        **_label_shares(experiment, dataset),
        "tests": TEST_SETS[experiment.partition.test_set],
        "method": _method(experiment),
        "model": f"{experiment.model.name}, {grouped(model.elements)} weights, {human_bytes(4 * model.elements)}",
        **_frozen(experiment, model),
        **_architectures(experiment),
        **_newcomers(experiment),
        **_attacks(experiment),
        "shared by all": ", ".join(model.shared_layers) or "nothing",
        "stays on devices": ", ".join(model.own_layers) or "no layer",
        "memory of an LPS": f"about {human_bytes(lps_memory(experiment))} more than an idle LPS",
        "a refused device": _refused(experiment),
        **_privacy(experiment),
        "memory of devices": _memory_of_devices(experiment, dataset),
    }
    table = Table.grid(padding=(0, 2))
    for name, value in rows.items():
        table.add_row(Text(name, style="dim"), Text("\n".join(map(printable, value.splitlines()))))
    return table


def _label_shares(experiment: Experiment, dataset: Dataset | None) -> dict[str, str]:
    """Return the name and the text of the table's row about label shares: how far devices are from the shares that the
    partition gives them. Without such shares, return an empty mapping.
    """
    said = "" if dataset is None else drift_said(experiment, dataset)
    return {"label shares": said} if said else {}


def _processor(experiment: Experiment, dataset: Dataset | None) -> dict[str, str]:
    """Return a row about the processor: the memory that a process needs there, and whether this machine has it. For the
    CPU, return no row.
    """
    if experiment.devices == DeviceSettings():
        return {}
    said, missing = experiment.devices.processor, lacking(experiment)
    if dataset is not None and processor_of(experiment).keeps_data:
        processes = min(process_count(experiment, None), experiment.device_count)
        said += f", with about {human_bytes(processor_memory(experiment, dataset, processes))} of its memory"
        said += f" for each of {processes} processes" if processes > 1 else ""
        missing = missing or lacking_room(experiment, dataset, processes)
    return {"computed on": said + (f"; not on this machine: {missing}" if missing else "")}


def _memory_of_devices(experiment: Experiment, dataset: Dataset | None) -> str:
    """Return a text with the memory of a process with devices. If it is a guess, the text says so."""
    pods = device_memory(experiment, dataset)
    sizes = " to ".join(dict.fromkeys(map(human_bytes, (min(pods.devices), max(pods.devices)))))
    said = f"about {human_bytes(pods.process)} a process, and {sizes} a device"
    if pods.most_active < len(pods.devices):
        said += (
            f"; at most {grouped(pods.most_active)} devices take part, each other needs {human_bytes(pods.saved)} less"
        )
    if not are_examples_guessed(experiment, dataset):
        return said
    examples = grouped(examples_of_a_device(experiment))
    return f"{said}, if it has {examples} examples (a guess; bounds.max_examples corrects it)"


def _refused(experiment: Experiment) -> str:
    """Return a text that says whether one device that sends a wrong update can end the run."""
    deadline = experiment.deadlines.lps
    least = min(cohort_size(len(home), experiment.training.participation) for home in expected_homes(experiment))
    if deadline.quorum(least) < least:
        return f"does not end the run, if {100 * deadline.quorum_ratio:g} % of the devices of each LPS report"
    said = "ends the run, so each device can end it"
    if least == 1 or "quorum below 1" in make_method(experiment).refuses():
        return said
    return f"{said}; with deadlines.lps.quorum_ratio {math.floor(100 * (least - 1) / least) / 100:g} the run goes on"


def _roles(experiment: Experiment, dataset: Dataset | None) -> dict[str, str]:
    """Return texts for a table: which columns are inputs, which column is the target, and how many rows each device
    trains on. If the columns have no names, return an empty mapping.
    """
    if dataset is None or not dataset.input_names:
        return {}
    counts = [
        f"{name} {grouped(n)}"
        for name, n in zip(experiment.device_ids(), example_counts(experiment, dataset), strict=True)
    ]
    return {
        "input": _first(dataset.input_names),
        "target": _first(dataset.target_names) or "none",
        "rows to train on": _first(counts),
    }


def _first(names: Sequence[str]) -> str:
    """Return the first few names as text. If there are more names, the text also says how many names there are."""
    return ", ".join(names[:MOST_SAID]) + (f" … ({grouped(len(names))} in all)" if len(names) > MOST_SAID else "")


def _targets(info: DatasetInfo) -> str:
    """Return a text with the shape of the targets and the number of classes. If the data set has neither, the text says
    that there are no classes.
    """
    shape = f"targets of {'×'.join(map(str, info.target_shape))}" if info.target_shape else ""
    classes = f"{info.num_classes} classes" if info.num_classes else ""
    return ", ".join(filter(None, (shape, classes))) or "no classes"


def _frozen(experiment: Experiment, model: ModelSize) -> dict[str, str]:
    """Return the name and the text of the table's row about weights that are neither trained nor sent. If there are no
    such weights, return an empty mapping.
    """
    if not model.frozen_elements:
        return {}
    path = experiment.model.weights
    origin = f"from {path.name}" if path is not None else "drawn from the seed"
    return {"frozen": f"{grouped(model.frozen_elements)} weights, {origin}; they stay on devices"}


def _architectures(experiment: Experiment) -> dict[str, str]:
    """Return the name and the text of the table's row about the experiment's key `architectures`: its models, and the
    devices of each model. Without this key, return an empty mapping.
    """
    if not experiment.architectures:
        return {}
    _, *others = Architectures(experiment, make_method(experiment)).all
    said = [
        f"{', '.join(map(str, written_devices(entry.devices)))}"
        + (f" from global round {entry.from_global_round}" if entry.from_global_round > 1 else "")
        + f": {entry.model.name}, {grouped(other.model.layout.size)} weights"
        for entry, other in zip(experiment.architectures, others, strict=True)
    ]
    return {"other models": "devices " + "; ".join(said)}


def _privacy(experiment: Experiment) -> dict[str, str]:
    """Return the name and the text of the table's row about differential privacy: the values that noise protects, and
    ε. Without differential privacy, return an empty mapping.
    """
    return {} if experiment.privacy is None else {"privacy": "; ".join(privacy_lines(experiment))}


def _newcomers(experiment: Experiment) -> dict[str, str]:
    """Return the name and the text of the table's row about newcomers, which are devices that join after the other
    devices are grouped. Without newcomers, return an empty mapping.
    """
    settings = experiment.newcomers
    if settings is None:
        return {}
    who = ", ".join(map(str, written_devices(sorted(experiment.newcomer_indexes))))
    is_over = settings.from_global_round > experiment.training.global_rounds
    when = "after training" if is_over else f"from global round {settings.from_global_round} on"
    return {"newcomers": f"devices {who}, {when}"}


def _attacks(experiment: Experiment) -> dict[str, str]:
    """Return a row for each attack, with its devices or LPSs."""
    rows = {}
    for entry in attacks_of(experiment):
        numbers = ", ".join(map(str, written_devices(sorted(entry.lps or entry.devices))))
        rows[f"attack {entry.number}"] = (
            f"{entry.attack.options.name} by {'LPSs' if entry.lps else 'devices'} {numbers}"
        )
    return rows


def _method(experiment: Experiment) -> str:
    """Return a text with the method and its options."""
    options = experiment.method.model_dump(mode="json", exclude={"name"})
    said = ", ".join(f"{name} {value}" for name, value in options.items() if value is not None)
    name = experiment.method.name + (" (the default, because the file names none)" if uses_default(experiment) else "")
    return f"{name}: {said}" if said else name


def _task_table(partition: TaskPartition) -> Table:
    table = plain_table("task", "labels", numbers=["devices", "examples per device", "of other tasks"])
    for task in partition.tasks:
        labels = " ".join(str(label) for label in task.labels)
        others = f"{100 * partition.minority_ratio:g} %" if len(partition.tasks) > 1 else "none"
        table.add_row(task.name, labels, grouped(task.devices), grouped(task.examples_per_device), others)
    return table


def _bytes_table(experiment: Experiment, model: ModelSize) -> Table:
    table = plain_table("expected payload", "link", numbers=["up", "down"])
    for question in question_bytes(experiment):
        if question.moment is Moment.BEFORE:
            up, down = human_bytes(question.up), human_bytes(question.down)
            table.add_row(f"{question.name}, once", "device-gps", up, down)
        else:
            table.add_row(f"{question.name}, per global round", "device-lps", human_bytes(question.up), human_bytes(0))
    per_round = round_bytes(experiment, model)
    table.add_row(
        "LPS round", "device-lps", human_bytes(per_round.device_lps_up), human_bytes(per_round.device_lps_down)
    )
    table.add_row(
        "global round, an LPS", "lps-gps", human_bytes(per_round.lps_gps_up), human_bytes(per_round.lps_gps_down)
    )
    return table
