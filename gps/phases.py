"""The phases of a run in order, from the first enrolment to the record. A restarted GPS goes through the phases again.
If the first plan was already made, the restarted GPS begins with training.
"""

import asyncio

from fedstrata.errors import FedstrataError, RunStoppedError
from fedstrata.methods import Answers, Moment, Plan
from fedstrata.process.fault_points import reach
from fedstrata.streams.plan_checks import check_plan
from gps.journal.answers import BEFORE
from gps.plans.bundles import planned
from gps.plans.global_rounds import ClosedRound
from gps.plans.places import described
from gps.record_writer import write_models, write_record
from gps.result import result_of
from gps.run import Run

EVENT_EVERY = 10  # global rounds between two Events RoundsDone


class Phases:
    """Take a run through the phases enrolment, relevance, grouping, training and evaluation."""

    def __init__(self, run: Run) -> None:
        self._run = run

    async def conduct(self) -> None:
        """Go through all phases until the record is written. If the run fails, write the record of the failed run."""
        run = self._run
        if run.has_record:  # the run ended before this GPS was restarted; it only serves the record now
            run.rounds.server.finish(run.reason)
            run.tell()
            return
        watching = asyncio.ensure_future(run.waiting.watch(run, run.backend.tell))
        work, stopped = asyncio.ensure_future(self._phases()), asyncio.ensure_future(run.stopped.wait())
        try:
            await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
                raise RunStoppedError(run.reason)
            work.result()
        except FedstrataError as error:
            reason = " ".join(str(error).split())
            run.rounds.server.finish(reason)
            run.fail(reason)
            run.backend.tell("RunFailed", reason, is_warning=True)
        finally:
            watching.cancel()
            run.waiting.end()
            stopped.cancel()
            work.cancel()  # if `conduct` was cancelled: no round may use the journal, which is closed next
        if not run.has_record:
            run.metrics.links.end()
            await asyncio.to_thread(write_record, run.record_folder, *result_of(run))
            run.note_record()
        run.tell()

    async def _phases(self) -> None:
        """Go through all phases, and write the record of the completed run. If an error is raised, the caller ends the
        run as failed.
        """
        run = self._run
        if not run.plans.is_made:
            run.enter("enrolment")
            if run.places.lps_known:
                run.backend.scale_lps(run.places.lps_known)
            await run.enrolment.gather_devices()
            if len(run.questions.asked) > 1:
                run.enter("relevance")
                await run.enrolment.gather_answers()
            run.enter("grouping")
            await self._group()
        self._publish_plan()
        run.enter("training")
        watching = asyncio.ensure_future(run.adoption.watch())
        watching.add_done_callback(self._watch_ended)
        try:
            await run.adoption.until_served()
            async for closed in run.rounds.closed(run.joined, run.tell, run.reports.counts.keep):
                self._after(closed)
            models = run.rounds.final_models()
            digests = await asyncio.to_thread(write_models, run.record_folder, models, run.experiment)
            run.own_models.update(digests)
            run.enter("evaluation")
            await self._gather_reports()
        finally:
            watching.cancel()
        run.end()
        run.rounds.server.finish()
        run.tell()
        await run.reports.all_answered()
        run.metrics.links.end()
        run.reports.counts.keep()
        await asyncio.to_thread(write_record, run.record_folder, *result_of(run))
        run.enter("completed")
        run.note_record()  # only now: observers stop at the first status that has a record
        run.backend.tell("RunCompleted", f"{run.experiment.run_id}: {run.rounds.global_round} global rounds")

    async def _gather_reports(self) -> None:
        """Wait until every cluster has reported, or until the deadline of global rounds. After an adoption the deadline
        begins again.
        """
        run = self._run
        handovers = -1
        while handovers < len(run.serving.handovers):
            handovers = len(run.serving.handovers)
            await run.adoption.wait_until(lambda: not self._unreported())  # clusters of absent LPSs are adopted
            if not self._unreported():
                return
        for home_id in self._unreported():
            run.log.warning("report_missing", cluster=home_id)
            run.backend.exclude(home_id, "evaluation", "no report by the deadline")

    def _unreported(self) -> list[str]:
        """Return the clusters that have not reported yet, except the clusters of refused LPSs, which can no longer
        report.
        """
        awaited = self._run.serving.awaited()
        return [name for name in self._run.reports.missing() if name in awaited]

    def _watch_ended(self, watching: "asyncio.Future[None]") -> None:
        """End the run if the watch for absent LPSs has failed, for example because the journal cannot be written."""
        if not watching.cancelled() and (error := watching.exception()):
            self._run.stop(str(error))

    async def _group(self) -> None:
        """Make the first plan, and activate it in the same step. So no LPS learns of the plan before the clusters
        exist.
        """
        run = self._run
        devices = run.enrolment.candidates()
        candidates = described(run.experiment, devices)

        def made() -> Plan:
            return planned(run.method, Moment.BEFORE, Answers(candidates, run.questions.answers(devices)), None)

        plan = await asyncio.to_thread(made)
        plan.check_covers(candidates, may_be_empty=run.streams.spans)
        check_plan(run.streams, plan, run.method, None)
        reach("grouping")
        run.places.make(BEFORE, plan)

    def _publish_plan(self) -> None:
        """Inform devices, LPSs and the operator of the clusters."""
        run = self._run
        sizes = {name: len(devices) for name, devices in run.places.homes.items()}
        run.log.info("grouped", rule=run.plans.newest.rule, clusters=sizes)
        run.backend.scale_lps(run.places.lps_known)
        run.backend.label_pods()
        for who, stage, reason in run.journal.exclusions():
            run.backend.tell_excluded(who, stage, reason)
        run.backend.tell("Grouped", f"{run.plans.newest.rule}: {sizes}")
        run.questions.publish_sponsors(run.method.sponsors(run.plans.first) if run.plans.first is not None else ())

    def _after(self, closed: ClosedRound) -> None:
        """Note that a global round is closed, exclude the clusters that missed the round, and give adopted clusters
        back.
        """
        run = self._run
        gathered, stage = closed.gathered, f"global round {closed.done}"
        run.metrics.round_closed(closed.seconds)
        run.log.info(
            "global_round_closed",
            global_round=closed.done - 1,
            clusters=gathered.children,
            train_loss=round(gathered.train_loss, 6),
            seconds=round(closed.seconds, 4),
            missing=list(gathered.missing),
        )
        refused = {who for who, at, _ in run.journal.exclusions() if at == stage} | set(run.rounds.server.refused)
        for home_id in gathered.missing:
            if home_id not in refused:
                run.backend.exclude(home_id, stage, "missed the deadline")
        if closed.done < run.experiment.training.global_rounds:  # the last model is measured by the adopting LPS
            run.adoption.hand_back()
        if closed.moved:
            run.log.info("devices_moved", global_round=closed.done, devices=closed.moved)
            run.backend.label_pods()
        if closed.done % EVENT_EVERY == 0:
            rounds = f"{closed.done} of {run.experiment.training.global_rounds} global rounds"
            run.backend.tell("RoundsDone", rounds)
