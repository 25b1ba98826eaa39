"""The gRPC service of a fleet for boards and operators."""

from typing import Any

from fedstrata.process.logs import EventLog
from fedstrata.process.time_limits import HOLD_S
from fedstrata.process.waiting import Changes
from fedstrata.trust.board_keys import public_key_of
from fedstrata.v1 import fleet_service_pb2 as pb
from fedstrata.v1.fleet_service_pb2_grpc import FleetServiceServicer
from fleet.offers import KEY_BYTES, Fleet


class FleetServicer(FleetServiceServicer):
    """Translate gRPC calls into calls of a `Fleet`. A call that waits ends when something has changed, or after 20
    s.
    """

    def __init__(self, fleet: Fleet, log: EventLog) -> None:
        self._fleet = fleet
        self._log = log
        self._changes = Changes()

    async def FetchOffers(self, request: pb.FetchOffersRequest, context: Any) -> pb.FetchOffersResponse:
        """Note what a board reports. Wait until the board's offers differ from the offers that the board knows. Return
        the board's offers, even if the wait has ended without a change.

        Raises:
            PayloadError: the board's key cannot be certified.
        """
        name = request.board.name
        public_key_of(request.board.public_key[:KEY_BYTES])  # the part that the fleet stores
        with self._fleet.visit(name):
            if self._fleet.report(request):
                self._log.info("board", name=name, runs={run.offer_id[:80]: run.state for run in request.runs[:8]})
                self._changes.tell()
            await self._changes.wait_until(lambda: self._fleet.offers_of(name).version != request.known_version, HOLD_S)
            return self._fleet.offers_of(name)

    async def FetchFleet(self, request: pb.FetchFleetRequest, context: Any) -> pb.FetchFleetResponse:
        """Wait until a board or an offer has changed since the operator's last call. Return all boards and offers, even
        if the wait has ended without a change.
        """
        await self._changes.wait_until(lambda: self._fleet.everything().version != request.known_version, HOLD_S)
        return self._fleet.everything()

    async def OfferRun(self, request: pb.OfferRunRequest, context: Any) -> pb.OfferRunResponse:
        """Offer a run to boards."""
        self._fleet.offer(request)
        self._log.info("offered", offer=request.offer_id, boards=[loan.board for loan in request.loans])
        self._changes.tell()
        return pb.OfferRunResponse()

    async def WithdrawRun(self, request: pb.WithdrawRunRequest, context: Any) -> pb.WithdrawRunResponse:
        """Withdraw the offer of a run from its boards."""
        was_offered = self._fleet.withdraw(request.offer_id)
        if was_offered:
            self._log.info("withdrawn", offer=request.offer_id)
            self._changes.tell()
        return pb.WithdrawRunResponse(was_offered=was_offered)
