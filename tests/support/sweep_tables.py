"""The table of a sweep, without what two runs of an experiment may differ in."""

import csv

from emulator.results.measures import COSTS


def without_bytes(table: str) -> tuple[str, dict[str, float]]:
    """A table's lines but those of bytes, and these by cell: two runs differ by some calls that wait."""
    lines = table.splitlines()
    costs = {column.column for column in COSTS.values()}
    numbers = {
        f"{line['cell']} {line['measure']}": float(line["mean"])
        for line in csv.DictReader(lines)
        if line["measure"] in costs and line["mean"]
    }
    return "\n".join(line for line in lines if not costs & set(line.split(","))), numbers
