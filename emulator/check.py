"""What a run would be, without running it: its topology, its model and the bytes it should take."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from emulator.report.units import counted, grouped, human_bytes
from fedstrata.datasets import DatasetInfo, dataset_info
from fedstrata.experiment import Experiment, TaskPartition
from fedstrata.features import feature_dim
from fedstrata.methods import make_method
from fedstrata.relevance import landmarks
from fedstrata.tensors.codec import ELEMENT_BYTES
from fedstrata.v1 import gps_service_pb2 as pb


@dataclass(frozen=True, kw_only=True)
class ModelSize:
    """Elements of a model and of the part that all clusters share."""

    elements: int
    shared_elements: int
    shared_layers: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """Payload bytes of the one-shot exchange: N devices, k eigenvectors of d features."""

    profiles_up: int  # N·k·d·4
    relay_down: int  # m·(N − 1)·k·d·4 for m landmarks; m is N where all are related to all
    relevance_up: int  # N rows of m numbers


@dataclass(frozen=True, kw_only=True)
class RoundBytes:
    """Payload bytes of one LPS round on device-lps and of one global round on lps-gps."""

    device_lps_down: int
    device_lps_up: int
    lps_gps_down_per_cluster: int
    lps_gps_up_per_cluster: int


def exchange_bytes(experiment: Experiment, info: DatasetInfo) -> Exchange | None:
    """None for a method without profiles."""
    if not make_method(experiment.method).needs_profiles:
        return None
    devices = experiment.device_count
    method = experiment.method
    known = landmarks(devices, experiment.seed, exact_up_to=method.exact_up_to, count=method.landmarks)
    profile = experiment.method.eigenvectors * feature_dim(method, info) * ELEMENT_BYTES["float32"]
    return Exchange(
        profiles_up=devices * profile,
        relay_down=len(known) * (devices - 1) * profile,
        relevance_up=devices * _relevance_row_bytes(experiment.run_id, [experiment.device_ids()[i] for i in known]),
    )


def _relevance_row_bytes(run_id: str, device_ids: Sequence[str]) -> int:
    """The message of one device, serialised as it will be."""
    row = [pb.Relevance(device_index=index, value=0.5) for index in range(len(device_ids))]
    return pb.SubmitRelevanceRequest(run_id=run_id, device_id=device_ids[-1], row=row).ByteSize()


def round_bytes(experiment: Experiment, model: ModelSize) -> RoundBytes:
    """What the encodings of the two links make of the model."""
    device_lps, lps_gps = experiment.links.device_lps, experiment.links.lps_gps
    return RoundBytes(
        device_lps_down=experiment.device_count * model.elements * ELEMENT_BYTES[device_lps.down],
        device_lps_up=experiment.device_count * model.elements * ELEMENT_BYTES[device_lps.up],
        lps_gps_down_per_cluster=model.shared_elements * ELEMENT_BYTES[lps_gps.down],
        lps_gps_up_per_cluster=model.shared_elements * ELEMENT_BYTES[lps_gps.up],
    )


def cluster_count(experiment: Experiment) -> str:
    """How many clusters there will be, as far as that is known before the run."""
    if experiment.method.clusters != "auto":
        return str(experiment.method.clusters)
    partition = experiment.partition
    if experiment.method.name in {"random", "oracle"} and isinstance(partition, TaskPartition):
        return str(len(partition.tasks))
    return "as many as the method finds"


def check(experiment: Experiment, console: Console) -> None:
    """Check the experiment against its data and model, and print what it resolves to.

    Raises:
        FedstrataError: the data set, the partition, the model or a `module:function` is not usable.
    """
    from emulator.run import check_data

    check_data(experiment)
    info = dataset_info(experiment.data)
    model = _model_size(experiment, info)
    console.print(Text(experiment.run_id, style="bold"))
    console.print(_topology_table(experiment, info, model))
    if isinstance(experiment.partition, TaskPartition):
        console.print(_task_table(experiment.partition))
    console.print(_bytes_table(experiment, info, model))


def _model_size(experiment: Experiment, info: DatasetInfo) -> ModelSize:
    from fedstrata.models import build_model

    model = build_model(experiment.model, info)
    shared = model.layout.select(model.shared)
    return ModelSize(elements=model.layout.size, shared_elements=shared.size, shared_layers=tuple(shared.names))


def _topology_table(experiment: Experiment, info: DatasetInfo, model: ModelSize) -> Table:
    training, shape = experiment.training, "×".join(str(side) for side in info.input_shape)
    local = counted(training.local_epochs, "epoch") if training.local_epochs else f"{training.local_steps} steps"
    rows = {
        "GPS": f"1, {counted(training.global_rounds, 'global round')}",
        "LPS": f"{cluster_count(experiment)}, {training.lps_rounds_per_global_round} LPS rounds a global round",
        "devices": f"{grouped(experiment.device_count)}, {local} of batches of {training.batch_size} an LPS round",
        "data": f"{experiment.data.name}, {shape}, {info.num_classes} classes",
        "method": _method(experiment),
        "model": f"{experiment.model.name}, {grouped(model.elements)} weights, {human_bytes(4 * model.elements)}",
        "shared": f"{', '.join(model.shared_layers) or 'nothing'}, {human_bytes(4 * model.shared_elements)}",
    }
    table = Table.grid(padding=(0, 2))
    for name, value in rows.items():
        table.add_row(Text(name, style="dim"), Text(value))
    return table


def _method(experiment: Experiment) -> str:
    method = experiment.method
    if not make_method(method).needs_profiles:
        return method.name
    return f"{method.name}, {counted(method.eigenvectors, 'eigenvector')} of {method.features} features"


def _task_table(partition: TaskPartition) -> Table:
    table = Table("task", "labels", box=None, header_style="dim", pad_edge=False)
    for column in ("devices", "examples a device", "of other tasks"):
        table.add_column(column, justify="right")
    for task in partition.tasks:
        labels = " ".join(str(label) for label in task.labels)
        others = f"{100 * partition.minority_ratio:g} %" if len(partition.tasks) > 1 else "none"
        table.add_row(task.name, labels, grouped(task.devices), grouped(task.examples_per_device), others)
    return table


def _bytes_table(experiment: Experiment, info: DatasetInfo, model: ModelSize) -> Table:
    table = Table("expected payload", "link", box=None, header_style="dim", pad_edge=False)
    table.add_column("up", justify="right")
    table.add_column("down", justify="right")
    exchange = exchange_bytes(experiment, info)
    if exchange is not None:
        table.add_row(
            "profiles, once", "device-gps", human_bytes(exchange.profiles_up), human_bytes(exchange.relay_down)
        )
        table.add_row("relevance, once", "device-gps", human_bytes(exchange.relevance_up), human_bytes(0))
    per_round = round_bytes(experiment, model)
    table.add_row(
        "LPS round", "device-lps", human_bytes(per_round.device_lps_up), human_bytes(per_round.device_lps_down)
    )
    table.add_row(
        "global round, a cluster",
        "lps-gps",
        human_bytes(per_round.lps_gps_up_per_cluster),
        human_bytes(per_round.lps_gps_down_per_cluster),
    )
    return table
