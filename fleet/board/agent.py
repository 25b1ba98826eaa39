"""The work of a board's agent: it asks the fleet for offers, and takes as many as the board has room for."""

import asyncio
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from fedstrata.errors import StateError
from fedstrata.process.logs import EventLog
from fedstrata.rpc.client import ask
from fedstrata.store import read_sealed, write_sealed
from fedstrata.v1 import fleet_service_pb2 as pb
from fleet.board.runs import HostedRun, Owned
from fleet.offers import OFFER_ID

FOLDERS_KEPT = 8  # folders of withdrawn runs; an interrupted run may be offered again, and needs its state


class BoardAgent:
    """Hold the runs of a board in the order of their offers. The board has a limit for the number of runs at a time. If
    more runs are unfinished, the first runs in the order are executed, and the other runs wait.

    The newest offers are in a file. So a restarted agent continues its runs even if the fleet is away.
    """

    def __init__(self, board: pb.Board, owned: Owned, folder: Path, stub: Any, log: EventLog) -> None:
        self._board = board
        self._owned = owned
        self._folder = folder
        self._stub = stub
        self._log = log
        self._runs: dict[str, HostedRun] = {}
        self._changed = asyncio.Event()

    async def go_on(self) -> None:
        """Continue with the offers in the agent's file, which the board had when the agent ended."""
        if not (self._folder / "offers").exists():
            return
        try:
            known = pb.FetchOffersResponse.FromString(read_sealed(self._folder / "offers"))
        except (StateError, DecodeError) as error:  # the fleet sends the offers again
            self._log.warning("offers_not_read", reason=str(error))
            return
        await self._take(known.offers)

    async def serve(self) -> int:
        """Ask the fleet for offers again and again, and take the offers. This method never returns a value: it runs
        until it is cancelled. Raises FedstrataError if the fleet refuses the board.
        """
        version = b""
        while True:
            self._changed.clear()
            runs = [run.told() for run in self._runs.values()]
            request = pb.FetchOffersRequest(board=self._board, runs=runs, known_version=version)
            asking = asyncio.create_task(ask(self._stub, "FetchOffers", request, self._log))
            changing = asyncio.create_task(self._changed.wait())
            try:
                await asyncio.wait({asking, changing}, return_when=asyncio.FIRST_COMPLETED)
                if not asking.done():
                    continue
                reply: pb.FetchOffersResponse = asking.result()
            finally:
                for job in (asking, changing):
                    job.cancel()
                await asyncio.gather(asking, changing, return_exceptions=True)
            if reply.version != version:
                write_sealed(self._folder / "offers", reply.SerializeToString())
                await self._take(reply.offers)
                version = reply.version

    async def _take(self, offers: Iterable[pb.Offer]) -> None:
        """End the runs that are no longer offered, or that are offered with other content. Start as many runs as there
        is room for.
        """
        offered = {offer.offer_id: offer for offer in offers if OFFER_ID.fullmatch(offer.offer_id)}
        for offer_id, run in list(self._runs.items()):
            if offered.get(offer_id) != run.offer:
                await run.withdraw()
                del self._runs[offer_id]
                self._log.info("given_back", offer=offer_id)
        self._runs = {
            offer_id: self._runs.get(offer_id) or HostedRun(offer, self._place(offer_id), self._log)
            for offer_id, offer in offered.items()
        }
        self._clear()
        self._fill()

    def _place(self, offer_id: str) -> Path:
        place = self._folder / "runs" / offer_id
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        place.touch()
        return place

    def _fill(self) -> None:
        under_way = [run for run in self._runs.values() if not run.is_over]
        for run in under_way[: self._board.most_runs]:
            run.start(self._owned, self._note_end)

    def _note_end(self) -> None:
        """Start the next run if there is room now, and report the state of the runs to the fleet."""
        self._fill()
        self._changed.set()

    def _clear(self) -> None:
        """Delete the folders of runs that the fleet no longer offers. Keep only the newest `FOLDERS_KEPT` of these
        folders.
        """
        with suppress(FileNotFoundError):
            given_back = [path for path in (self._folder / "runs").iterdir() if path.name not in self._runs]
            given_back.sort(key=lambda path: path.stat().st_mtime)
            for path in given_back[:-FOLDERS_KEPT]:
                shutil.rmtree(path, ignore_errors=True)

    async def stop(self) -> None:
        """End all device processes. They continue when the agent is started again."""
        await asyncio.gather(*(run.stop() for run in self._runs.values()))
