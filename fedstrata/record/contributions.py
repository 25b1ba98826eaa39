"""The updates of asynchronous rounds in the record: contributions.csv, and the key `asynchronous` of summary.json."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from pydantic import NonNegativeInt, PositiveInt
from pydantic.dataclasses import dataclass as checked_dataclass

from fedstrata.record.tables import Amount, Table, as_seconds
from fedstrata.v1 import rounds_pb2 as pb


@checked_dataclass(frozen=True, kw_only=True)
class ContributionRow:
    """Hold one row of contributions.csv: an update that an asynchronous round has taken."""

    global_round: PositiveInt
    """Global round, counted from 1."""
    lps_round: PositiveInt
    """LPS round that has taken the update, counted from 1 over the whole run."""
    lps_id: str
    """The cluster or, if clusters span LPSs, the LPS."""
    device: str
    """Device that has sent the update."""
    from_lps_round: PositiveInt
    """LPS round of the model that the device has trained."""
    staleness: NonNegativeInt
    """Number of LPS rounds between the two."""
    factor: PositiveInt
    """Factor of the update's weight; with polynomial weights a fresh update has 1024."""
    asked_s: Amount
    """Second since training began at which the LPS has asked the device; virtual with `clock: virtual`."""
    arrived_s: Amount
    """Second since training began at which the update has arrived; virtual with `clock: virtual`."""


CONTRIBUTIONS = Table(ContributionRow)


@checked_dataclass(frozen=True, kw_only=True)
class Asynchronous:
    """Describe the updates of asynchronous rounds: the key `asynchronous` of summary.json."""

    updates: NonNegativeInt
    """Number of updates that rounds have taken."""
    staleness: dict[int, int]
    """Number of updates by staleness, in LPS rounds."""
    fewest: NonNegativeInt
    """Smallest number of updates of a device."""
    most: NonNegativeInt
    """Largest number of updates of a device."""
    never: tuple[str, ...]
    """Devices without an update in any round."""


def contributions_csv(rows: Iterable[pb.LpsRound], device_ids: Sequence[str]) -> Iterator[str]:
    """Return the lines of contributions.csv."""
    return CONTRIBUTIONS.lines(
        (
            row.global_round + 1,
            row.lps_round + 1,
            row.home_id,
            device_ids[each.child],
            each.from_round + 1,
            row.lps_round - each.from_round,
            each.factor,
            as_seconds(each.asked_ns),
            as_seconds(each.arrives_ns),
        )
        for row in rows
        for each in row.times.contributions
    )


def asynchronous_summary(rows: Iterable[pb.LpsRound], device_ids: Sequence[str]) -> Asynchronous:
    """Return the key `asynchronous` of the summary."""
    by_device, staleness = Counter[int](), Counter[int]()
    for row in rows:
        by_device.update(each.child for each in row.times.contributions)
        staleness.update(row.lps_round - each.from_round for each in row.times.contributions)
    counts = [by_device[index] for index in range(len(device_ids))]
    return Asynchronous(
        updates=by_device.total(),
        staleness=dict(sorted(staleness.items())),
        fewest=min(counts),
        most=max(counts),
        never=tuple(name for name, count in zip(device_ids, counts, strict=True) if not count),
    )
