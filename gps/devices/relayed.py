"""The messages of relayed answers, in the form in which the GPS sends them to devices.

All devices request the same answers at about the same time. So the GPS builds the messages of an answer once, and keeps
the newest in memory. With 100 devices, the GPS reads 100 answers from the journal, and not 9,900.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from fedstrata.methods import Question
from fedstrata.rpc.answer_messages import answer_parts, largest_bytes
from fedstrata.v1 import answers_pb2 as pb
from gps.journal.answers import AnswerTable

KEPT_BYTES = 1 << 20  # most memory for messages, whatever the number of devices
HEADERS_BYTES = 1 << 10  # of an answer, besides its arrays


@dataclass(frozen=True, kw_only=True)
class Relayed:
    """Hold the messages of one answer, and the size in bytes that the answer has as one message."""

    size: int
    parts: tuple[pb.AnswerPart, ...]


class RelayedAnswers:
    """Read relayed answers from the journal as messages. The newest stay in memory, up to `KEPT_BYTES`."""

    def __init__(self, answers: AnswerTable, questions: Sequence[Question]) -> None:
        """`questions` has the questions that are relayed."""
        self.names = frozenset(question.name for question in questions)
        self._answers = answers
        largest = max(map(largest_bytes, questions), default=0)
        self.of = lru_cache(KEPT_BYTES // (HEADERS_BYTES + largest))(self._read)

    def _read(self, question: str, device_id: str, device_index: int) -> Relayed:
        """Return the messages of a device's answer to a question."""
        answer = pb.Answer.FromString(self._answers.one(question, device_index))
        header = pb.AnswerHeader(device_id=device_id, device_index=device_index)
        return Relayed(size=answer.ByteSize(), parts=tuple(answer_parts(answer, header)))
