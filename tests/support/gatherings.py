"""What a parent gathers in a round, with the mean as its rule."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedstrata.experiment.sections import RuleSettings
from fedstrata.rules import Gathering, Route, Rule, of_streams, of_updates, routed_shares
from fedstrata.rules.mean import ExactTotal, MaskedMean, Mean, PartialMean, exact

MEAN, MASKED, PARTIAL = (kind(RuleSettings()) for kind in (Mean, MaskedMean, PartialMean))
NOWHERE = Path("/nowhere")  # a mean keeps nothing on disk


def one_stream(size: int, most: Mapping[str, int], rule: Rule = MEAN) -> Gathering:
    """One vector from each child, which states its examples."""
    return of_updates(rule, size, most, NOWHERE)


def planned(
    sizes: Sequence[int], routes: Mapping[str, Sequence[Route]], examples: Mapping[str, int], rule: Rule = MEAN
) -> Gathering:
    """The streams at an LPS, whose devices have these routes."""
    return Gathering(rule, routed_shares(sizes, routes, examples), NOWHERE)


def from_lpss(sizes: Sequence[int], most: Mapping[str, Sequence[int]], rule: Rule = PARTIAL) -> Gathering:
    """The streams at a GPS, where LPSs have at most these weights."""
    return of_streams(rule, sizes, most, NOWHERE)


def sums_in(gathering: Gathering) -> list[ExactTotal]:
    """The exact sums of a gathering, by stream."""
    return exact(gathering.totals)
