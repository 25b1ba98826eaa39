"""A round without a network, shared by the tests of its two sides: one tiny layout, children with whole updates."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, cast

import grpc
import numpy as np
from grpc.aio import Metadata

from fedstrata.clock.deadline import Deadline, SharedUplink
from fedstrata.clock.round_side import HeldBack
from fedstrata.clock.timeline import Round
from fedstrata.errors import FedstrataError
from fedstrata.experiment import LinkSettings, TierDeadline
from fedstrata.experiment_file import parse_experiment
from fedstrata.links.tier_links import device_links
from fedstrata.links.transfers import Transfers
from fedstrata.methods import Question
from fedstrata.process.logs import EventLog
from fedstrata.process.metrics import ProcessMetrics
from fedstrata.rounds import (
    Asking,
    Identity,
    Intake,
    Offer,
    OpenRound,
    ParentCalls,
    ParentStream,
    RoundClient,
    RoundServer,
    RoundTerms,
    Update,
    on_time,
)
from fedstrata.rpc.chunk import Whole, part_parser
from fedstrata.rpc.payload import Acceptance, payload_header
from fedstrata.store import ModelFile, write_model
from fedstrata.streams.streams import UPDATE_PART as PART
from fedstrata.tensors import ExactSum, Flat, Layout, PayloadCodec
from fedstrata.v1 import rounds_pb2 as pb
from tests.support.gatherings import one_stream, sums_in

RUN_ID = "run-1"
LAYOUT = Layout.of({"fc1.weight": (3, 2), "fc1.bias": (2,)})
CODEC = PayloadCodec(LAYOUT, "float32")
LINK = LinkSettings()
FOREVER = TierDeadline()


def vector(*values: float) -> Flat:
    """A whole update: these values, then zeros."""
    return np.float32([*values, *[0.0] * (LAYOUT.size - len(values))])


def bytes_of(flat: Flat) -> bytes:
    return flat.astype("<f4").tobytes()


def header_of(
    child_id: str, *, num_examples: int, round_number: int = 0, offset: int = 0, run_id: str = RUN_ID
) -> pb.UpdateHeader:
    payload = payload_header(CODEC, name=PART, num_examples=num_examples)
    return pb.UpdateHeader(run_id=run_id, child_id=child_id, round=round_number, payload=payload, offset=offset)


def intake_of(children: dict[str, int], wait: TierDeadline = FOREVER) -> tuple[Intake, ExactSum]:
    """An intake for children with the examples they stand for, and the sum it fills."""
    sums = one_stream(LAYOUT.size, children)
    return Intake(children=children, sums=sums, wait=wait), sums_in(sums)[0]


async def send(intake: Intake, child_id: str, flat: Flat, num_examples: int, cuts: Sequence[int] = ()) -> None:
    """Send a whole update in chunks that end at the cuts, each chunk as a call of its own."""
    data = bytes_of(flat)
    ends = [*sorted({cut for cut in cuts if 0 < cut < len(data)}), len(data)]
    start = 0
    for end in ends:
        upload = await intake.begin(child_id, CODEC, (num_examples,), start)
        assert upload is not None
        await intake.fold(upload, data[start:end])
        start = end
    await intake.finish(upload, header_of(child_id, num_examples=num_examples))


async def parts_of(data: bytes, *, chunk_bytes: int = 8) -> AsyncIterator[pb.UpdatePart]:
    """The chunks of an upload, without its header."""
    for start in range(0, len(data), chunk_bytes):
        yield pb.UpdatePart(data=data[start : start + chunk_bytes])


def parent_of(terms: RoundTerms, layout: Layout = LAYOUT, **given: Any) -> RoundServer:
    """A parent without a round, for updates with this layout."""
    updates = Acceptance(layout, terms.link.up, PART)
    given = {"accepts_updates": lambda number: updates, **given}
    return RoundServer(terms, ProcessMetrics("lps"), EventLog("test"), **given)


def held_back_parent(links: Transfers, layout: Layout) -> RoundServer:
    """A parent without a round, by whose links models and updates are held back."""
    return parent_of(RoundTerms(run_id=RUN_ID, link=LINK, wait=FOREVER, clock=HeldBack(links)), layout)


def server_of(
    folder: Path,
    *,
    children: dict[str, int],
    wait: TierDeadline = FOREVER,
    layout: Layout = LAYOUT,
    link: LinkSettings = LINK,
    deadline: Deadline | None = None,
    **given: Any,
) -> tuple[RoundServer, ExactSum]:
    """A parent with round 0 open, whose model counts 0, 1, 2, …; and the sum that the round fills."""
    server = parent_of(RoundTerms(run_id=RUN_ID, link=link, wait=wait), layout, **given)
    return server, open_round(server, folder, 0, children, deadline, layout=layout)


def open_round(
    server: RoundServer, folder: Path, number: int, children: dict[str, int], deadline: Deadline | None = None,
    *, layout: Layout | None = None,
) -> ExactSum:  # fmt: skip
    """Open a round whose model is the round's number plus 0, 1, 2, …; gives its sum. The layout is that of the round
    before.
    """
    layout = layout or server.opened().offers[0].model.layout
    path = folder / f"model-{number}.safetensors"
    write_model(path, layout, [np.arange(layout.size, dtype=np.float32) + number], {})
    sums = one_stream(layout.size, children)
    intake = Intake(children=children, sums=sums, wait=server.terms.wait)
    model = ModelFile(path, layout)
    stages = on_time(deadline or Deadline())
    server.open(OpenRound(offers={0: Offer(model)}, number=number, global_round=number, intake=intake, stages=stages))
    return sums_in(sums)[0]


def announced(children: Iterable[str], *late: str) -> SharedUplink:
    """A deadline that children announce updates for, over a link that they share; these will be late."""
    indexes = {name: index for index, name in enumerate(children)}
    slow = f"overrides: [{{devices: [{', '.join(str(indexes[name]) for name in late)}], up_rate: 8bit/s}}]"
    experiment = parse_experiment(
        f"name: announced\nmethod: fedavg\npartition: {{kind: iid, devices: {len(indexes)}, examples_per_device: 10}}",
        overrides=[
            "clock=virtual", "deadlines.lps={deadline_s: 1, quorum_ratio: 0.1}",
            f"links={{shared: {{device-lps: {{up_rate: 1Gbit/s}}}}{', ' + slow if late else ''}}}",
        ],
    )  # fmt: skip
    free = dict.fromkeys(indexes, 0)
    links = replace(device_links(experiment), index_of=indexes.get)
    timed = Round(links, lambda index, work: (0, 0), number=0, begins_ns=0)
    return SharedUplink(timed, deadline_ns=10**9, free=free, indexes=indexes)


async def said(server: RoundServer, child_id: str, **about: int) -> pb.ModelPart:
    """The first part of what a child is told that asks."""
    fields = {"sent_round": -1, "resume_round": -1, **about}
    async for part in server.fetch(pb.FetchModelRequest(run_id=RUN_ID, child_id=child_id, **fields)):
        return pb.ModelPart.FromString(part) if isinstance(part, bytes) else part
    raise AssertionError("an empty stream")


def asking_of(server: RoundServer) -> Asking:
    """The question of the open round."""
    return next(stage for stage in server.opened().stages if isinstance(stage, Asking))


class Wire:
    """The calls of a child, straight into a parent, cut as the test says: after so many parts, each once."""

    def __init__(self, server: RoundServer, *, cut_down: Sequence[int] = (), cut_up: Sequence[int] = ()) -> None:
        self.server = server
        self._cut_down, self._cut_up = list(cut_down), list(cut_up)
        self.parts_up = self.parts_down = 0
        self.asked: list[pb.FetchModelRequest] = []
        self.on_cut: Callable[[], None] = lambda: None

    async def fetch(self, request: pb.FetchModelRequest, **options: object) -> AsyncIterator[pb.ModelPart]:
        self.asked.append(request)
        cut_after = self._cut_down.pop(0) if self._cut_down else None
        count = 0
        async with answered():
            async for part in self.server.fetch(request):
                if count == cut_after:
                    self.on_cut()
                    raise cut_off()
                count, self.parts_down = count + 1, self.parts_down + 1
                for read in as_read(pb.ModelPart, part):
                    yield read
        if cut_after is not None:
            raise cut_off()

    async def submit(self, parts: Iterable[pb.UpdatePart | bytes], **options: object) -> Any:
        cut_after, parts = self._cut_up.pop(0) if self._cut_up else None, iter(parts)
        first, *with_it = as_read(pb.UpdatePart, next(parts))

        async def rest() -> AsyncIterator[Any]:
            for part in with_it:
                yield part
            count = 0
            for part in parts:
                if count == cut_after:
                    raise asyncio.CancelledError  # as a servicer's handler sees a client that has gone
                count, self.parts_up = count + 1, self.parts_up + 1
                for read in as_read(pb.UpdatePart, part):
                    yield read

        try:
            async with answered():
                reply = await self.server.submit(first.header, rest())
        except asyncio.CancelledError:
            raise cut_off() from None
        if cut_after is not None:
            raise cut_off()
        return reply

    async def _answer(self, message: pb.RoundAnswer) -> AsyncIterator[Any]:
        if self._cut_up and self._cut_up.pop(0) == 0:
            raise cut_off()
        async with answered():
            await self.server.hear(message)
        async for part in self.fetch(message.then_fetch):
            yield part

    async def _announce(self, header: pb.UpdateHeader) -> AsyncIterator[Any]:
        if self._cut_up and self._cut_up.pop(0) == 0:
            raise cut_off()
        async with answered():
            await self.server.hear(header)
        async for part in self.fetch(header.then_fetch):
            yield part

    async def exchange(
        self, parts: Iterable[pb.UpdatePart | bytes], timeout_s: float, **options: object
    ) -> AsyncIterator[Any]:
        """A request, an update or an answer, and what comes after it, as a device's session has them in one."""
        parts = iter(parts)
        first = next(parts)
        if isinstance(first, pb.UpdatePart) and first.HasField("fetch"):
            async for part in self.fetch(first.fetch):
                yield part
            return
        if isinstance(first, pb.UpdatePart) and first.HasField("answer"):
            async for part in self._answer(first.answer):
                yield part
            return
        if isinstance(first, pb.UpdatePart) and first.HasField("announced"):
            async for part in self._announce(first.announced):
                yield part
            return
        reply = await self.submit(chain([first], parts))
        if not reply.accepted:
            yield pb.ModelPart(reply=reply)
        header = as_read(pb.UpdatePart, first)[0].header
        request = pb.FetchModelRequest(
            run_id=header.run_id, child_id=header.child_id, sent_round=header.round, resume_round=-1
        )
        async for part in self.fetch(request):
            yield part

    async def locate(self, request: pb.LocateUpdateRequest, **options: object) -> Any:
        async with answered():
            return self.server.locate(request)


def client_of(
    wire: Wire, child_id: str = "a", *, layout: Layout = LAYOUT, link: LinkSettings = LINK, **given: Any
) -> RoundClient:
    """A child's side of a round over a wire."""
    identity = Identity(run_id=RUN_ID, child_id=child_id, home_id="lps-0")
    calls = ParentCalls(stream=cast(ParentStream, wire), submit=wire.submit, locate=wire.locate)
    return RoundClient(calls, identity, layout, link=link, log=EventLog("test"), **given)


def update_of(client: RoundClient, flat: Flat, *, round_number: int = 0, num_examples: int = 2) -> Update:
    """An update of these values, as a child sends it."""
    return Update(
        round=round_number,
        num_examples=num_examples,
        codec=client.codec_for(flat),
        read=lambda start, stop: flat[start:stop],
    )


def as_read(kind: Any, part: Any) -> list[Any]:
    """What comes of a part at the other end of a stream: a payload that is sent with its header follows it there."""
    read = part_parser(kind)(part if isinstance(part, bytes) else part.SerializeToString())
    return [read, read.chunk] if isinstance(read, Whole) else [read]


@asynccontextmanager
async def answered() -> AsyncIterator[None]:
    """Turn a domain error into what a caller gets of it."""
    try:
        yield
    except FedstrataError as error:
        raise grpc.aio.AioRpcError(grpc.StatusCode[error.status], Metadata(), Metadata(), str(error)) from None


def asking(question: Question, deadline: Deadline | None = None) -> Asking:
    """The stage of a round that asks a question and takes every answer."""
    return Asking(question, lambda question, arrays, relayed_by: None, deadline or Deadline())


def cut_off() -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, Metadata(), Metadata(), "the link was cut")
