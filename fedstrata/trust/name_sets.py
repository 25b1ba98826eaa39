"""For whom many names stand, looked up without walking them: a list may be long, and is asked at each message."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable

from fedstrata.trust.names import LONGEST_ID, Name, Role, ends_of, split_number

Stem = tuple[str, int]  # what ids begin with, and how many digits follow


class NameSet:
    """All devices, LPSs, operators and so on that have one of these names."""

    def __init__(self, names: Iterable[Name]) -> None:
        """Rows that touch or overlap are one; a device of a row's kind is a row of one."""
        self._single: set[tuple[Role, str]] = set()
        rows: dict[tuple[Role, Stem], list[tuple[int, int]]] = defaultdict(list)
        for name in names:
            if (found := ends_of(name)) is None:
                self._single.add((name.role, name.id))
            else:
                stem, low, high = found
                rows[name.role, stem].append((low, high))
        self._rows = {key: _joined(ends) for key, ends in rows.items()}

    def covers(self, name: Name) -> bool:
        """Whether all that a name stands for is among them."""
        if (found := ends_of(name)) is None:
            return (name.role, name.id) in self._single
        return self._has_row(name.role, *found)

    def has(self, role: Role, device_or_lps_id: str) -> bool:
        """Whether somebody in a role has that id, which may come from anybody."""
        if len(device_or_lps_id) > LONGEST_ID:
            return False
        if (found := split_number(device_or_lps_id)) is None:
            return (role, device_or_lps_id) in self._single
        stem, number = found
        return self._has_row(role, stem, number, number)

    def _has_row(self, role: Role, stem: Stem, low: int, high: int) -> bool:
        begins, ends = self._rows.get((role, stem), ((), ()))
        at = bisect_right(begins, low) - 1
        return at >= 0 and high <= ends[at]


def _joined(rows: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """The first and the last numbers of rows, in order, none of which touches another."""
    begins, ends = list[int](), list[int]()
    for low, high in sorted(rows):
        if ends and low <= ends[-1] + 1:
            ends[-1] = max(ends[-1], high)
        else:
            begins.append(low)
            ends.append(high)
    return begins, ends
