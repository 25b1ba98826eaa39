"""The data of the live page. If no browser has the page open, the GPS does no work for the page."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from fedstrata.page import Feed, relevance_part
from fedstrata.process.waiting import Changes, wait_until, wall_time
from fedstrata.record.rounds import page_row, round_row
from fedstrata.record.summary import read_summary, summary_parts
from fedstrata.v1 import rounds_pb2
from gps.record_writer import summary, wall_seconds
from gps.result import result_so_far
from gps.run import Run
from gps.status import seconds_of

PAUSE_S = 0.5  # between two states that are sent, even if the run changes more often
LOOK_S = 5.0  # the longest time between two states, even if nothing changes
LETTERS = {"absent": "a", "enrolled": "e", "answered": "w", "assigned": "g", "refused": "r"}


class LivePage:
    """Publish a run's state to the feed of the live page, while the feed has readers."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._loop = asyncio.get_running_loop()
        self._following: asyncio.Task[None] | None = None
        self._publishing: asyncio.Future[None] | None = None
        self._seen_row = 0
        self._relevance: Any = None
        self._relevance_of: Any = None  # the clusters in `self._relevance`
        self.feed = Feed(lambda: self._loop.call_soon_threadsafe(self._begin))

    async def close(self) -> None:
        """Send the final state to all readers, and close the feed."""
        if (following := self._following) is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            if self._publishing is not None:  # its thread continues, and must not send after the last state
                await asyncio.gather(self._publishing, return_exceptions=True)
            await self._tell()
        await asyncio.to_thread(self.feed.close)

    def _begin(self) -> None:
        if self._following is None:
            self._following = asyncio.ensure_future(self._follow())

    async def _follow(self) -> None:
        """Publish each new state while there are readers."""
        try:
            while not self.feed.forget():
                changed = self._run.news.next
                await self._tell()
                await wait_until(changed, changed.is_set, LOOK_S)
                await Changes().wait_until(lambda: False, PAUSE_S)
            self._seen_row = 0
        finally:
            self._following = None

    async def _tell(self) -> None:
        self._publishing = asyncio.ensure_future(asyncio.to_thread(self._publish, parts_of(self._run)))
        await asyncio.shield(self._publishing)

    def _publish(self, parts: dict[str, Any]) -> None:
        """Publish new rows, the relevance matrix if there is one, and the other parts of the page as JSON. This
        function runs in a thread, outside the event loop.
        """
        plan, clusters = self._run.plans.first, parts["summary/clusters"]
        if plan is not None and plan.affinity is not None and clusters != self._relevance_of:
            ids = self._run.experiment.device_ids()
            names = [ids[index] for index in plan.related]
            self._relevance, self._relevance_of = relevance_part(plan.affinity, names, clusters), clusters
        found = self._run.journal.rounds.rows_after(self._seen_row)
        self._seen_row = max((place for place, _ in found), default=self._seen_row)
        rows = [round_row(rounds_pb2.LpsRound.FromString(data), self._run.task) for _, data in found]
        told = [(row.key, page_row(row, self._run.task.headline)) for row in rows]
        self.feed.publish(parts | {"relevance": self._relevance}, told)


def parts_of(run: Run) -> dict[str, Any]:
    """Return a run's state as parts of the page's document. The rows and the relevance matrix are not included."""
    return {
        "experiment": run.experiment.to_yaml(),
        "lps_rounds_per_global_round": run.experiment.training.lps_rounds_per_global_round,
        **_summary(run),
        **{f"live/{key}": value for key, value in _live(run).items()},
    }


def _summary(run: Run) -> dict[str, Any]:
    """Return the parts of the page's document with the record's summary. Before the record is written, they have the
    summary of the run so far.
    """
    if run.has_record:
        return summary_parts(read_summary(run.record_folder / "summary.json"))
    result = replace(result_so_far(run), status="failed", wall_seconds=_begun(run.journal.phases()))
    return summary_parts(summary(result)) | {"summary/status": "failed" if run.phase == "failed" else "running"}


def _begun(phases: Mapping[str, float]) -> dict[str, float]:
    """Return, for each phase that has begun, how many seconds it has lasted."""
    began = {"enrol": "enrolment", "relevance": "relevance", "group": "grouping", "train": "training"}
    return {key: seconds for key, seconds in wall_seconds(phases).items() if began.get(key, "enrolment") in phases}


def _live(run: Run) -> dict[str, Any]:
    """Return the values that only the live page shows. They are not in the record, which is written after the run."""
    phases, training = run.journal.phases(), run.experiment.training
    left = seconds_left(phases, run.phase, run.rounds.global_round, training.global_rounds)
    return {
        "phase": run.phase,
        "has_record": run.has_record,
        "global_round": run.rounds.global_round,
        "global_rounds": training.global_rounds,
        "seconds": round(seconds_of(phases), 1),
        "seconds_left": None if left is None else round(left, 1),
        "device_ids": run.experiment.device_ids(),
        "states": "".join(LETTERS[state] for state in run.roster.state_of_devices()),
        "waits": [{"name": w.name, "what": w.what, "seconds": round(w.seconds, 1)} for w in run.waiting.waits],
    }


def seconds_left(
    phases: Mapping[str, float], phase: str, done: int, rounds: int, clock: Callable[[], float] = wall_time
) -> float | None:
    """Return an estimate of the seconds until training ends, from the pace of the closed global rounds. Outside
    training, before the first global round is closed, and after the last, return None.

    The open round is treated as half done.
    """
    if phase != "training" or not 0 < done < rounds:
        return None
    return max(0.0, clock() - phases["training"]) * (rounds - done - 0.5) / (done + 0.5)
