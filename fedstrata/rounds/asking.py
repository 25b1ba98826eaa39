"""A question in the middle of a round: who has answered, and how the round goes on once the plan is made."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from fedstrata.errors import PayloadError
from fedstrata.methods.base import Arrays, Question
from fedstrata.rounds.notes import MOST_MEASURED
from fedstrata.rpc.answers import arrays_of
from fedstrata.v1 import answers_pb2


@dataclass
class Asking:
    """The answers of a round's children, until it goes on."""

    question: Question
    check: Callable[[Question, Arrays, Iterable[int]], None] = lambda question, arrays, relayed_by: None  # the method's
    answers: dict[str, answers_pb2.Answer] = field(default_factory=dict)
    clusters: Mapping[str, int] | None = None  # by child, from the plan that was made of the answers
    went_on_ns: int = 0  # on the real clock: when the parent said so

    @property
    def is_decided(self) -> bool:
        """Whether the round goes on."""
        return self.clusters is not None

    def check_answer(self, child_id: str, answer: answers_pb2.Answer) -> None:
        """Refuse what cannot be a child's answer. Raises PayloadError."""
        if not 0 <= answer.trained_examples < MOST_MEASURED:
            raise PayloadError(f"{child_id} has trained on {answer.trained_examples} examples for its answer")
        self.check(self.question, arrays_of(self.question, answer), ())

    def keep(self, child_id: str, answer: answers_pb2.Answer) -> None:
        """Keep an answer that has been checked; the first of a child counts."""
        copy = answers_pb2.Answer()
        copy.CopyFrom(answer)  # a message inside another keeps all of that one in memory
        self.answers.setdefault(child_id, copy)

    def go_on(self, clusters: Mapping[str, int], now_ns: int) -> None:
        """Let the round go on."""
        self.clusters, self.went_on_ns = clusters, now_ns

    def lacking(self, children: Iterable[str]) -> list[str]:
        """Those of some children who have not answered."""
        return [child_id for child_id in children if child_id not in self.answers]

    def holds_back(self, child_id: str, answered_round: int, number: int) -> bool:
        """Whether a child that says so has answered and waits with the others."""
        return not self.is_decided and answered_round == number and child_id in self.answers
