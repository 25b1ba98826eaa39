"""The boards of a fleet, and the runs that are offered to them. Both are stored in files, so a restarted service
continues with them.
"""

import hashlib
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from fedstrata.errors import ExperimentError
from fedstrata.process.quoting import brief, quoted
from fedstrata.store import clear_asides, read_sealed, write_sealed
from fedstrata.trust.call_table import MOST_OFFERED_BYTES
from fedstrata.v1 import fleet_service_pb2 as pb

OFFER_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,199}")  # a file here and a folder on a board get this name
STATES = ("waiting", "running", "ended", "failed")
BETWEEN_CALLS_S = 5.0  # a board counts as here if it calls again within this time
MOST_RUNS, KEY_BYTES = 1_000, 1_000
FRAME_BYTES = 8  # bytes that a reply adds to each offer
Message = TypeVar("Message", bound=Any)


class Fleet:
    """Hold boards by name, and offers in the order in which they came.

    A board starts its runs in the order of their offers, as many as it has room for. All boards see the same order. So
    if a run waits for a board, that board works for an earlier run. Two runs never wait for each other's boards.
    """

    def __init__(self, folder: Path, now: Callable[[], float] = time.monotonic) -> None:
        """Read boards and offers from the files in a folder. `now` returns the time in seconds. Raises StateError if a
        file is damaged.
        """
        self._boards, self._offers, self._now = folder / "boards", folder / "offers", now
        for place in (self._boards, self._offers):
            place.mkdir(mode=0o700, exist_ok=True)
            clear_asides(place)
        self.boards = {path.name: _read(path, pb.Board) for path in sorted(self._boards.iterdir())}
        read = [(path, _read(path, pb.OfferRunRequest)) for path in sorted(self._offers.iterdir())]
        self.offers = {offer.offer_id: offer for _, offer in read}
        self._files = {offer.offer_id: path for path, offer in read}
        self._runs: dict[str, dict[str, pb.BoardRun]] = {}  # by board, then by offer: as the board reports
        self._calls: Counter[str] = Counter()  # open calls by board
        self._called_at: dict[str, float] = {}
        self._replies: dict[
            str, pb.FetchOffersResponse
        ] = {}  # a cache of replies by board; emptied when an offer changes

    def report(self, request: pb.FetchOffersRequest) -> bool:
        """Note what a board reports about itself and its runs. Return whether something has changed.

        If the board does not know its newest offers, its report is about earlier offers. Then the states of the board's
        runs are not noted.
        """
        board = request.board
        told = pb.Board(
            name=board.name,
            cores=board.cores,
            memory_bytes=board.memory_bytes,
            processor=brief(board.processor),
            data=brief(board.data),
            public_key=board.public_key[:KEY_BYTES],
            most_runs=min(max(1, board.most_runs), MOST_RUNS),
        )
        is_news = told != self.boards.get(board.name)
        if is_news:
            write_sealed(self._boards / board.name, told.SerializeToString())
            self.boards[board.name] = told
        offers = self.offers_of(board.name)
        if request.known_version != offers.version:
            return is_news
        lent = {offer.offer_id for offer in offers.offers}
        known = {
            run.offer_id: pb.BoardRun(offer_id=run.offer_id, state=run.state, reason=brief(run.reason))
            for run in request.runs
            if run.offer_id in lent and run.state in STATES
        }
        is_news |= known != self._runs.get(board.name)
        self._runs[board.name] = known
        return is_news

    @contextmanager
    def visit(self, board: str) -> Iterator[None]:
        """Run a block, and count the board's call as open during the block."""
        self._calls[board] += 1
        try:
            yield
        finally:
            self._calls[board] -= 1
            self._called_at[board] = self._now()

    def _is_here(self, board: str) -> bool:
        called_at = self._called_at.get(board)
        return self._calls[board] > 0 or (called_at is not None and self._now() - called_at < BETWEEN_CALLS_S)

    def offers_of(self, board: str) -> pb.FetchOffersResponse:
        """Return the reply to one board. The reply has the board's offers, each with the board's certificate. If not
        all offers fit into a reply, it has the first offers.
        """
        if board not in self._replies:
            self._replies[board] = _with_version(self._reply_to(board))
        return self._replies[board]

    def _reply_to(self, board: str) -> pb.FetchOffersResponse:
        reply, reply_bytes = pb.FetchOffersResponse(), 0
        for offer in self.offers.values():
            for loan in offer.loans:
                if loan.board == board:
                    one = pb.Offer(
                        offer_id=offer.offer_id,
                        experiment=offer.experiment,
                        gps=offer.gps,
                        ca=offer.ca,
                        devices=loan.devices,
                        certificate=loan.certificate,
                    )
                    reply_bytes += one.ByteSize() + FRAME_BYTES
                    if reply_bytes > MOST_OFFERED_BYTES:
                        return reply
                    reply.offers.append(one)
        return reply

    def everything(self) -> pb.FetchFleetResponse:
        """Return all boards with their runs, and all offers."""
        reply = pb.FetchFleetResponse()
        for name, board in sorted(self.boards.items()):
            reply.boards.add(board=board, is_here=self._is_here(name), runs=self._runs.get(name, {}).values())
        for offer in self.offers.values():
            reply.offers.add(offer_id=offer.offer_id, boards=[loan.board for loan in offer.loans])
        return _with_version(reply)

    def offer(self, request: pb.OfferRunRequest) -> None:
        """Offer a run to boards. If there is an offer with the same id, replace it. The new offer keeps the old offer's
        place in the order.

        Raises:
            ExperimentError: the id of the offer is not valid. Or the offer names no board, an unknown board, or a board
                twice.
        """
        names = [loan.board for loan in request.loans]
        unknown = sorted(set(names) - set(self.boards))
        if not OFFER_ID.fullmatch(request.offer_id):
            raise ExperimentError(
                f"{quoted(request.offer_id)} is not a valid id of an offer; give small letters, digits, dots, _ and -"
            )
        if not names or len(names) != len(set(names)):
            raise ExperimentError("an offer must name at least one board, and each board once")
        if unknown:
            raise ExperimentError(f"no board called {quoted(*unknown)} has ever called this fleet; start its agent")
        path = self._files.get(request.offer_id)
        if path is None:
            last = max((int(path.name.partition("-")[0]) for path in self._files.values()), default=0)
            path = self._offers / f"{last + 1:08d}-{request.offer_id}"
        write_sealed(path, request.SerializeToString())
        self._files[request.offer_id] = path
        self.offers[request.offer_id] = request
        self._forget(request.offer_id)

    def withdraw(self, offer_id: str) -> bool:
        """Withdraw the offer of a run from its boards. Return whether there was such an offer."""
        path = self._files.pop(offer_id, None)
        if path is None:
            return False
        path.unlink(missing_ok=True)
        del self.offers[offer_id]
        self._forget(offer_id)
        return True

    def _forget(self, offer_id: str) -> None:
        """Delete all cached replies, and the states of an offer's run that boards have reported. The offer was replaced
        or withdrawn, so these are outdated.
        """
        self._replies.clear()
        for runs in self._runs.values():
            runs.pop(offer_id, None)


def _read(path: Path, kind: type[Message]) -> Message:
    message: Message = kind.FromString(read_sealed(path))
    return message


def _with_version(reply: Message) -> Message:
    """Set the version of a reply to the digest of its content, and return the reply. In its next call, the caller sends
    the version that it knows.
    """
    reply.version = hashlib.sha256(reply.SerializeToString(deterministic=True)).digest()
    return reply
