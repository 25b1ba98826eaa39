"""Compare all values in the record of a run with the record of its replay, except values that depend on the machine's
speed.
"""

import csv
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

from emulator.results.made_with import software_apart
from emulator.results.read_record import RunRecord
from fedstrata.errors import IncomparableError
from fedstrata.experiment.links import LINKS, WAYS, Link
from fedstrata.process.quoting import quoted
from fedstrata.record.summary import LinkBytes
from fedstrata.record.tables import read_text

# Keys of summary.json that are not compared key by key. `_fewer_bytes` and `_fewer_needed` compare the bytes.
MEASURED = {"made_by", "wall_seconds", "real", "bytes", "bytes_by_kind", "training_bytes", "repeated_bytes"}
ON_THE_REAL_CLOCK = {"energy"}
MEASURED_COLUMNS = {"seconds", "bytes_up", "bytes_down"}  # of rounds.csv
LATER_COLUMNS = {"measured_examples"}  # that records of earlier releases lack
WITHOUT_A_CLOCK = {"rounds.csv", "relevance.csv"}  # tables that do not depend on times
LEAST_BYTES = 0.95  # of the replay's bytes; polling calls make up less than the rest
LONGEST = 80  # characters of a value in a message


def differences(theirs: RunRecord, ours: RunRecord) -> Iterator[str]:
    """Yield a message for each difference between a record and its replay.

    If the record says that it was computed with other kernels than the replay, bits cannot be compared. A forged
    record could name other kernels to avoid the comparison, so the caller must not treat such a record as confirmed.

    Records of Fedstrata 0.2.0 name only the kernel of OpenBLAS. Later records add six digits that depend on the bits
    of torch's results. For a record of 0.2.0, only the names of OpenBLAS's kernels are compared.

    Raises:
        IncomparableError: the kernels differ, or asynchronous rounds took updates as they arrived in real time. The
            message also names the software that differs.
    """
    if ours.summary.asynchronous is not None and ours.summary.virtual is None:
        raise IncomparableError(
            "bits cannot be compared, because rounds take updates as they arrive; repeat the record by "
            "fedstrata run --arrivals, and compare the two"
        )
    said, true = set(theirs.summary.kernels), set(ours.summary.kernels)
    is_old = not any("-" in kernel for kernel in said)
    if said != ({kernel.partition("-")[0] for kernel in true} if is_old else true):
        raise IncomparableError(
            f"bits cannot be compared, because the record has the kernels {quoted(*sorted(said))}, but this processor "
            f"has {quoted(*sorted(true))}; "
            + "".join(f"{each}; " for each in _other_software(theirs, ours))
            + "verify the bundle on a processor with the record's kernels"
        )
    faults = [
        *_different_keys(theirs, ours),
        *_fewer_bytes(theirs, ours),
        *_fewer_needed(theirs, ours),
        *_fewer_in_a_round(theirs, ours),
        *_different_tables(theirs, ours),
    ]
    yield from faults
    if faults:
        yield from _other_software(theirs, ours)
    if faults and is_old:
        yield "the record does not name torch's kernels, so all this is expected on a processor of another maker"


def _other_software(theirs: RunRecord, ours: RunRecord) -> Iterator[str]:
    """Yield a text for each version, platform or processor that differs. Such a difference alone is no fault."""
    for name, values in software_apart([theirs, ours]).items():
        told = {record.folder: value for value, records in values.items() for record in records}
        yield f"{name} was {told[theirs.folder]} for the record and {told[ours.folder]} for the replay"


def _different_keys(theirs: RunRecord, ours: RunRecord) -> Iterator[str]:
    skipped = MEASURED | (ON_THE_REAL_CLOCK if ours.summary.real is not None else set())
    if theirs.summary.kernels.keys() != ours.summary.kernels.keys():  # of Fedstrata 0.2.0
        skipped |= {"kernels"}
    said, true = (dict(_values(each.summary.document(), skipped)) for each in (theirs, ours))
    for key in dict.fromkeys([*true, *said]):
        if said.get(key) != true.get(key):
            yield f"{key} is {short(said.get(key))}, but {short(true.get(key))} in the replay"


def _values(document: Mapping[str, Any], skipped: set[str]) -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and the value of each entry, such as `device_accuracy.device-003` and 0.9. Entries with a
    top-level key in `skipped` are left out.
    """
    for key, value in document.items():
        if key in skipped:
            continue
        if isinstance(value, Mapping):
            yield from ((f"{key}.{name}", inner) for name, inner in _values(value, set()))
        else:
            yield key, value


def _fewer_bytes(theirs: RunRecord, ours: RunRecord) -> Iterator[str]:
    """Yield a message for each link and direction in which the record has clearly fewer bytes than the replay, without
    the bytes of calls that only wait. Compare the bytes of the training, too. The record may have more bytes than the
    replay, because an interrupted run repeats calls.
    """
    for link in LINKS:
        for way in WAYS:
            said, true = (_carried(each, link, way) for each in (theirs, ours))
            if said < LEAST_BYTES * true:
                yield f"bytes_by_kind has {said} bytes {way} on {link}, but {true} in the replay"
    pair = [record.summary.training_bytes for record in (theirs, ours)]
    if pair[0] is not None and pair[1] is not None and pair[0].total < LEAST_BYTES * pair[1].total:
        yield f"training_bytes are {pair[0].total}, but {pair[1].total} in the replay"


def _fewer_needed(theirs: RunRecord, ours: RunRecord) -> Iterator[str]:
    """Yield a message for each direction in which a record states too many repeated bytes. Costs leave repeated bytes
    out, so too high a number would make the costs too small.

    The record's bytes without its repeated bytes must be at least the bytes that the replay needed. Calls of the
    replay that only wait are not included.
    """
    repeated = theirs.summary.repeated_bytes
    for way in WAYS if repeated is not None else ():
        said = getattr(repeated, way)
        needed = getattr(theirs.summary.link("device-gps"), way) - said
        true = _carried(ours, "device-gps", way) - getattr(ours.summary.repeated_bytes, way, 0)
        if needed < LEAST_BYTES * true:
            yield (
                f"repeated_bytes has {said} bytes {way}, which leaves {needed} bytes {way} on device-gps, but the "
                f"replay needed {true}"
            )


def _fewer_in_a_round(theirs: RunRecord, ours: RunRecord) -> Iterator[str]:
    """Yield a message for the first LPS round in which the record has clearly fewer bytes than the replay. Calls of
    the replay that only wait are not included. The sum over all rounds would not show bytes that were moved from one
    round to another.
    """
    waiting = ours.summary.bytes_by_kind.get("device-lps", {}).get("control", LinkBytes(up=0, down=0))
    for said, true in zip(theirs.rounds, ours.rounds, strict=False):  # `_different_tables` finds missing rows
        for column, least in (("bytes_up", true.bytes_up - waiting.up), ("bytes_down", true.bytes_down - waiting.down)):
            if getattr(said, column) < LEAST_BYTES * least:
                yield (
                    f"rounds.csv has {getattr(said, column)} {column} in LPS round {said.lps_round} of {said.lps_id}, "
                    f"but {getattr(true, column)} in the replay"
                )
                return


def _carried(record: RunRecord, link: Link, way: str) -> int:
    kinds = record.summary.bytes_by_kind.get(link, {})
    return sum(getattr(counted, way) for kind, counted in kinds.items() if kind != "control")


def _different_tables(theirs: RunRecord, ours: RunRecord) -> Iterator[str]:
    """Yield a message for each table that only one record has, and for the first different row of each other table."""
    there, here = ({path.name for path in each.folder.glob("*.csv")} for each in (theirs, ours))
    for name in sorted(there ^ here):
        yield f"{name} is {'not part of the replay' if name in there else 'missing'}"
    for name in sorted(there & here):
        if name in WITHOUT_A_CLOCK or ours.summary.real is None:
            yield from _different_row(theirs.folder / name, ours.folder / name)


def _different_row(theirs: Path, ours: Path) -> Iterator[str]:
    skipped = MEASURED_COLUMNS if theirs.name == "rounds.csv" else set[str]()
    skipped |= LATER_COLUMNS.difference(next(_rows(theirs), ()))
    pairs = zip_longest(_rows(theirs), _rows(ours), fillvalue=dict[Any, Any]())
    for number, (said, true) in enumerate(pairs, start=2):
        for column in dict.fromkeys([*true, *said]):
            # A record of an earlier release lacks columns that are empty here
            if column not in skipped and (said.get(column) or "") != (true.get(column) or ""):
                yield (
                    f"{theirs.name}, line {number}: {column or 'the first column'} is {short(said.get(column))}, but "
                    f"{short(true.get(column))} in the replay"
                )
                return


def _rows(path: Path) -> Iterator[dict[Any, Any]]:
    return csv.DictReader(read_text(path).splitlines())


def short(value: object) -> str:
    """Return a value as text for a message."""
    said = "none" if value is None else str(value)
    return said if len(said) <= LONGEST else f"{said[:LONGEST]}…"
