"""Attacks at a parent. The parent replaces the updates of attackers before its rule combines all updates. So attackers
that know each other's updates need no connection to each other. Messages and times are as in a run without attacks.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from fedstrata.attacks import Entry, attacks_of
from fedstrata.experiment import Experiment
from fedstrata.rules.base import Rule, Spooled, Total
from fedstrata.rules.spool import Spool
from fedstrata.tensors import Flat
from fedstrata.tensors.exact_sum import largest_value


@dataclass(frozen=True, kw_only=True)
class Liars:
    """Hold one attack at a parent. `numbers` maps the id of each attacker to its number: the index of a device, or the
    number of an LPS.
    """

    entry: Entry
    numbers: Mapping[str, int]


def with_attacks(rule: Rule, experiment: Experiment, tier: str) -> Rule:
    """Return a tier's rule, with the attacks that are computed at a parent of this tier. At LPSs these are the attacks
    of devices that know each other's updates, and at the GPS all attacks of LPSs.
    """
    ids = experiment.device_ids()
    found = [
        Liars(entry=entry, numbers={f"lps-{number}": number for number in entry.lps})
        if tier == "gps"
        else Liars(entry=entry, numbers={ids[index]: index for index in entry.devices})
        for entry in attacks_of(experiment)
        if (entry.lps if tier == "gps" else entry.attack.colludes and not entry.lps)
    ]
    return Attacked(rule, found) if found else rule


class Attacked(Rule):
    """Combine updates by another rule, after the updates of attackers have been replaced. The weights of the replaced
    updates stay the same.
    """

    keeps_updates = True

    def __init__(self, rule: Rule, attacks: Sequence[Liars], global_round: int = 0, stream: int = 0) -> None:
        super().__init__(rule.options)
        self._rule, self._attacks, self._global_round, self._stream = rule, attacks, global_round, stream

    def refuses(self) -> Mapping[str, str]:
        return self._rule.refuses()

    def check(self, children: Collection[str]) -> None:
        self._rule.check(children)

    def withstands(self, children: int) -> int:
        return self._rule.withstands(children)

    def in_round(self, global_round: int) -> Rule:
        on = [each for each in self._attacks if each.entry.is_on(global_round)]
        rule = self._rule.in_round(global_round)
        return Attacked(rule, on, global_round) if on else rule

    def in_stream(self, stream: int) -> Rule:
        return Attacked(self._rule.in_stream(stream), self._attacks, self._global_round, stream)

    def total(self, size: int, max_weight: int, folder: Path) -> Total:
        inner = self._rule.total(size, max_weight, folder)
        if not size:  # the method sends no values, so attackers have nothing to replace
            return inner
        return _Lying(inner, Spool(size, folder), largest_value(max_weight), self._lies)

    def _lies(self, spool: Spool, children: Sequence[str]) -> dict[str, Flat]:
        """Return the false updates of the attackers among `children`, by id. `spool` has the updates that all children
        have sent.
        """
        lies: dict[str, Flat] = {}
        for attack in self._attacks:
            liars = [child for child in children if child in attack.numbers]
            if liars and attack.entry.attack.colludes:
                others = [child for child in children if not any(child in each.numbers for each in self._attacks)]
                known = partial(_values, spool, others or liars)
                lie = attack.entry.collude(known, len(liars), len(children), spool.size)
                lies |= dict.fromkeys(liars, lie)
            else:
                for child in liars:
                    honest = np.concatenate([block[0] for block in _values(spool, [child])])
                    number = attack.numbers[child]
                    update = lies.get(child, honest)
                    lies[child] = attack.entry.update(update, number, self._global_round, self._stream)
        return lies


class _Lying(Spooled):
    """At the end of the round, pass the updates of one stream to the rule's own total, with the lies of attackers."""

    def __init__(
        self, inner: Total, spool: Spool, limit: float, lies: Callable[[Spool, Sequence[str]], Mapping[str, Flat]]
    ) -> None:
        super().__init__(spool, limit)
        self._inner, self._lies = inner, lies

    def settle(self) -> None:
        children = sorted(self._weights)
        lies = self._lies(self._spool, children)
        for start, stop, block in self._spool.blocks(children):
            for child_id, honest in zip(children, block, strict=True):
                values = np.clip(lies[child_id][start:stop], -self._limit, self._limit) if child_id in lies else honest
                self._inner.take(child_id, start, values, self._weights[child_id])
        for child_id in children:
            self._inner.accept(child_id, self._weights[child_id])
        self._spool.close()
        self._inner.settle()
        self.factors = self._inner.factors
        self.is_settled = True

    def mean(self, start: int = 0, stop: int | None = None) -> Flat:
        return self._inner.mean(start, stop)


def _values(spool: Spool, children: Sequence[str]) -> Iterator[Flat]:
    return (block for _, _, block in spool.blocks(children))
