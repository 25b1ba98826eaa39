"""Find the messages before training that a device and the GPS exchange again because a process was restarted.

The result of a run does not need these messages. All counts of bytes include these messages. They are also counted
separately, so that an interrupted run can be compared with an uninterrupted run.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fedstrata.errors import SupersededError
from fedstrata.rpc.counting import FRAME_BYTES
from fedstrata.v1 import answers_pb2
from fedstrata.v1 import gps_service_pb2 as pb

LEAST_GROWTH = 1.01  # of relayed bytes between two saves
CUT = (asyncio.CancelledError, SupersededError)  # how calls end if their caller has died


def size_of(message: Any) -> int:
    """Return the bytes of a message on the link."""
    return int(message.ByteSize()) + FRAME_BYTES


class Upload:
    """Hold the parts of an answer that a device sends, the bytes that have arrived, and whether the GPS had the answer
    before.
    """

    def __init__(self, requests: AsyncIterator[answers_pb2.AnswerPart], save: Callable[[], None]) -> None:
        """Set `save`, which is called when all parts have arrived, before the answer is in the journal."""
        self._save = save
        self.arrived = 0
        self.is_known = False
        self.parts = self._counted(aiter(requests))

    async def _counted(self, parts: AsyncIterator[answers_pb2.AnswerPart]) -> AsyncIterator[answers_pb2.AnswerPart]:
        async for part in parts:
            self.arrived += size_of(part)
            yield part
        self._save()


class Repeats:
    """Count the bytes of repeated messages. Save all counts whenever the GPS has taken a message, because a device does
    not send this message again if the GPS is killed.
    """

    def __init__(self, note: Callable[[str, int], None], save: Callable[[], None]) -> None:
        """Set `note`, which is called with the direction and the bytes of repeated messages, and `save`, which saves
        all counts.
        """
        self._note, self._save = note, save
        self._assigned: set[str] = set()  # devices that know their LPS
        self._relayed: defaultdict[tuple[str, str], int] = defaultdict(lambda: -1)  # newest index sent, by device
        self._relayed_bytes = self._saved_at = 0  # relayed so far, and at the last save because of them

    def enrolled(self, request: pb.EnrollRequest, reply: pb.EnrollResponse) -> pb.EnrollResponse:
        """Count the enrolment of a device that had enrolled before. Return the reply."""
        if reply.is_known:
            self._both(request, reply)
        self._save()
        return reply

    @contextmanager
    def asking(self, request: pb.FetchAssignmentRequest) -> Iterator[None]:
        """Run a block that answers a call. If the call is cut, count the request, because the device asks again."""
        try:
            yield
        except CUT:
            self._note("up", size_of(request))
            raise

    def assigned(
        self, request: pb.FetchAssignmentRequest, reply: pb.FetchAssignmentResponse
    ) -> pb.FetchAssignmentResponse:
        """Count the reply to a device that had learned its LPS before. Return the reply."""
        if request.device_id in self._assigned:
            self._both(request, reply)
        elif reply.is_assigned:
            self._assigned.add(request.device_id)
        return reply

    @contextmanager
    def upload(self, requests: AsyncIterator[answers_pb2.AnswerPart]) -> Iterator[Upload]:
        """Run a block that reads an answer from a call. If the call is cut, count the bytes that had arrived."""
        upload = Upload(requests, self._save)
        try:
            yield upload
        except CUT:
            self._note("up", upload.arrived)
            raise

    def answered(self, upload: Upload, reply: answers_pb2.SubmitAnswerResponse) -> answers_pb2.SubmitAnswerResponse:
        """Count an answer that the GPS had before. Return the reply."""
        if upload.is_known:
            self._note("up", upload.arrived)
            self._note("down", size_of(reply))
        return reply

    async def relayed(
        self, request: answers_pb2.FetchAnswersRequest, parts: AsyncIterator[answers_pb2.AnswerPart]
    ) -> AsyncIterator[answers_pb2.AnswerPart]:
        """Yield the answers that a device requests. Count the answers that were sent to this device before."""
        about = request.device_id, request.question
        if request.from_index <= self._relayed[about]:
            self._note("up", size_of(request))
        self._relayed[about] = max(self._relayed[about], request.from_index - 1)
        index, sent = -1, 0  # of the answer whose parts are being sent
        try:
            async for part in parts:
                if part.HasField("header"):
                    self._end(about, index)
                    index, sent = part.header.device_index, 0
                size = size_of(part)
                if 0 <= index <= self._relayed[about]:
                    self._note("down", size)
                else:
                    sent += size
                yield part
                self._relayed_more(size)
        except (asyncio.CancelledError, GeneratorExit):  # the device is sent the whole answer again
            self._note("down", sent)
            raise
        self._end(about, index)
        self._save()

    def _relayed_more(self, size: int) -> None:
        """Add `size` to the number of relayed bytes. If this number has grown by more than one percent since the last
        save, save all counts. A save for each answer to each device would take too long.
        """
        self._relayed_bytes += size
        if self._relayed_bytes > LEAST_GROWTH * self._saved_at:
            self._saved_at = self._relayed_bytes
            self._save()

    def _end(self, about: tuple[str, str], index: int) -> None:
        self._relayed[about] = max(self._relayed[about], index)

    def _both(self, request: Any, reply: Any) -> None:
        self._note("up", size_of(request))
        self._note("down", size_of(reply))
