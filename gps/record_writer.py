"""The run record: the files with the result of a run. Runs on one machine and on Kubernetes write the same files.

docs/reference/record.md lists all fields.
"""

import math
import sys
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from fedstrata.experiment import Experiment
from fedstrata.experiment.links import LINKS, WAYS, Link
from fedstrata.experiment.partition import TestSetName
from fedstrata.methods.profiles.relevance import Matrix
from fedstrata.privacy.report import EpsilonSpent
from fedstrata.process.machine import commit, software
from fedstrata.process.metrics import LinkKey
from fedstrata.process.waiting import wall_time
from fedstrata.record.attacks import attacks_summary
from fedstrata.record.factors import RuleFactors
from fedstrata.record.made_by import Counted, MadeBy, made_by
from fedstrata.record.privacy import privacy_summary
from fedstrata.record.relevance import relevance_csv
from fedstrata.record.rounds import rounds_csv
from fedstrata.record.summary import (
    Adoption,
    Exclusion,
    LinkBytes,
    Measured,
    Moved,
    Replanning,
    Summary,
    TestSet,
    read_summary,
)
from fedstrata.record.timing import UNKNOWN, Timing
from fedstrata.store import AnyModel, write_aside, write_model
from fedstrata.tasks import Task, make_task, measured
from fedstrata.v1 import rounds_pb2


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """Hold everything from which a record is made."""

    experiment: Experiment
    status: Literal["completed", "failed"]
    reason: str | None
    clusters: Mapping[str, list[str]]
    clusters_rule: str
    plans: Sequence[tuple[int, int, int]] = ()  # in training: global round, clusters, moved devices
    homes: Mapping[str, list[str]] | None = None  # device ids by LPS, if clusters span LPSs
    moves: Sequence[tuple[int, str, str, str]] = ()  # global round, device, LPS before, LPS from then on
    evaluations: Sequence[rounds_pb2.Evaluation]  # the devices' measurements of the final models
    model_sha256: Mapping[str, str]  # by cluster
    lost_state: Sequence[str] = ()  # the devices that have lost their personal state
    link_bytes: Mapping[LinkKey, int]  # as counted by the parents
    repeated_bytes: Mapping[LinkKey, int] = field(default_factory=dict)  # the part that repeats earlier messages
    exclusions: list[tuple[str, str, str]]
    adoptions: list[tuple[str, str, str]] = field(default_factory=list)  # cluster, LPS, stage
    kernels: Mapping[str, int] = field(default_factory=dict)  # the number of devices by kernel
    wall_seconds: Mapping[str, float]
    global_rounds: int
    examples: Mapping[str, int] = field(default_factory=dict)  # numbers of training examples, by device
    factors: Mapping[int, rounds_pb2.Factors] = field(default_factory=dict)  # of the GPS's rule, by global round
    relevance: Matrix | None
    relevance_ids: list[str]
    began: float | None = None  # seconds since 1970
    commands: Sequence[str] = ()  # that started the run
    software: Mapping[str, Counted] = field(default_factory=dict)  # of devices and LPSs


def write_record(folder: Path, result: RunResult, timing: Timing) -> None:
    """Write the files of the record, except the models, which were written earlier."""
    _write(folder / "experiment.yaml", [result.experiment.to_yaml()])
    _write(folder / "rounds.csv", rounds_csv(timing.rows, make_task(result.experiment)))
    for name, lines in timing.tables().items():
        _write(folder / name, lines)
    if result.relevance is not None:
        _write(folder / "relevance.csv", relevance_csv(result.relevance, result.relevance_ids))
    factors = RuleFactors(experiment=result.experiment, rows=timing.rows, global_rounds=result.factors)
    for name, lines in factors.tables().items():
        _write(folder / name, lines)
    known = timing.summary() | factors.summary()
    told = replace(summary(result), training_bytes=_training_bytes(timing.rows), made_by=_made_by(result), **known)
    _write(folder / "summary.json", [told.text()])


def _made_by(result: RunResult) -> MadeBy:
    now = wall_time()
    return made_by(
        commands=result.commands,
        commit=commit(),
        began=now if result.began is None else result.began,
        ended=now,
        software={"gps": [(1, software(sys.modules))], **result.software},
    )


def write_models(folder: Path, models: Mapping[str, AnyModel], experiment: Experiment) -> dict[str, str]:
    """Write the final models that the GPS keeps, one per cluster. Return the digest of each model's values."""
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


def summary(result: RunResult) -> Summary:
    """Return the content of summary.json, but without the facts that `Timing.summary` adds. The keys of these facts
    have the value None.
    """
    experiment = result.experiment
    task = make_task(experiment)
    epsilon = EpsilonSpent(experiment).after(result.global_rounds, is_grouped=bool(result.clusters))
    ids, tasks = experiment.device_ids(), experiment.task_of_devices()
    task_of = dict(zip(ids, tasks, strict=True)) if tasks else None
    return Summary(
        run_id=experiment.run_id,
        name=experiment.name,
        experiment_sha256=experiment.digest,
        seed=experiment.seed,
        method=experiment.method.name,
        status=result.status,
        reason=result.reason,
        devices=experiment.device_count,
        clusters={name: tuple(members) for name, members in result.clusters.items()},
        clusters_rule=result.clusters_rule,
        replanned=tuple(Replanning(global_round=at + 1, clusters=n, moved=moved) for at, n, moved in result.plans),
        adjusted_rand_index=adjusted_rand_index(result.clusters, task_of),
        device_tasks=task_of,
        rounds=result.global_rounds,
        measured=measured_by_metric(task, result.evaluations, result.clusters, task_of),
        test_set=_test_set(experiment.partition.test_set, result.evaluations),
        newcomers=tuple(ids[index] for index in sorted(experiment.newcomer_indexes)),
        wall_seconds={phase: round(seconds, 3) for phase, seconds in result.wall_seconds.items()},
        **UNKNOWN,
        bytes=_bytes(result.link_bytes),
        bytes_by_kind=_bytes_by_kind(result.link_bytes),
        repeated_bytes=_bytes(result.repeated_bytes)["device-gps"] if result.repeated_bytes else None,
        excluded=tuple(Exclusion(device=device, stage=at, reason=why) for device, at, why in result.exclusions),
        adoptions=tuple(Adoption(cluster=cluster, by=lps, stage=at) for cluster, lps, at in result.adoptions),
        kernels=dict(result.kernels),
        homes=None if result.homes is None else {name: tuple(members) for name, members in result.homes.items()},
        moves=tuple(
            Moved(device=device, came_from=before, to=now, global_round=at + 1)
            for at, device, before, now in result.moves
        ),
        lost_state=tuple(result.lost_state),
        personal_sha256={e.device_id: e.personal_sha256 for e in result.evaluations if e.personal_sha256},
        model_sha256={name: result.model_sha256[name] for name in result.clusters if name in result.model_sha256},
        privacy=privacy_summary(experiment, epsilon),
        attacks=attacks_summary(
            experiment,
            result.examples,
            lambda left_out: _metrics(task, [each for each in result.evaluations if each.device_id not in left_out]),
        ),
        metrics=task.metrics,
    )


def measured_by_metric(
    task: Task,
    evaluations: Sequence[rounds_pb2.Evaluation],
    clusters: Mapping[str, list[str]],
    task_of: Mapping[str, str] | None,
) -> dict[str, Measured]:
    """Return each metric of the final models by cluster, device and true task."""
    by_cluster = _by_group(evaluations, {device: name for name, ids in clusters.items() for device in ids})
    by_task = _by_group(evaluations, task_of) if task_of else {}
    uses_own = any(evaluation.has_received for found in by_cluster.values() for evaluation in found)
    of_clusters = {name: _metrics(task, found) for name, found in by_cluster.items()}
    received = {name: _metrics(task, found, "received_sums") for name, found in by_cluster.items() if uses_own}
    of_devices = {evaluation.device_id: _metrics(task, [evaluation]) for evaluation in evaluations}
    of_tasks = {name: _metrics(task, by_task.get(name, ())) for name in (task_of or {}).values()}
    return {
        metric.name: Measured(
            clusters=_with_mean({name: values[metric.name] for name, values in of_clusters.items()}),
            received=_with_mean({name: found[metric.name] for name, found in received.items()}) if uses_own else None,
            devices={device: values[metric.name] for device, values in of_devices.items()},
            tasks={name: values[metric.name] for name, values in of_tasks.items()} if task_of else None,
        )
        for metric in task.metrics
    }


def _test_set(name: TestSetName, evaluations: Sequence[rounds_pb2.Evaluation]) -> TestSet | None:
    """Return the record's entry about the test set: its name, and how many examples and devices were used. If each
    device tests on its own examples (`own`), return None.
    """
    if name == "own":
        return None
    return TestSet(name=name, examples=sum(each.num_examples for each in evaluations), devices=len(evaluations))


def _metrics(task: Task, evaluations: Sequence[rounds_pb2.Evaluation], of: str = "sums") -> dict[str, float | None]:
    """Return the metrics over all examples of the devices that have sent sums. `of` is the field of Evaluation with
    these sums: `sums`, or `received_sums` for the models that devices received. The sums are added exactly and rounded
    once.
    """
    sent = [evaluation for evaluation in evaluations if getattr(evaluation, of)]
    together = [math.fsum(parts) for parts in zip(*(getattr(evaluation, of) for evaluation in sent), strict=True)]
    return measured(task, together, sum(evaluation.num_examples for evaluation in sent))


def _with_mean(values: Mapping[str, float | None]) -> dict[str, float | None]:
    known = [value for value in values.values() if value is not None]
    return {**values, "mean": sum(known) / len(known) if known else None}


def _by_group(
    evaluations: Iterable[rounds_pb2.Evaluation], group_of: Mapping[str, str]
) -> dict[str, list[rounds_pb2.Evaluation]]:
    found: dict[str, list[rounds_pb2.Evaluation]] = {group: [] for group in group_of.values()}
    for evaluation in evaluations:
        found[group_of[evaluation.device_id]].append(evaluation)
    return {group: measured for group, measured in found.items() if measured}


def adjusted_rand_index(clusters: Mapping[str, list[str]], task_of: Mapping[str, str] | None) -> float | None:
    """Return how well the clusters agree with the true tasks, as the adjusted Rand index. The index is 1 if the
    clusters group the devices exactly as the tasks do. If there are no clusters, or the tasks are unknown, return None.
    """
    if task_of is None or not clusters:
        return None
    places = {device: cluster for cluster, devices in clusters.items() for device in devices}
    pairs = len(places) * (len(places) - 1)  # ordered pairs, as in all counts below
    by_cluster = _pairs_alike(places.values())
    by_task = _pairs_alike(task_of[device] for device in places)
    by_both = _pairs_alike((task_of[device], cluster) for device, cluster in places.items())
    spread = (by_cluster + by_task) * pairs - 2 * by_cluster * by_task
    # (index − expected) / (maximum − expected) of Hubert & Arabie 1985, multiplied out to whole numbers
    return 2 * (by_both * pairs - by_cluster * by_task) / spread if spread else 1.0


def _pairs_alike(labels: Iterable[Hashable]) -> int:
    """Return the number of ordered pairs of devices with the same label. `labels` has the label of each device."""
    return sum(number * (number - 1) for number in Counter(labels).values())


def _bytes(counts: Mapping[LinkKey, int]) -> dict[Link, LinkBytes]:
    return {
        link: LinkBytes(
            **{way: sum(n for key, n in counts.items() if key.link == link and key.direction == way) for way in WAYS}
        )
        for link in LINKS
    }


def _training_bytes(rows: Iterable[rounds_pb2.LpsRound]) -> LinkBytes:
    pairs = [(row.bytes_up, row.bytes_down) for row in rows]
    return LinkBytes(up=sum(up for up, _ in pairs), down=sum(down for _, down in pairs))


def _bytes_by_kind(counts: Mapping[LinkKey, int]) -> dict[Link, dict[str, LinkBytes]]:
    return {
        link: {
            kind: _bytes({key: n for key, n in counts.items() if key.kind == kind})[link]
            for kind in sorted({key.kind for key in counts if key.link == link})
        }
        for link in LINKS
    }


def recorded_end(folder: Path) -> tuple[str, str] | None:
    """Return the phase and the reason with which a run ended, from its record. Without a record, return None."""
    path = folder / "summary.json"
    if not path.exists():
        return None
    summary = read_summary(path)
    return ("failed" if summary.status == "failed" else "completed", summary.reason or "")


def wall_seconds(phases: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds that each phase lasted, from the times at which the phases began."""
    now = wall_time()
    order = ("enrolment", "relevance", "grouping", "training")
    began = {phase: phases.get(phase, now) for phase in order}
    began["relevance"] = min(began["relevance"], began["grouping"])
    ends = [began["relevance"], began["grouping"], began["training"], now]
    lengths = [max(0.0, end - began[phase]) for phase, end in zip(order, ends, strict=True)]
    return {**dict(zip(("enrol", "relevance", "group", "train"), lengths, strict=True)), "total": sum(lengths)}
