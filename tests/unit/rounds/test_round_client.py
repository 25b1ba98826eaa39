"""A child's side of a round against a real parent's side: what is cut goes on, what is lost is sent again."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, cast

import numpy as np
import pytest

from fedstrata.errors import ParentAwayError, PayloadError
from fedstrata.experiment import Encoding, LinkSettings
from fedstrata.process.logs import EventLog
from fedstrata.rounds import Identity, Intake, Offer, OpenRound, ParentCalls, ReceivedModel, RoundClient
from fedstrata.store import ModelFile, write_model
from fedstrata.tensors import CHUNK_BYTES, Layout, PayloadCodec
from fedstrata.v1 import rounds_pb2 as pb
from tests.support.gatherings import one_stream
from tests.support.rounds_setting import (
    LAYOUT,
    LINK,
    RUN_ID,
    Wire,
    client_of,
    cut_off,
    open_round,
    server_of,
    update_of,
    vector,
)

# four chunks of float32, the last one short
LARGE = Layout.of({"w": (3 * CHUNK_BYTES // 4,), "b": (1000,)})
LARGE_UPDATE = np.linspace(-1, 1, LARGE.size, dtype=np.float32)


async def fetched(client: RoundClient, sent_round: int = -1) -> ReceivedModel:
    model = await client.fetch(sent_round)
    assert isinstance(model, ReceivedModel)
    return model


@pytest.mark.parametrize("cuts", [(0,), (1,), (2,), (4,), (1, 1, 1), (5,)])
async def test_a_download_cut_after_any_part_arrives_whole(tmp_path: Path, cuts: tuple[int, ...]) -> None:
    server, _ = server_of(tmp_path, children={"a": 2}, layout=LARGE)
    wire = Wire(server, cut_down=cuts)
    model = await fetched(client_of(wire, layout=LARGE))
    assert model.flat.tobytes() == np.arange(LARGE.size, dtype=np.float32).tobytes()


async def test_a_cut_download_goes_on_at_the_chunk_where_it_was_cut(tmp_path: Path) -> None:
    server, _ = server_of(tmp_path, children={"a": 2}, layout=LARGE)
    wire = Wire(server, cut_down=(3,))  # header and two chunks; two more and their header are left
    await fetched(client_of(wire, layout=LARGE))
    assert wire.parts_down == 3 + 3


async def test_a_download_that_a_new_round_overtakes_begins_anew(tmp_path: Path) -> None:
    server, _ = server_of(tmp_path, children={"a": 2}, layout=LARGE)
    client = client_of(Wire(server, cut_down=(2,)), layout=LARGE)
    fetching = asyncio.create_task(client.fetch(-1))
    open_round(server, tmp_path, 1, {"a": 2})
    model = await fetching
    assert isinstance(model, ReceivedModel)
    assert model.round == 1
    assert model.flat[0] == 1.0


@pytest.mark.parametrize("cuts", [(0,), (1,), (3,), (4,), (1, 1, 1), (9,)])
async def test_an_upload_cut_after_any_chunk_counts_once(tmp_path: Path, cuts: tuple[int, ...]) -> None:
    server, total = server_of(tmp_path, children={"a": 2}, layout=LARGE)
    client = client_of(Wire(server, cut_up=cuts), layout=LARGE)
    gathering = asyncio.create_task(server.gather())
    reply = await client.submit(update_of(client, LARGE_UPDATE))
    assert reply.accepted
    assert (await gathering).num_examples == 2
    assert np.array_equal(total.mean(), np.float32(np.rint(LARGE_UPDATE.astype(np.float64) * 2**32) / 2**32))


async def test_a_cut_upload_sends_no_chunk_twice(tmp_path: Path) -> None:
    server, _ = server_of(tmp_path, children={"a": 2}, layout=LARGE)
    wire = Wire(server, cut_up=(2,))
    client = client_of(wire, layout=LARGE)
    await client.submit(update_of(client, LARGE_UPDATE))
    assert wire.parts_up == 4


async def test_after_a_restart_of_the_parent_the_child_is_asked_to_send_again(tmp_path: Path) -> None:
    server, _ = server_of(tmp_path, children={"a": 2})
    client = client_of(Wire(server))
    update = update_of(client, vector(1.0))
    await client.submit(update)
    (tmp_path / "second-life").mkdir()
    restarted, total = server_of(tmp_path / "second-life", children={"a": 2})
    client = client_of(Wire(restarted))
    answer = await client.fetch(sent_round=0)
    assert isinstance(answer, pb.SendAgain)
    await client.submit(update)
    await restarted.gather()
    assert total.mean()[0] == 1.0


async def test_an_update_against_another_model_of_the_round_is_late_and_not_asked_for(tmp_path: Path) -> None:
    server, total = server_of(tmp_path, children={"a": 2})
    client = client_of(Wire(server))
    received = await client.fetch(sent_round=-1)
    assert isinstance(received, ReceivedModel)
    elsewhere = replace(update_of(client, vector(9.0)), base_digest=b"of another LPS's model of this round")
    assert not (await client.submit(elsewhere)).accepted
    assert isinstance(await client.fetch(0, elsewhere.base_digest), ReceivedModel)
    assert isinstance(await client.fetch(0, received.digest), pb.SendAgain)
    assert (await client.submit(replace(update_of(client, vector(1.0)), base_digest=received.digest))).accepted
    await server.gather()
    assert total.mean()[0] == 1.0


@pytest.mark.parametrize("call", ["submit", "exchange"])
async def test_an_update_with_nan_is_refused_and_the_child_is_told_why(tmp_path: Path, call: str) -> None:
    server, _ = server_of(tmp_path, children={"a": 2})
    client = client_of(Wire(server))
    with pytest.raises(PayloadError, match="finite"):
        await getattr(client, call)(update_of(client, vector(float("nan"))))


async def test_an_int8_upload_cut_and_resumed_has_the_bits_of_the_whole(tmp_path: Path) -> None:
    link = LinkSettings(up="int8")
    large = Layout.of({"w": (2 * CHUNK_BYTES + 12,)})
    flat = np.linspace(-3, 3, large.size, dtype=np.float32)
    server, total = server_of(tmp_path, children={"a": 2}, layout=large, link=link)
    client = client_of(Wire(server, cut_up=(1, 1)), layout=large, link=link)
    await client.submit(update_of(client, flat))
    await server.gather()
    codec = PayloadCodec.for_vector(large, "int8", flat)
    chunks = list(codec.chunks(lambda start, stop: flat[start:stop]))
    decoded = np.concatenate([codec.decode(bytes(c), i * CHUNK_BYTES) for i, c in enumerate(chunks)])
    assert np.array_equal(total.mean(), np.float32(np.rint(decoded.astype(np.float64) * 2**32) / 2**32))


async def test_a_child_with_patience_says_when_its_parent_stays_away() -> None:
    tries = 0

    async def away(*arguments: object, **options: object) -> NoReturn:
        nonlocal tries
        tries += 1
        raise cut_off()

    identity = Identity(run_id=RUN_ID, child_id="a", home_id="lps-0")
    layout = Layout.of({"w": (2,)})
    calls = ParentCalls(stream=cast(Any, None), submit=away, locate=away, patience=3)
    client = RoundClient(calls, identity, layout, link=LINK, log=EventLog("test"))
    with pytest.raises(ParentAwayError, match="did not answer 3 tries"):
        await client.submit(update_of(client, np.zeros(2, np.float32)))
    assert tries == 5  # the update once, then where it stands, four times


async def test_a_download_that_was_cut_is_not_completed_with_another_model_of_the_same_round(tmp_path: Path) -> None:
    server, _ = server_of(tmp_path, children={"a": 2}, layout=LARGE)
    another = np.full(LARGE.size, 7, np.float32)
    path = tmp_path / "another.safetensors"
    write_model(path, LARGE, [another], {})

    def open_anew() -> None:
        intake = Intake(children={"a": 2}, sums=one_stream(LARGE.size, {"a": 2}), wait=server.terms.wait)
        server.open(OpenRound(offers={0: Offer(ModelFile(path, LARGE))}, number=0, global_round=0, intake=intake))

    wire = Wire(server, cut_down=(3,))  # header and two chunks of the first model
    wire.on_cut = open_anew
    model = await fetched(client_of(wire, layout=LARGE))
    assert model.flat.tobytes() == another.tobytes()


@pytest.mark.parametrize("layout", [LAYOUT, LARGE], ids=["in one message", "in chunks"])
async def test_an_exchange_sends_an_update_and_brings_what_comes_after_it(tmp_path: Path, layout: Layout) -> None:
    server, total = server_of(tmp_path, children={"a": 2}, layout=layout)
    client = client_of(Wire(server), layout=layout)
    await fetched(client)
    answer = asyncio.create_task(client.exchange(update_of(client, np.ones(layout.size, np.float32))))
    await server.gather()
    open_round(server, tmp_path, 1, {"a": 2})
    model = await answer
    assert isinstance(model, ReceivedModel)
    assert (model.round, model.flat[0]) == (1, 1.0)
    assert set(total.mean().tolist()) == {1.0}


@pytest.mark.parametrize("cuts", [(0,), (1,), (3,), (4,), (9,), (2, 2)])
async def test_an_exchange_cut_anywhere_on_its_way_up_counts_once_and_goes_on(
    tmp_path: Path, cuts: tuple[int, ...]
) -> None:
    server, total = server_of(tmp_path, children={"a": 2}, layout=LARGE)
    client = client_of(Wire(server, cut_up=cuts), layout=LARGE)
    answer = asyncio.create_task(client.exchange(update_of(client, LARGE_UPDATE)))
    assert (await server.gather()).num_examples == 2
    open_round(server, tmp_path, 1, {"a": 2})
    model = await answer
    assert isinstance(model, ReceivedModel)
    assert model.round == 1
    assert np.array_equal(total.mean(), np.float32(np.rint(LARGE_UPDATE.astype(np.float64) * 2**32) / 2**32))


async def test_an_exchange_whose_answer_is_cut_goes_on_with_it_and_sends_nothing_again(tmp_path: Path) -> None:
    server, _ = server_of(tmp_path, children={"a": 2}, layout=LARGE)
    wire = Wire(server, cut_down=(2,))
    client = client_of(wire, layout=LARGE)
    answer = asyncio.create_task(client.exchange(update_of(client, LARGE_UPDATE)))
    await server.gather()
    open_round(server, tmp_path, 1, {"a": 2})
    assert isinstance(await answer, ReceivedModel)
    assert (wire.parts_up, wire.parts_down) == (4, 2 + 4)  # the model's header twice


async def test_an_exchange_that_comes_too_late_brings_the_newest_model(tmp_path: Path) -> None:
    server, _ = server_of(tmp_path, children={"a": 2})
    client = client_of(Wire(server))
    total = open_round(server, tmp_path, 1, {"a": 2})
    model = await client.exchange(update_of(client, vector(1.0)))
    assert isinstance(model, ReceivedModel)
    assert (model.round, total.num_examples) == (1, 0)


@pytest.mark.parametrize("encoding", ["float32", "int8"])
async def test_each_update_is_announced_with_its_own_examples_and_scales(encoding: Encoding) -> None:
    announced: list[tuple[int, float]] = []

    async def take(parts: Iterator[bytes], **_: object) -> pb.UpdateReply:
        for part in parts:
            (sums,) = pb.UpdatePart.FromString(part).header.payload.parts
            announced.append((sums.num_examples, sums.tensors[0].scale))
        return pb.UpdateReply(accepted=True)

    identity = Identity(run_id=RUN_ID, child_id="a", home_id="lps-0")
    unused, link = cast(Any, None), LinkSettings(up=encoding)
    calls = ParentCalls(stream=unused, submit=take, locate=unused)
    client = RoundClient(calls, identity, LAYOUT, link=link, log=EventLog("test"))
    for num_examples, value in ((2, 1.0), (2, 4.0), (3, 4.0)):
        await client.submit(update_of(client, vector(value), num_examples=num_examples))
    scale = np.float32(1 / 127) if encoding == "int8" else 0.0
    assert announced == [(2, pytest.approx(scale)), (2, pytest.approx(4 * scale)), (3, pytest.approx(4 * scale))]
