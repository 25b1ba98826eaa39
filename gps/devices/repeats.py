"""Find the messages before training that a device and the GPS exchange again because a process was restarted.

The result of a run does not need these messages. They are part of all counts of bytes, and are also counted apart, so
that an interrupted run can be compared with one that was not.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fedstrata.errors import SupersededError
from fedstrata.rpc.counting import FRAME_BYTES
from fedstrata.v1 import answers_pb2
from fedstrata.v1 import gps_service_pb2 as pb

CUT = (asyncio.CancelledError, SupersededError)  # how calls end if their caller has died


def size_of(message: Any) -> int:
    """Return the bytes of a message on the link."""
    return int(message.ByteSize()) + FRAME_BYTES


@dataclass
class Upload:
    """Hold the bytes of an answer that have arrived so far."""

    arrived: int = 0

    async def of(self, parts: AsyncIterator[answers_pb2.AnswerPart]) -> AsyncIterator[answers_pb2.AnswerPart]:
        """Yield the parts of an answer, and count their bytes."""
        async for part in parts:
            self.arrived += size_of(part)
            yield part


class Repeats:
    """Tell the bytes of repeated messages to `note`, by direction."""

    def __init__(self, note: Callable[[str, int], None]) -> None:
        self._note = note
        self._assigned: set[str] = set()  # devices that know their LPS
        self._relayed: defaultdict[tuple[str, str], int] = defaultdict(lambda: -1)  # newest index sent, by device

    def enrolled(self, request: pb.EnrollRequest, reply: pb.EnrollResponse) -> None:
        """Count the enrolment of a device that had enrolled before."""
        if reply.is_known:
            self._both(request, reply)

    def assigned(self, request: pb.FetchAssignmentRequest, reply: pb.FetchAssignmentResponse) -> None:
        """Count the reply to a device that had learned its LPS before."""
        if request.device_id in self._assigned:
            self._both(request, reply)
        elif reply.is_assigned:
            self._assigned.add(request.device_id)

    @contextmanager
    def unless_cut(self, arrived: Callable[[], int]) -> Iterator[None]:
        """Run a block. If its call is cut, count the bytes that had arrived, because the device sends them again."""
        try:
            yield
        except CUT:
            self._note("up", arrived())
            raise

    def answered(self, upload: Upload, reply: answers_pb2.SubmitAnswerResponse) -> None:
        """Count an answer that the GPS had before."""
        self._note("up", upload.arrived)
        self._note("down", size_of(reply))

    async def relayed(
        self, request: answers_pb2.FetchAnswersRequest, parts: AsyncIterator[answers_pb2.AnswerPart]
    ) -> AsyncIterator[answers_pb2.AnswerPart]:
        """Yield the answers that a device requests. Count those that this device was sent before."""
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
        except (asyncio.CancelledError, GeneratorExit):  # the device is sent the whole answer again
            self._note("down", sent)
            raise
        self._end(about, index)

    def _end(self, about: tuple[str, str], index: int) -> None:
        self._relayed[about] = max(self._relayed[about], index)

    def _both(self, request: Any, reply: Any) -> None:
        self._note("up", size_of(request))
        self._note("down", size_of(reply))
