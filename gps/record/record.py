"""The run record: what a run leaves behind, the same from a laptop and from a cluster.

Field by field in docs/record.md.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from fedstrata.clock.energy import counts_energy
from fedstrata.experiment import Experiment
from fedstrata.methods.profiles.relevance import Matrix
from fedstrata.page import ROUND_COLUMNS
from fedstrata.privacy.report import EpsilonSpent, privacy_summary
from fedstrata.process.json_text import json_text
from fedstrata.process.metrics import LinkKey
from fedstrata.process.sleeping import wall_time
from fedstrata.store import AnyModel, write_aside, write_model
from fedstrata.v1 import rounds_pb2
from gps.record.csv_lines import csv_lines
from gps.record.energy_record import Spent, energy_csv, energy_summary, spent_by
from gps.record.links_record import LinkSum, link_sums, links_csv, real_summary
from gps.record.measured import columns_of
from gps.record.timeline_record import RunTimes, flows_csv, timeline_csv, virtual_summary
from gps.record.waits_record import waits_csv

LINKS = ("device-gps", "device-lps", "lps-gps")


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """All that a record is made from."""

    experiment: Experiment
    status: str
    reason: str | None
    clusters: Mapping[str, list[str]]
    clusters_rule: str
    plans: Sequence[tuple[int, int, int]] = ()  # made in training: global round, clusters, devices that changed theirs
    homes: Mapping[str, list[str]] | None = None  # device ids by LPS, where clusters span LPSs
    moves: Sequence[tuple[int, str, str, str]] = ()  # by the schedule: from which global round on, device, LPS, LPS
    evaluations: Sequence[rounds_pb2.Evaluation]  # of the final models, by the devices
    model_sha256: Mapping[str, str]  # by cluster
    lost_state: Sequence[str] = ()  # the devices that have lost what they had kept for themselves
    lps_rounds: Iterable[rounds_pb2.LpsRound]  # may be gone through again and again
    times: RunTimes = field(default_factory=RunTimes)  # on a clock
    carried_before: Sequence[rounds_pb2.Carried] = ()  # of answers before training, on the real clock
    link_bytes: Mapping[LinkKey, int]  # counted at the parents' ends
    exclusions: list[tuple[str, str, str]]
    adoptions: list[tuple[str, str, str]] = field(default_factory=list)  # cluster, LPS, stage
    kernels: Mapping[str, int] = field(default_factory=dict)  # of OpenBLAS: how many devices have each
    wall_seconds: Mapping[str, float]
    global_rounds: int
    relevance: Matrix | None
    relevance_ids: list[str]

    @cached_property
    def spent(self) -> list[Spent]:
        """What devices took in energy."""
        return spent_by(self.experiment, self.lps_rounds, self.times, self.carried_before)

    @cached_property
    def links(self) -> list[LinkSum]:
        """What links have carried on the real clock."""
        times = chain((row.times for row in self.lps_rounds), self.times.global_rounds.values())
        return link_sums(chain([self.carried_before], (each.carried for each in times)))


def write_record(folder: Path, result: RunResult) -> None:
    """Write the record's files; the models are there already."""
    _write(folder / "experiment.yaml", [result.experiment.to_yaml()])
    _write(folder / "rounds.csv", rounds_csv(result.lps_rounds))
    if result.experiment.is_timed:
        _write(folder / "timeline.csv", timeline_csv(result.lps_rounds, result.times))
        _write(folder / "flows.csv", flows_csv(result.lps_rounds, result.times))
    if result.experiment.clock != "none":
        ids = result.experiment.device_ids()
        _write(folder / "waits.csv", waits_csv(result.lps_rounds, result.times, ids))
    if result.experiment.is_paced:
        _write(folder / "links.csv", links_csv(result.links, result.experiment.device_ids()))
    if counts_energy(result.experiment):
        _write(folder / "energy.csv", energy_csv(result.spent, result.experiment.device_ids()))
    if result.relevance is not None:
        _write(folder / "relevance.csv", relevance_csv(result.relevance, result.relevance_ids))
    _write(folder / "summary.json", [json_text(summary(result), indent=2), "\n"])


def write_models(folder: Path, models: Mapping[str, AnyModel], experiment: Experiment) -> dict[str, str]:
    """Write the clusters' final models that no LPS reports; gives the digest of each one's values."""
    digests = {}
    for name, model in models.items():
        path = folder / "models" / f"{name}.safetensors"
        about = {"run_id": experiment.run_id, "cluster_id": name, "lps_round": str(experiment.training.lps_rounds)}
        write_model(path, model.layout, model.pieces(), {"format": "fedstrata", **about})
        digests[name] = model.values_digest()
    return digests


def _write(path: Path, lines: Iterable[str]) -> None:
    with write_aside(path) as file:
        for line in lines:
            file.write(line.encode())


def summary(result: RunResult) -> dict[str, Any]:
    """summary.json as a document."""
    experiment = result.experiment
    by_cluster = _by_group(result.evaluations, {d: name for name, ids in result.clusters.items() for d in ids})
    accuracy = {name: _accuracy(found) for name, found in by_cluster.items()}
    tasks = experiment.task_of_devices()
    ids = experiment.device_ids()
    return {
        "run_id": experiment.run_id,
        "name": experiment.name,
        "experiment_sha256": experiment.digest,
        "seed": experiment.seed,
        "method": experiment.method.name,
        "status": result.status,
        "reason": result.reason,
        "devices": experiment.device_count,
        "clusters": dict(result.clusters),
        "clusters_rule": result.clusters_rule,
        "replanned": [
            {"global_round": made_in + 1, "clusters": clusters, "moved": moved}
            for made_in, clusters, moved in result.plans
        ],
        "adjusted_rand_index": adjusted_rand_index(
            result.clusters, dict(zip(ids, tasks, strict=True)) if tasks else None
        ),
        "device_tasks": dict(zip(ids, tasks, strict=True)) if tasks else None,
        "rounds": result.global_rounds,
        "accuracy": {**accuracy, "mean": _mean(accuracy.values())},
        "received_accuracy": _received_accuracy(by_cluster),
        "device_accuracy": {e.device_id: _accuracy([e]) for e in result.evaluations},
        "newcomers": [ids[index] for index in sorted(experiment.newcomer_indexes)],
        "task_accuracy": task_accuracy(result.evaluations, dict(zip(ids, tasks, strict=True))) if tasks else None,
        "wall_seconds": {phase: round(seconds, 3) for phase, seconds in result.wall_seconds.items()},
        "virtual": virtual_summary(result.lps_rounds, result.times) if experiment.is_timed else None,
        "real": real_summary(result.links) if experiment.is_paced else None,
        **({"energy": energy_summary(result.spent, ids)} if counts_energy(experiment) else {}),
        "bytes": _bytes(result.link_bytes),
        "bytes_by_kind": _bytes_by_kind(result.link_bytes),
        "excluded": [{"device": device, "from": stage, "reason": why} for device, stage, why in result.exclusions],
        "adoptions": [{"cluster": cluster, "by": lps, "from": stage} for cluster, lps, stage in result.adoptions],
        "kernels": dict(result.kernels),
        "homes": dict(result.homes) if result.homes is not None else None,
        "moves": [
            {"device": device, "from": before, "to": now, "global_round": made_in + 1}
            for made_in, device, before, now in result.moves
        ],
        "lost_state": list(result.lost_state),
        "personal_sha256": {e.device_id: e.personal_sha256 for e in result.evaluations if e.personal_sha256},
        "model_sha256": {name: result.model_sha256[name] for name in result.clusters if name in result.model_sha256},
        **({"privacy": privacy_summary(experiment, _epsilon(result))} if experiment.privacy is not None else {}),
    }


def _epsilon(result: RunResult) -> float | None:
    """ε of updates by now."""
    return EpsilonSpent(result.experiment).after(result.global_rounds, is_grouped=bool(result.clusters))


def _accuracy(evaluations: Iterable[rounds_pb2.Evaluation]) -> float | None:
    correct = examples = 0
    for evaluation in evaluations:
        correct, examples = correct + evaluation.correct, examples + evaluation.num_examples
    return correct / examples if examples else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _received_accuracy(
    by_cluster: Mapping[str, Sequence[rounds_pb2.Evaluation]],
) -> dict[str, float | None] | None:
    """As accuracy, of the models as they were received; None where devices use those."""
    if not any(evaluation.has_received for found in by_cluster.values() for evaluation in found):
        return None
    accuracy = {
        name: sum(e.received_correct for e in found) / max(1, sum(e.num_examples for e in found))
        for name, found in by_cluster.items()
    }
    return {**accuracy, "mean": _mean(accuracy.values())}


def _by_group(
    evaluations: Iterable[rounds_pb2.Evaluation], group_of: Mapping[str, str]
) -> dict[str, list[rounds_pb2.Evaluation]]:
    found: dict[str, list[rounds_pb2.Evaluation]] = {group: [] for group in group_of.values()}
    for evaluation in evaluations:
        found[group_of[evaluation.device_id]].append(evaluation)
    return {group: measured for group, measured in found.items() if measured}


def task_accuracy(evaluations: Iterable[rounds_pb2.Evaluation], task_of: Mapping[str, str]) -> dict[str, float | None]:
    """Accuracy of the devices of each true task, each with what it would use."""
    by_task = _by_group(evaluations, task_of)
    return {task: _accuracy(by_task.get(task, ())) for task in task_of.values()}


def adjusted_rand_index(clusters: Mapping[str, list[str]], task_of: Mapping[str, str] | None) -> float | None:
    """Agreement of the clusters with the true tasks, 1 when they are the same; None where no truth is known."""
    if task_of is None or not clusters:
        return None
    places = {device: cluster for cluster, devices in clusters.items() for device in devices}
    pairs = len(places) * (len(places) - 1)  # ordered, as all below
    by_cluster = _pairs_alike(places.values())
    by_task = _pairs_alike(task_of[device] for device in places)
    by_both = _pairs_alike((task_of[device], cluster) for device, cluster in places.items())
    spread = (by_cluster + by_task) * pairs - 2 * by_cluster * by_task
    # (index − expected) / (maximum − expected) of Hubert & Arabie 1985, in whole numbers
    return 2 * (by_both * pairs - by_cluster * by_task) / spread if spread else 1.0


def _pairs_alike(labels: Iterable[Hashable]) -> int:
    """Ordered pairs of different places with the same label."""
    return sum(number * (number - 1) for number in Counter(labels).values())


def _bytes(counts: Mapping[LinkKey, int]) -> dict[str, dict[str, int]]:
    return {
        link: {
            way: sum(n for key, n in counts.items() if key.link == link and key.direction == way)
            for way in ("up", "down")
        }
        for link in LINKS
    }


def _bytes_by_kind(counts: Mapping[LinkKey, int]) -> dict[str, dict[str, dict[str, int]]]:
    by_kind: dict[str, dict[str, dict[str, int]]] = {link: defaultdict(lambda: {"up": 0, "down": 0}) for link in LINKS}
    for key, count in sorted(counts.items(), key=lambda item: item[0].kind):
        by_kind[key.link][key.kind][key.direction] += count
    return {link: dict(kinds) for link, kinds in by_kind.items()}


def rounds_csv(rows: Iterable[rounds_pb2.LpsRound]) -> Iterator[str]:
    """rounds.csv: rounds count from 1; loss and accuracy are of the model that the round produced."""
    measured = (columns_of(row) for row in rows)
    return csv_lines(ROUND_COLUMNS, ([_text_of(name, columns[name]) for name in ROUND_COLUMNS] for columns in measured))


def _text_of(column: str, value: str | int | float | None) -> str:
    """A value as rounds.csv has it; nothing for what was not measured."""
    if value is None:
        return ""
    return str(value) if not isinstance(value, float) else f"{value:.4f}" if column == "seconds" else f"{value:.6f}"


def relevance_csv(relevance: Matrix, ids: list[str]) -> Iterator[str]:
    """relevance.csv: R with device ids as header row and first column."""
    rows = ([device_id, *(repr(float(value)) for value in row)] for device_id, row in zip(ids, relevance, strict=True))
    return csv_lines(["device", *ids], rows)


def recorded_end(folder: Path) -> tuple[str, str] | None:
    """How a run ended, as phase and reason, if its record says so."""
    path = folder / "summary.json"
    if not path.exists():
        return None
    summary = json.loads(path.read_text(encoding="utf-8"))
    return ("failed" if summary["status"] == "failed" else "completed", summary["reason"] or "")


def wall_seconds(phases: Mapping[str, float]) -> dict[str, float]:
    """How long the phases took, from when each began."""
    now = wall_time()
    order = ("enrolment", "relevance", "grouping", "training")
    began = {phase: phases.get(phase, now) for phase in order}
    began["relevance"] = min(began["relevance"], began["grouping"])
    ends = [began["relevance"], began["grouping"], began["training"], now]
    lengths = [max(0.0, end - began[phase]) for phase, end in zip(order, ends, strict=True)]
    return {**dict(zip(("enrol", "relevance", "group", "train"), lengths, strict=True)), "total": sum(lengths)}
