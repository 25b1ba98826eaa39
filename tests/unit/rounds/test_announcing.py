"""Updates that are announced before they are sent: nobody's data comes before it is known who is late."""

import asyncio
from pathlib import Path

import pytest

from fedstrata.clock.exchanged import Exchanged
from fedstrata.errors import ExcludedError, PayloadError, RunStoppedError
from fedstrata.experiment import TierDeadline
from fedstrata.rounds import RoundServer
from fedstrata.rounds.parent.stages import Announcing
from fedstrata.rpc.chunk import Whole, part_parser
from fedstrata.tensors import ExactSum
from fedstrata.v1 import rounds_pb2 as pb
from tests.support.rounds_setting import (
    Wire,
    announced,
    bytes_of,
    client_of,
    header_of,
    parts_of,
    said,
    server_of,
    update_of,
    vector,
)

CHILDREN = {"a": 2, "b": 6, "c": 2}
HALF = TierDeadline(quorum_ratio=0.5)


def announcing_server(folder: Path, *late: str) -> tuple[RoundServer, ExactSum, Announcing]:
    """A parent with a round open, in which these will be late."""
    server, total = server_of(folder, children=CHILDREN, wait=HALF, deadline=announced(CHILDREN, *late))
    (stage,) = server.opened().stages
    assert isinstance(stage, Announcing)
    return server, total, stage


def told(child_id: str) -> pb.UpdateHeader:
    return header_of(child_id, num_examples=CHILDREN[child_id])


async def submit(server: RoundServer, child_id: str, value: float) -> bool:
    return (await server.submit(told(child_id), parts_of(bytes_of(vector(value))))).accepted


async def settled(*waiting: "asyncio.Task[pb.ModelPart]") -> None:
    """Let everything happen that can without those who wait."""
    for _ in range(20):
        await asyncio.sleep(0)
    assert not any(each.done() for each in waiting)


async def test_nobody_sends_before_all_have_announced_and_then_those_in_time(tmp_path: Path) -> None:
    server, total, _ = announcing_server(tmp_path, "c")
    gathering = asyncio.create_task(server.gather())
    assert (await said(server, "a")).HasField("header")
    await server.hear(told("a"))
    waiting = [asyncio.create_task(said(server, "a", sent_round=0))]
    await server.hear(told("c"))
    waiting.append(asyncio.create_task(said(server, "c", sent_round=0)))
    assert server.awaited == (0, ("b",), "its update")
    await settled(*waiting)
    await server.hear(told("b"))
    assert (await waiting[0]).send_again == pb.SendAgain(round=0)
    assert await submit(server, "a", 4.0)
    assert await submit(server, "b", 8.0)
    assert (await gathering).missing == ("c",)
    assert total.mean()[0] == 7.0
    assert not waiting[1].done()  # it waits for the next round
    waiting[1].cancel()


async def test_a_parent_that_is_back_hears_what_updates_are_before_it_asks_for_them(tmp_path: Path) -> None:
    server, _, _ = announcing_server(tmp_path)
    gathering = asyncio.create_task(server.gather())
    assert (await said(server, "a", sent_round=0)).send_again == pb.SendAgain(round=0, announce=True)
    # and data that comes all the same, of an upload that was cut, is not taken yet, but heard of
    assert not await submit(server, "a", 4.0)
    for child_id in ("b", "c"):
        await server.hear(told(child_id))
    assert (await said(server, "a", sent_round=0)).send_again == pb.SendAgain(round=0)
    for child_id in CHILDREN:
        assert await submit(server, child_id, 1.0)
    assert (await gathering).children == 3


async def test_who_is_refused_meanwhile_holds_nobody_up(tmp_path: Path) -> None:
    server, _, _ = announcing_server(tmp_path)
    gathering = asyncio.create_task(server.gather())
    for child_id in ("a", "b"):
        await server.hear(told(child_id))
    waiting = asyncio.create_task(said(server, "a", sent_round=0))
    await settled(waiting)
    bad = told("c")
    bad.work.examples = 1_001
    with pytest.raises(PayloadError):
        await server.hear(bad)
    assert "c" in server.refused
    assert (await waiting).HasField("send_again")
    for child_id in ("a", "b"):
        assert await submit(server, child_id, 1.0)
    assert (await gathering).missing == ("c",)
    with pytest.raises(ExcludedError, match="c was refused"):
        await said(server, "c", sent_round=0)


async def test_a_child_that_begins_anew_gets_the_model_and_its_first_word_counts(tmp_path: Path) -> None:
    server, _, announcing = announcing_server(tmp_path)
    gathering = asyncio.create_task(server.gather())
    await server.hear(told("a"))
    assert (await said(server, "a")).HasField("header")
    again = told("a")
    again.train_loss = 1.0
    await server.hear(again)
    assert announcing.announced["a"].up_bytes == Exchanged.of_update(told("a")).up_bytes
    assert Exchanged.of_update(told("a")) != Exchanged.of_update(again)
    for child_id in ("b", "c"):
        await server.hear(told(child_id))
    await settled()
    assert (await said(server, "a")).HasField("header")  # killed once it was asked for
    await server.hear(told("a"))
    for child_id in CHILDREN:
        assert await submit(server, child_id, 1.0)
    assert (await gathering).children == 3


async def test_what_is_announced_of_another_round_or_by_nobody_that_is_awaited_is_passed_over(tmp_path: Path) -> None:
    server, _, announcing = announcing_server(tmp_path, "a", "b")
    other = told("a")
    other.round = 7
    await server.hear(other)
    server.opened().intake.exclude("c")
    await server.hear(told("c"))
    assert announcing.announced == {}
    gathering = asyncio.create_task(server.gather())
    for child_id in ("a", "b"):
        await server.hear(told(child_id))
    with pytest.raises(RunStoppedError, match="0 of 3 have reported, but the quorum is 2"):
        await gathering


async def test_announcements_that_can_be_none_are_refused(tmp_path: Path) -> None:
    server, _, _ = announcing_server(tmp_path)
    short = told("a")
    short.payload.payload_bytes -= 4
    measured = told("b")
    measured.evaluations.add(device_id="a")
    for header in (short, measured):
        with pytest.raises(PayloadError):
            await server.hear(header)
        assert header.child_id in server.refused


# --- a child's side ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut_up", [(), (0,)])  # the announcement is lost, and asked for again
async def test_a_child_announces_waits_and_sends_when_it_is_asked(tmp_path: Path, cut_up: tuple[int, ...]) -> None:
    server, total, _ = announcing_server(tmp_path, "c")
    gathering = asyncio.create_task(server.gather())

    async def takes_part(child_id: str) -> None:
        client = client_of(Wire(server, cut_up=cut_up), child_id)
        await client.fetch(-1)
        update = update_of(client, vector(2.0), num_examples=CHILDREN[child_id])
        offer = pb.SendAgain(announce=True)
        while offer.announce:
            offer = await client.announce(update)  # type: ignore[assignment]
        assert offer == pb.SendAgain(round=0)
        assert server.opened().intake.offset_of(child_id) == 0  # nothing of it has been sent
        await client.submit(update)

    late = asyncio.create_task(takes_part("c"))
    await asyncio.gather(takes_part("a"), takes_part("b"))
    assert (await gathering).missing == ("c",)
    assert total.mean()[0] == 2.0
    late.cancel()


def test_an_announcement_has_no_payload_and_is_read_as_what_it_is() -> None:
    part = pb.UpdatePart(announced=told("a"))
    read = part_parser(pb.UpdatePart)(part.SerializeToString())
    assert not isinstance(read, Whole)
    assert read.WhichOneof("part") == "announced"
