"""The gRPC service LpsService. It passes each call of a device to the rounds of the cluster that the call names."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from fedstrata.errors import NotReadyError, NotServedError
from fedstrata.process.quoting import quoted
from fedstrata.process.time_limits import HOLD_S
from fedstrata.process.waiting import wait_until
from fedstrata.rounds.parent.child_calls import ChildStream
from fedstrata.rounds.parent.open_round import Message
from fedstrata.rpc.stream import header_first, write_all
from fedstrata.rpc.upload_limit import UPLOAD_WAIT, UploadWait
from fedstrata.v1 import lps_service_pb2 as lps_pb
from fedstrata.v1 import rounds_pb2 as pb
from fedstrata.v1.lps_service_pb2_grpc import LpsServiceServicer
from lps.kept.model_search import Handler, ModelSearch


class LpsServicer(LpsServiceServicer):
    """Translate the gRPC messages of devices into calls of the clusters' rounds."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        are_known: asyncio.Event,
        uploads: UploadWait = UPLOAD_WAIT,
        held_s: float = HOLD_S,
    ) -> None:
        """Set `handlers`, the object of each cluster that answers its devices' calls, and `uploads`, which limits the
        wait for an update in a stream. A call that comes before this LPS knows its clusters waits for at most `held_s`
        seconds.
        """
        self._handlers = handlers
        self._are_known = are_known
        self._uploads = uploads
        self._held_s = held_s

    async def _handler(self, home_id: str) -> Handler:
        """Return the object that answers the calls of a cluster's devices. If this LPS does not know its clusters yet,
        wait for at most `held_s` seconds.

        Raises:
            NotReadyError: the GPS has not sent the clusters of this LPS yet.
            NotServedError: this LPS does not serve the cluster.
        """
        is_known = self._are_known.is_set
        if not is_known() and not await wait_until(self._are_known, is_known, self._held_s):
            raise NotReadyError("the GPS has not yet told this LPS its clusters; try again")
        if home_id not in self._handlers:
            raise NotServedError(f"this LPS does not serve cluster {quoted(home_id)}; ask the GPS for the assignment")
        return self._handlers[home_id]

    async def FetchModel(self, request: pb.FetchModelRequest, context: Any) -> None:
        """Stream the open round's model to a device."""
        await write_all((await self._handler(request.home_id)).fetch(request), context)

    async def SubmitUpdate(self, requests: AsyncIterator[pb.UpdatePart], context: Any) -> pb.UpdateReply:
        """Take a device's update."""
        parts = aiter(requests)
        header = await header_first(parts, "an update")
        return await (await self._handler(header.home_id)).submit(header, parts)

    async def Attend(self, requests: AsyncIterator[pb.UpdatePart], context: Any) -> None:
        """Reply on one stream to a device's requests for models and to its updates, one after the other."""
        stream = ChildStream(self.FetchModel, self.SubmitUpdate, self._hear, self._uploads)
        await stream.answer(requests, context)

    async def _hear(self, message: Message) -> None:
        await (await self._handler(message.home_id)).hear(message)

    async def LocateUpdate(self, request: pb.LocateUpdateRequest, context: Any) -> pb.LocateUpdateResponse:
        """Return how many bytes of a device's upload have arrived. The device continues the upload from there."""
        return (await self._handler(request.home_id)).locate(request)

    async def SubmitEvaluation(
        self, request: lps_pb.SubmitEvaluationRequest, context: Any
    ) -> lps_pb.SubmitEvaluationResponse:
        """Take a device's measurement of a model that all devices measure."""
        (await self._handler(request.home_id)).evaluate(request.run_id, request.evaluation)
        return lps_pb.SubmitEvaluationResponse(run_id=request.run_id)

    async def SubmitModel(
        self, requests: AsyncIterator[lps_pb.HeldModelPart], context: Any
    ) -> lps_pb.SubmitModelResponse:
        """Take the model that a device last received, if the LPS requested it."""
        parts = aiter(requests)
        header = await header_first(parts, "a model")
        handler = await self._handler(header.home_id)
        if isinstance(handler, ModelSearch):
            await handler.take_model(header, parts)
        return lps_pb.SubmitModelResponse(run_id=header.run_id)
