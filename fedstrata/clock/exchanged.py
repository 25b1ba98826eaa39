"""The bytes that a parent and a child send each other in a round, and the work that the child reports."""

from dataclasses import dataclass, field, replace
from typing import Self

from fedstrata.v1 import answers_pb2
from fedstrata.v1 import rounds_pb2 as pb


@dataclass(frozen=True, kw_only=True)
class Exchanged:
    """Hold how many bytes a parent and one child sent each other in a round, and the work that the child reports."""

    down_bytes: int = 0
    up_bytes: int = 0
    work: pb.Work = field(default_factory=pb.Work)
    stream: int = 0  # number of the model that the parent sent to the child in this round

    @classmethod
    def of_update(cls, header: pb.UpdateHeader) -> Self:
        """Return the size of an update (header and payload), and the reported work. The size does not include header
        fields that depend on real time or on a resumed transfer.
        """
        own = pb.UpdateHeader(
            run_id=header.run_id,
            child_id=header.child_id,
            home_id=header.home_id,
            round=header.round,
            payload=header.payload,
            train_loss=header.train_loss,
            evaluations=header.evaluations,
            base_digest=header.base_digest,
            num_examples=header.num_examples,
        )
        work = pb.Work()  # a copy: a part of a message keeps the whole message in memory
        work.CopyFrom(header.work)
        return cls(up_bytes=own.ByteSize() + header.payload.payload_bytes, work=work)

    @classmethod
    def of_model(cls, header: pb.ModelHeader) -> Self:
        """Return the size of a model (header and payload) in a transfer that was not interrupted. Each version of the
        plan has the size of the first, because the version depends on how many newcomers have enrolled by now.
        """
        own = pb.ModelHeader()
        own.CopyFrom(header)
        own.offset, own.plan_version = 0, min(1, header.plan_version)
        return cls(down_bytes=own.ByteSize() + header.payload.payload_bytes, stream=header.cluster)

    @classmethod
    def of_answer(cls, answer: answers_pb2.Answer) -> Self:
        """Return the size of an answer in a round, and the work that the device did for the answer. The device's later
        update reports this size and this work again.
        """
        for_it = answer.trained_examples
        return cls(work=pb.Work(examples=for_it, answer_bytes=answer.ByteSize(), answer_examples=for_it))

    @classmethod
    def of_flow(cls, flow: pb.Flow) -> Self:
        """Return the sizes of a model and of the child's answer, and the reported work. `flow` is the record of the
        child's transfers.
        """
        said = pb.Work(examples=flow.examples, answer_bytes=flow.answer_bytes, answer_examples=flow.answer_examples)
        return cls(down_bytes=flow.down_bytes, work=said, stream=flow.stream)

    def after(self, sent: "Exchanged") -> "Exchanged":
        """Return this upload together with `sent`, the download of the model before the upload."""
        return replace(self, down_bytes=sent.down_bytes, stream=sent.stream)


def took_ns(carried: pb.Carried) -> int:
    """Return how many nanoseconds a transfer or computing took on the real clock.

    If a transfer took longer than calculated, `achieved_link_ns` and `achieved_latency_ns` both contain the additional
    time. So the sum of these two fields would be too long.
    """
    return max(carried.achieved_link_ns + carried.latency_ns, carried.achieved_latency_ns)
