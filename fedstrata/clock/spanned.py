"""A clock that wraps the clock of the experiment and also makes trace spans (OpenTelemetry). Every tier already tells
its clock when a part of a round begins or ends. So no other code needs to make spans.
"""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fedstrata.clock.device_side import Done
from fedstrata.clock.gps_side import Journal
from fedstrata.experiment import Experiment
from fedstrata.process.spans import Span, Spans
from fedstrata.v1 import gps_service_pb2 as gps_pb
from fedstrata.v1 import rounds_pb2 as pb

ROOT = "global round"


def part_of(kind: str, number: int, child_id: str) -> str:
    """Return the place (see `Span.place`) of a child's part of a round. The child is an LPS in a global round, or a
    device in an LPS round.
    """
    return f"part of {kind}:{number}:{child_id}"


class _Around:
    """Pass all calls on to the wrapped clock, except calls of the methods that a subclass defines."""

    def __init__(self, inner: Any, spans: Spans, experiment: Experiment, tier: str = "") -> None:
        self._inner, self._spans, self._experiment, self._tier = inner, spans, experiment, tier
        self._rounds = 1 if tier == "gps" else experiment.training.lps_rounds_per_global_round

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _add(self, number: int, place: str, parent: str | None, began_ns: int, ended_ns: int, **about: Any) -> None:
        """Send a span. The text before the first colon of `place` is the name of the span. `number` is a global round
        at the GPS, and an LPS round in the other tiers.
        """
        run_id, global_round = self._experiment.run_id, number // self._rounds
        about |= {"run_id": run_id, "global_round": global_round + 1}
        if self._tier != "gps":
            about["lps_round"] = number + 1
        span = Span(
            name=place.partition(":")[0],
            trace=(run_id, global_round),
            place=place,
            parent=parent,
            began_ns=began_ns,
            ended_ns=ended_ns,
            attributes={f"fedstrata.{name}": value for name, value in about.items()},
        )
        self._spans.add(self._tier, span)


class _Read:
    """Pass on the parts of an update, and note whether all of them have been read."""

    def __init__(self, parts: AsyncIterator[Any]) -> None:
        self._parts, self.is_whole = parts, False

    def __aiter__(self) -> "_Read":
        return self

    async def __anext__(self) -> Any:
        try:
            return await anext(self._parts)
        except StopAsyncIteration:
            self.is_whole = True
            raise


class _Parent(_Around):
    """Make the spans of sent models, of received updates, and of each child's part of a round."""

    def __init__(self, inner: Any, spans: Spans, experiment: Experiment, tier: str) -> None:
        super().__init__(inner, spans, experiment, tier)
        self._kind = "LPS" if tier == "gps" else "device"
        self.opened_ns = 0
        # By round and child: the begin (0 if unknown) of the child's part of the round, and its end so far.
        self._times: dict[tuple[int, str], tuple[int, int]] = {}

    def round_opened(self) -> None:
        self._inner.round_opened()
        self.opened_ns = time.time_ns()

    async def model(self, take_turn: Any, offer: Any, child_id: str, number: int, offset: int) -> AsyncIterator[Any]:
        began_ns = time.time_ns()
        async for part in self._inner.model(take_turn, offer, child_id, number, offset):
            yield part
            del part  # releases the memory of this part before the next part is made
        if not offer.header.evaluate_only:
            self._times.setdefault((number, child_id), (began_ns, 0))
            self._note("send model", child_id, number, began_ns, offer.whole_bytes - offset)

    @asynccontextmanager
    async def arriving(self, header: pb.UpdateHeader, parts: AsyncIterator[Any]) -> AsyncIterator[Any]:
        began_ns, size = time.time_ns(), header.payload.payload_bytes - header.offset
        async with self._inner.arriving(header, parts) as come:
            yield (read := _Read(come))
        if read.is_whole:  # nobody reads a late update, or an update of an unknown child
            self._note("receive update", header.child_id, header.round, began_ns, size)

    def _note(self, name: str, child_id: str, number: int, began_ns: int, size: int) -> None:
        ended_ns = time.time_ns()
        self._times[number, child_id] = self._times.get((number, child_id), (0, 0))[0], ended_ns
        place, part = f"{name}:{child_id}:{began_ns}", part_of(self._kind, number, child_id)
        self._add(number, place, part, began_ns, ended_ns, **{self._kind.lower(): child_id, "bytes": size})

    def round_over(self, number: int, parent: str, began_ns: int) -> None:
        """Send the span of each child's part of a round. If the parent sent no model to a child, the child's part
        begins with the round. Forget this round and earlier rounds.
        """
        for (of, child_id), (first_ns, last_ns) in self._times.items():
            if of == number:
                part = part_of(self._kind, number, child_id)
                self._add(number, part, parent, first_ns or began_ns, last_ns, **{self._kind.lower(): child_id})
        self._times = {key: times for key, times in self._times.items() if key[0] > number}


class _Gps(_Around):
    """Make the spans of global rounds."""

    def __init__(self, inner: Any, spans: Spans, experiment: Experiment, journal: Journal) -> None:
        super().__init__(inner, spans, experiment, "gps")
        self.rounds = _Parent(inner.rounds, spans, experiment, "gps")
        self._journal, self._gathered_ns = journal, 0

    def of_round(self, *closed: Any) -> Any:
        self._gathered_ns = time.time_ns()
        return self._inner.of_round(*closed)

    def keep(self, global_round: int, times: Any) -> None:
        self._inner.keep(global_round, times)
        ended_ns, began_ns = time.time_ns(), self.rounds.opened_ns
        if global_round == 0:  # LPSs begin with the phase `training`, maybe before the GPS has opened the round
            began_ns = min(began_ns, round(self._journal.phases()["training"] * 1e9))
        self.rounds.round_over(global_round, ROOT, began_ns)
        self._add(global_round, "aggregate", ROOT, self._gathered_ns, ended_ns)
        self._add(global_round, ROOT, None, began_ns, ended_ns)


class _Lps(_Around):
    """Make the spans of LPS rounds, for one cluster or for all devices of an LPS."""

    def __init__(self, inner: Any, spans: Spans, experiment: Experiment, home_id: str) -> None:
        super().__init__(inner, spans, experiment, "lps")
        self.rounds = _Parent(inner.rounds, spans, experiment, "lps")
        self._home_id = home_id
        self._gathered: tuple[int, int] | None = None  # LPS round that is being aggregated, and since when

    def _own(self, number: int, name: str, began_ns: int, parent: str | None = None) -> str:
        """Send a span that ends now, and return its place (see `Span.place`)."""
        place = f"{name}:{number}:{self._home_id}"
        parent = parent or part_of("LPS", number // self._rounds, self._home_id)
        self._add(number, place, parent, began_ns, time.time_ns(), lps=self._home_id)
        return place

    def go_on(self, global_round: int, planned_ns: int) -> None:
        self._inner.go_on(global_round, planned_ns)
        number = global_round * self._rounds
        self._own(number, "ask", self.rounds.opened_ns, f"LPS round:{number}:{self._home_id}")

    def of_round(self, report: gps_pb.ReportHeader, *gathered: Any) -> None:
        self._inner.of_round(report, *gathered)
        number, began_ns = report.lps_rounds[-1].lps_round, self.rounds.opened_ns
        self.rounds.round_over(number, self._own(number, "LPS round", began_ns), began_ns)
        self._gathered = number, time.time_ns()

    async def begins_ns(self, *standing: Any) -> Any:
        self._end_aggregate()
        return await self._inner.begins_ns(*standing)

    def work(self, *standing: Any) -> Any:
        self._end_aggregate()
        return self._inner.work(*standing)

    def _end_aggregate(self) -> None:
        if self._gathered is not None:
            number, since_ns = self._gathered
            self._own(number, "aggregate", since_ns)
        self._gathered = None


class _Device(_Around):
    """Make the trace spans of the times in which devices train or answer a question."""

    def __init__(self, inner: Any, spans: Spans, experiment: Experiment) -> None:
        super().__init__(inner, spans, experiment, "device")
        self._answering_ns: dict[int, int] = {}  # by device: time that its answer to a question took

    def _computed(self, name: str, done: Done, began_ns: int) -> None:
        device_id, ended_ns = self._experiment.device_ids()[done.device_index], time.time_ns()
        began_ns += ended_ns - time.monotonic_ns()
        place, part = f"{name}:{done.lps_round}:{device_id}", part_of("device", done.lps_round, device_id)
        self._add(done.lps_round, place, part, began_ns, ended_ns, device=device_id, examples=done.examples)

    async def answered(self, answer: Any, done: Done) -> Any:
        self._answering_ns[done.device_index] = answering_ns = await self._inner.answered(answer, done)
        self._computed("answer", done, done.began_ns)
        return answering_ns

    async def worked(self, answer: Any, done: Done) -> Any:
        work = await self._inner.worked(answer, done)
        self._computed("train", done, done.began_ns + self._answering_ns.pop(done.device_index, 0))
        return work


class Spanned(_Around):
    """Make the clocks of all tiers. Each of these clocks also makes spans."""

    def lps(self, cluster: gps_pb.Cluster) -> Any:
        return _Lps(self._inner.lps(cluster), self._spans, self._experiment, cluster.home_id)

    def gps(self, journal: Journal) -> Any:
        return _Gps(self._inner.gps(journal), self._spans, self._experiment, journal)

    def device(self) -> Any:
        return _Device(self._inner.device(), self._spans, self._experiment)
