"""The table factors.csv: what rules kept of each child's update in a round, and the key `kept` of summary.json.

Only rules that choose one factor for each update, such as Multi-Krum, have rows in the table.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt
from pydantic.dataclasses import dataclass as checked_dataclass

from fedstrata.attacks import Entry, attacks_of
from fedstrata.experiment import Experiment
from fedstrata.record.tables import OfRound, Table, of_global_round, of_lps_round
from fedstrata.v1 import rounds_pb2 as pb

Share = Annotated[float, Field(ge=0, le=1)]


@checked_dataclass(frozen=True, kw_only=True)
class FactorRow(OfRound):
    """Hold the factor of one child's update in a round."""

    tier: Literal["lps", "gps"]
    """`lps`: an LPS round; `gps`: a global round."""
    global_round: PositiveInt
    """Global round, counted from 1."""
    child: str
    """Device in rows of LPS rounds, LPS in rows of global rounds."""
    attacks: Literal["0", "1"]
    """1 if the child attacks in this round, else 0."""
    factor: float
    """Factor of the update in the combined update: 0 if it is left out. Of a model with several streams, the mean over
    its values.
    """


FACTORS = Table(FactorRow)


@checked_dataclass(frozen=True, kw_only=True)
class Kept:
    """Describe how much a tier's rule kept of the updates of attackers and of other children, in rounds with
    attacks.
    """

    attackers: Share
    """Share of attackers in the sum of all factors without signs: their weight in the combined updates."""
    honest_left_out: Share
    """Share of the updates of other children that have the factor 0."""


@dataclass(frozen=True, kw_only=True)
class _Factor:
    """Hold a factor, the first cells of its row, and its global round, counted from 0."""

    place: tuple[object, ...]
    global_round: int
    child: int  # index of a device, or number of an LPS
    factor: float

    @property
    def tier(self) -> str:
        return str(self.place[0])


@dataclass(frozen=True, kw_only=True)
class RuleFactors:
    """Hold the factors of a run, and write the record's table and key about these factors."""

    experiment: Experiment
    rows: Iterable[pb.LpsRound]  # must allow several iterations
    global_rounds: Mapping[int, pb.Factors]

    def tables(self) -> dict[str, Iterator[str]]:
        """Return the lines of the table by file name. If no rule has chosen factors, there is no table."""
        has_some = next(self._factors(), None) is not None
        return {"factors.csv": FACTORS.lines(self._cells())} if has_some else {}

    def summary(self) -> dict[str, Any]:
        """Return the key `kept` of the summary. Its value is None without attacks, or if no rule has chosen factors."""
        on = {each.global_round for each in self._factors() if any(e.is_on(each.global_round) for e in self._entries)}
        found = [each for each in self._factors() if each.global_round in on]
        tiers = dict.fromkeys(each.tier for each in found)
        return {"kept": {tier: self._kept([each for each in found if each.tier == tier]) for tier in tiers} or None}

    def _kept(self, factors: Sequence[_Factor]) -> Kept:
        lies = sum(abs(each.factor) for each in factors if self._is_lie(each))
        honest = [abs(each.factor) for each in factors if not self._is_lie(each)]
        total = lies + sum(honest)
        return Kept(attackers=lies / total if total else 0.0, honest_left_out=honest.count(0) / max(1, len(honest)))

    def _cells(self) -> Iterator[tuple[object, ...]]:
        ids = self.experiment.device_ids()
        for each in self._factors():
            child = ids[each.child] if each.tier == "lps" else f"lps-{each.child}"
            yield *each.place, child, int(self._is_lie(each)), repr(each.factor)

    def _factors(self) -> Iterator[_Factor]:
        for row in self.rows:
            yield from _of_round(of_lps_round(row), row.global_round, row.factors)
        for global_round, factors in sorted(self.global_rounds.items()):
            yield from _of_round(of_global_round(global_round), global_round, factors)

    @cached_property
    def _entries(self) -> tuple[Entry, ...]:
        return attacks_of(self.experiment)

    def _is_lie(self, found: _Factor) -> bool:
        """Return whether the update is of a child that attacks in this round."""
        return any(
            entry.is_on(found.global_round)
            and found.child in (entry.lps if found.tier == "gps" else () if entry.lps else entry.devices)
            for entry in self._entries
        )


def _of_round(place: tuple[object, ...], global_round: int, factors: pb.Factors) -> Iterator[_Factor]:
    for child, factor in zip(factors.children, factors.factors, strict=True):
        yield _Factor(place=place, global_round=global_round, child=child, factor=factor)
