"""Attackers who begin uploads that are theirs to send, and then send a byte now and then."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc

from benchmarks.attackers import GPS, LPS, MANY, Attack, Attacker, Target
from fedstrata.datasets import dataset_info
from fedstrata.experiment import Experiment
from fedstrata.methods import make_method
from fedstrata.models import build_model
from fedstrata.rpc.payload import payload_header
from fedstrata.streams.streams import UPDATE_PART, Streams, streams_of
from fedstrata.tensors import PayloadCodec
from fedstrata.v1 import answers_pb2, gps_service_pb2, rounds_pb2, tensors_pb2

DRIP_S = 0.5
Message = Callable[[Target], Any]


def dripping(at: str, path: str, first: Message, drip: Any) -> Attack:
    """Many streams that begin well, of each of which little comes from then on."""

    async def attack(attacker: Attacker) -> None:
        begin = first(attacker.target).SerializeToString()

        async def one(channel: grpc.aio.Channel) -> None:
            call = channel.stream_stream(path, None, None)(None)
            try:
                await call.write(begin)
                while not call.done():
                    await call.write(drip.SerializeToString())
                    await asyncio.wait([asyncio.ensure_future(call.code())], timeout=DRIP_S)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                pass
            attacker.heard[(await call.code()).name] += 1

        async with attacker.channel(at) as channel:
            await asyncio.gather(*(one(channel) for _ in range(MANY)))

    return attack


def _streams(experiment: Experiment) -> Streams:
    model = build_model(experiment.model, dataset_info(experiment.data))
    return streams_of(experiment, make_method(experiment), model)


def of_first_round(child_id: str, payload: Callable[[Experiment], tensors_pb2.PayloadHeader], **more: Any) -> Message:
    """The header of an update of the first round, which is over: it is late, and read to its end."""

    def made(target: Target) -> rounds_pb2.UpdatePart:
        names = {"run_id": target.run_id, "child_id": child_id, "cluster_id": "lps-0", **more}
        return rounds_pb2.UpdatePart(
            header=rounds_pb2.UpdateHeader(round=0, payload=payload(target.experiment), **names)
        )

    return made


def _update(experiment: Experiment) -> tensors_pb2.PayloadHeader:
    codec = PayloadCodec(_streams(experiment).travelling, experiment.links.device_lps.up)
    return payload_header(codec, name=UPDATE_PART, num_examples=1)


def _aggregate(experiment: Experiment) -> tensors_pb2.PayloadHeader:
    codec = PayloadCodec(_streams(experiment).everywhere, experiment.links.lps_gps.up)
    return payload_header(codec, name=UPDATE_PART, num_examples=1)


def _bundle(target: Target) -> answers_pb2.BundlePart:
    header = answers_pb2.BundleHeader(run_id=target.run_id, lps_id="lps-0", cluster_id="lps-0", answers=10)
    return answers_pb2.BundlePart(header=header)


def _report(target: Target) -> gps_service_pb2.ReportPart:
    header = gps_service_pb2.ReportHeader(run_id=target.run_id, lps_id="lps-0", cluster_id="lps-0")
    return gps_service_pb2.ReportPart(header=header)


BYTE = rounds_pb2.UpdatePart(data=b"x")
ANSWER = answers_pb2.BundlePart(answer=answers_pb2.DeviceAnswer(device_index=1))
updates = dripping("lps", LPS + "Attend", of_first_round("device-006", _update, work=rounds_pb2.Work(examples=1)), BYTE)
aggregates = dripping("gps", GPS + "Attend", of_first_round("lps-0", _aggregate, lps_id="lps-0"), BYTE)
bundles = dripping("gps", GPS + "SubmitAnswers", _bundle, ANSWER)
reports = dripping("gps", GPS + "SubmitReport", _report, gps_service_pb2.ReportPart(data=b"x"))
