"""All rows that LPSs have reported, for the record."""

from collections.abc import Iterator

from fedstrata.v1 import rounds_pb2
from gps.journal.journal import Journal


class LpsRounds:
    """The rows that there are now, in the order of rounds, then clusters, each read from the journal as it is asked
    for: of a long run on a clock they are more than memory should hold."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._keys = journal.lps_round_keys()  # the same each time: a file's lines and their sum are of one state

    def __iter__(self) -> Iterator[rounds_pb2.LpsRound]:
        for row in self._journal.lps_rounds(self._keys):
            yield rounds_pb2.LpsRound.FromString(row)
