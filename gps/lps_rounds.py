"""All rows that LPSs have reported, for the record."""

from collections.abc import Iterator

from fedstrata.v1 import rounds_pb2
from gps.journal import Journal


class LpsRounds:
    """The rows in the order of rounds, then clusters, each read from the journal as it is asked for: of a long run on a
    clock they are more than memory should hold."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def __iter__(self) -> Iterator[rounds_pb2.LpsRound]:
        for row in self._journal.lps_rounds():
            yield rounds_pb2.LpsRound.FromString(row)
