"""The content of a run's record, after the run and during it."""

from dataclasses import replace
from operator import attrgetter

from fedstrata.record.timeline import RunTimes
from fedstrata.record.timing import Timing
from fedstrata.v1 import rounds_pb2
from gps.journal.round_tables import LpsRounds
from gps.record_writer import RunResult, wall_seconds
from gps.run import Run

_device = attrgetter("device_id")


def result_so_far(run: Run) -> RunResult:
    """Return the content of the record as if the run ended now, without the relevance matrix, which can be large."""
    reports = run.reports.all()
    reported = {name: report.model_sha256 for name, report in reports.items()}
    return RunResult(
        experiment=run.experiment,
        status="completed" if not run.reason else "failed",
        reason=run.reason or None,
        clusters=run.places.clusters,
        clusters_rule=run.plans.newest.rule,
        plans=run.plans.history(),
        homes=run.places.homes if run.streams.spans else None,
        moves=run.places.moves(),
        evaluations=sorted((each for report in reports.values() for each in report.evaluations), key=_device),
        model_sha256=run.own_models if run.streams.spans else reported,
        lost_state=[d.device_id for _, d in sorted(run.roster.devices.items()) if d.has_lost_state],
        link_bytes=run.reports.counts.total(),
        repeated_bytes=run.reports.counts.repeated(),
        exclusions=run.journal.exclusions(),
        adoptions=[(h.home_id, h.lps_id, run.serving.stage_of(h.global_round)) for h in run.serving.handovers],
        kernels=run.roster.kernels(),
        wall_seconds=wall_seconds(run.journal.phases()),
        global_rounds=run.rounds.global_round,
        examples={device.device_id: device.num_examples for device in run.roster.devices.values()},
        relevance=None,
        relevance_ids=[],
    )


def result_of(run: Run) -> tuple[RunResult, Timing]:
    """Return the whole content of the run's record: the results and the times. The run must not change while this
    function collects them.
    """
    ids, first, clock = run.experiment.device_ids(), run.plans.first, run.clock
    result = replace(
        result_so_far(run),
        relevance=first.affinity if first is not None else None,
        factors={at: rounds_pb2.Factors.FromString(data) for at, data in run.journal.rounds.factors().items()},
        relevance_ids=[ids[index] for index in first.related] if first is not None else [],
        began=min(run.journal.phases().values(), default=None),
        commands=run.journal.made_with.commands(),
        software=run.journal.made_with.by_tier(),
    )
    timing = Timing(
        experiment=run.experiment,
        rows=LpsRounds(run.journal.rounds),
        times=RunTimes(before=clock.before, global_rounds=dict(clock.closed), asked=clock.asked),
        carried_before=run.questions.carried(),
    )
    return result, timing
