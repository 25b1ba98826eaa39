"""The state of a run, for the experimenter."""

from collections.abc import Mapping

from fedstrata.privacy.report import EpsilonSpent
from fedstrata.process.waiting import wall_time
from fedstrata.rpc.messages import link_bytes_to_proto
from fedstrata.tasks import Metric
from fedstrata.v1 import gps_service_pb2 as pb
from gps.hosting.waiting import to_proto
from gps.run import Run


def status_of(run: Run, epsilon: EpsilonSpent) -> pb.RunStatus:
    """Return the present state of a run as a message. `epsilon` computes the ε that the run has spent."""
    return pb.RunStatus(
        run_id=run.experiment.run_id,
        job=run.backend.job,
        phase=run.phase,
        reason=run.reason,
        global_round=run.rounds.global_round,
        global_rounds=run.experiment.training.global_rounds,
        lps_wanted=run.places.lps_known,
        clusters=[_cluster(run, name, len(devices)) for name, devices in run.places.homes.items()],
        link_bytes=link_bytes_to_proto(run.reports.counts.total()),
        devices=[pb.StateCount(state=state, devices=count) for state, count in run.roster.states().items() if count],
        has_record=run.has_record,
        waits=to_proto(run.waiting.waits),
        seconds=seconds_of(run.journal.phases()),
        virtual_ns=run.clock.since_questions_ns(run.rounds.global_round),
        headline=_metric(run.task.headline),
        epsilon_spent=epsilon.after(run.rounds.global_round, is_grouped=run.plans.is_made),
    )


def _metric(metric: Metric) -> pb.Metric:
    return pb.Metric(
        name=metric.name,
        title=metric.label,
        is_percent=metric.is_percent,
        higher_is_better=metric.higher_is_better,
    )


def seconds_of(phases: Mapping[str, float]) -> float:
    """Return how many seconds a run has taken so far or, if the run is over, in total. `phases` has the time at which
    each phase began.
    """
    began = min(phases.values(), default=0.0)
    ended = phases.get("completed", phases.get("failed"))
    return max(0.0, (wall_time() if ended is None else ended) - began) if phases else 0.0


def _cluster(run: Run, name: str, devices: int) -> pb.ClusterStatus:
    status = pb.ClusterStatus(home_id=name, devices=devices)
    row = run.reports.latest_rounds.get(name)
    if row is not None:
        status.lps_round = row.lps_round + 1
    measured = run.reports.latest_measured.get(name)
    if measured is not None:
        status.is_evaluated = True
        status.measured_round = measured.global_round
        status.loss = measured.values["loss"] or 0.0
        if (value := measured.values[run.task.headline.name]) is not None:
            status.headline = value
    return status
