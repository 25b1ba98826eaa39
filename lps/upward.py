"""What an LPS streams to the GPS: its devices' answers in a global round, and how a cluster has ended."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from fedstrata.process.metrics import ProcessMetrics
from fedstrata.rounds import Identity
from fedstrata.rpc.messages import link_bytes_to_proto
from fedstrata.tensors import CHUNK_BYTES
from fedstrata.v1 import answers_pb2
from fedstrata.v1 import gps_service_pb2 as pb


async def bundle(
    who: Identity, global_round: int, answers: Mapping[int, answers_pb2.Answer], answered_ns: int
) -> AsyncIterator[answers_pb2.BundlePart]:
    """The answers of a cluster's devices, by device index."""
    header = answers_pb2.BundleHeader(
        run_id=who.run_id, lps_id=who.lps_id, cluster_id=who.cluster_id, term=who.term, global_round=global_round,
        answers=len(answers), answered_ns=answered_ns,
    )  # fmt: skip
    question = next((answer.question for answer in answers.values()), "")
    yield answers_pb2.BundlePart(header=header, question=question)
    for index, answer in sorted(answers.items()):
        told = answers_pb2.DeviceAnswer(device_index=index, answer=answer)
        yield answers_pb2.BundlePart(answer=told, question=question)


async def report_parts(
    report: pb.ReportHeader, model: Path | None, metrics: ProcessMetrics
) -> AsyncIterator[pb.ReportPart]:
    """A cluster's report, with all that this LPS has counted by now, and its model unless the GPS has that."""
    del report.link_bytes[:]
    report.link_bytes.extend(link_bytes_to_proto(metrics.links.snapshot()))
    yield pb.ReportPart(header=report)
    if model is None:
        return
    with model.open("rb") as file:
        while data := file.read(CHUNK_BYTES):
            yield pb.ReportPart(data=data)
