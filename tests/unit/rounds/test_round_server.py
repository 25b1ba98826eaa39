"""A parent's side of the rounds: who is told what, who is given up, and what a round ends with."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from fedstrata.errors import (
    ExcludedError,
    NotReadyError,
    OffsetError,
    PayloadError,
    RunStoppedError,
    SupersededError,
    UnknownChildError,
    WrongRunError,
)
from fedstrata.experiment import LinkSettings, TierDeadline
from fedstrata.process.logs import EventLog
from fedstrata.rounds import Intake, Offer, OpenRound, Refusals, RoundServer
from fedstrata.rpc.payload import Acceptance, payload_header
from fedstrata.rpc.stream import Turns
from fedstrata.tensors import SMALL_BYTES, Flat, Layout, PayloadCodec
from fedstrata.v1 import rounds_pb2 as pb
from tests.support.loop_time import LoopTime, turns
from tests.support.rounds_setting import (
    PART,
    RUN_ID,
    bytes_of,
    header_of,
    open_round,
    parent_of,
    parts_of,
    said,
    server_of,
    vector,
)

SOON = TierDeadline(deadline_s=0.001, quorum_ratio=0.5)


async def submit(
    server: RoundServer, child_id: str, flat: Flat, *, num_examples: int = 2, round_number: int = 0
) -> pb.UpdateReply:
    header = header_of(child_id, num_examples=num_examples, round_number=round_number)
    return await server.submit(header, parts_of(bytes_of(flat)))


async def test_a_round_ends_when_the_last_child_has_reported(tmp_path: Path) -> None:
    server, total = server_of(tmp_path, children={"a": 2, "b": 6})
    gathering = asyncio.create_task(server.gather())
    await submit(server, "a", vector(4.0))
    await asyncio.sleep(0)
    assert not gathering.done()
    await submit(server, "b", vector(8.0), num_examples=6)
    assert (await gathering).missing == ()
    assert total.mean()[0] == 7.0


async def test_a_deadline_goes_on_without_the_missing_and_names_them(tmp_path: Path) -> None:
    server, total = server_of(tmp_path, children={"a": 2, "b": 2}, wait=SOON)
    await submit(server, "a", vector(4.0))
    assert (await server.gather()).missing == ("b",)
    assert total.mean()[0] == 4.0


async def test_who_missed_a_round_is_welcome_at_the_next(tmp_path: Path) -> None:
    server, _ = server_of(tmp_path, children={"a": 2, "b": 2}, wait=SOON)
    await submit(server, "a", vector(4.0))
    await server.gather()
    total = open_round(server, tmp_path, 1, {"a": 2, "b": 2})
    assert (await said(server, "b")).header.round == 1
    await submit(server, "a", vector(1.0), round_number=1)
    await submit(server, "b", vector(3.0), round_number=1)
    assert (await server.gather()).missing == ()
    assert total.mean()[0] == 2.0


async def test_a_large_model_that_does_not_fit_its_encoding_is_not_offered_to_any_child(tmp_path: Path) -> None:
    layout, link = Layout.of({"w": (200_000,)}), LinkSettings(down="float16")
    with pytest.raises(PayloadError, match=r"the value 199999 does not fit float16 \(at most 65504\); choose bfloat16"):
        server_of(tmp_path, children={"a": 2}, layout=layout, link=link)


async def test_a_late_update_is_an_answer_that_names_the_open_round(tmp_path: Path) -> None:
    server, _ = server_of(tmp_path, children={"a": 2, "b": 2}, wait=SOON)
    await submit(server, "a", vector(4.0))
    await server.gather()
    assert not (await submit(server, "b", vector(9.0))).accepted
    total = open_round(server, tmp_path, 1, {"a": 2, "b": 2})
    reply = await submit(server, "b", vector(9.0))
    assert (reply.accepted, reply.current_round) == (False, 1)
    assert total.num_examples == 0


async def test_what_a_round_takes_is_asked_of_the_round_that_an_update_is_of(tmp_path: Path) -> None:
    earlier, now = Layout.of({"0/w": (3,)}), Layout.of({"0/w": (3,), "1/w": (3,)})  # a cluster was split in between

    def accepts(number: int) -> Acceptance:
        return Acceptance(now if number else earlier, "float32", PART)

    server, _ = server_of(tmp_path, children={"a": 2}, accepts_updates=accepts)
    open_round(server, tmp_path, 1, {"a": 2})
    sent_again = pb.UpdateHeader(run_id=RUN_ID, child_id="a", round=0)  # its reply was lost
    sent_again.payload.CopyFrom(payload_header(PayloadCodec(earlier, "float32"), name=PART, num_examples=2))
    reply = await server.submit(sent_again, parts_of(bytes(earlier.float32_bytes)))
    assert (reply.accepted, reply.current_round) == (False, 1)
    assert "a" not in server.refused
    for number in (1, 7, 1 << 62):
        sent_again.round = number
        with pytest.raises(PayloadError, match="1 tensors; expected 2"):
            server.check_payload(sent_again)


async def test_without_its_quorum_a_round_stops_the_run(tmp_path: Path) -> None:
    children = {"a": 2, "b": 2, "c": 2, "d": 2, "e": 2}
    server, _ = server_of(tmp_path, children=children, wait=SOON)
    await submit(server, "a", vector(4.0))
    with pytest.raises(RunStoppedError, match="1 of 5 have reported, but the quorum is 3"):
        await server.gather()


async def test_a_child_that_is_half_way_at_the_deadline_is_taken_out_of_the_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, wait = LoopTime(monkeypatch), TierDeadline(deadline_s=60, quorum_ratio=0.5)
    server, total = server_of(tmp_path, children={"a": 2, "b": 2}, wait=wait)
    await submit(server, "a", vector(4.0))
    with pytest.raises(Exception, match="ended at byte 16"):
        await server.submit(header_of("b", num_examples=2), parts_of(bytes_of(vector(100.0))[:16]))
    gathering = asyncio.create_task(server.gather())
    await turns()
    await clock.advance(60)
    assert (await said(server, "a", sent_round=0)).send_again.round == 0  # answered once the sum is void
    await submit(server, "a", vector(4.0))
    assert (await gathering).missing == ("b",)
    assert total.mean().tolist() == vector(4.0).tolist()


async def test_a_child_that_voids_the_sum_again_and_again_is_refused_and_the_others_count(tmp_path: Path) -> None:
    wait = TierDeadline(deadline_s=0.05, quorum_ratio=0.5)
    server, total = server_of(tmp_path, children={"a": 2, "liar": 9}, wait=wait)
    for _ in range(20):  # the first bytes of one update, then the rest of another
        with suppress(OffsetError, PayloadError, ExcludedError):
            await server.submit(header_of("liar", num_examples=1), parts_of(bytes_of(vector(100.0))[:4]))
        await submit(server, "a", vector(4.0))
        with suppress(OffsetError, PayloadError, ExcludedError):
            await server.submit(header_of("liar", num_examples=2, offset=4), parts_of(b""))
    assert "liar" in server.refused
    await submit(server, "a", vector(4.0))
    assert (await server.gather()).missing == ("liar",)
    assert total.mean().tolist() == vector(4.0).tolist()


async def test_a_refused_half_upload_leaves_no_trace(tmp_path: Path) -> None:
    refused: list[tuple[str, str]] = []
    refusals = Refusals(EventLog("test"), lambda child_id, reason: refused.append((child_id, reason)))
    server, total = server_of(
        tmp_path, children={"a": 2, "b": 2}, wait=TierDeadline(quorum_ratio=0.5), refused=refusals
    )
    await submit(server, "a", vector(4.0))
    with pytest.raises(PayloadError, match="finite"):
        await submit(server, "b", vector(1.0, 2.0, float("inf")))
    assert [child_id for child_id, _ in refused] == ["b"]
    with pytest.raises(ExcludedError):
        await submit(server, "b", vector(1.0))
    await submit(server, "a", vector(4.0))
    assert (await server.gather()).missing == ("b",)
    assert total.mean().tolist() == vector(4.0).tolist()


async def test_a_refused_child_stays_refused_in_later_rounds(tmp_path: Path) -> None:
    server, _ = server_of(tmp_path, children={"a": 2, "b": 2}, wait=TierDeadline(quorum_ratio=0.5))
    server.ban("b", "it sent NaN")
    open_round(server, tmp_path, 1, {"a": 2, "b": 2})
    await submit(server, "a", vector(1.0), round_number=1)
    assert (await server.gather()).missing == ("b",)


async def nonsense(server: RoundServer, child_id: str, message: str) -> None:
    """Send a message that no honest child sends, after the child's update is in."""
    header = header_of(child_id, num_examples=2)
    header.train_loss = math.nan
    with pytest.raises(PayloadError):
        match message:
            case "update":
                await server.submit(header, parts_of(b""))
            case "announcement":
                await server.hear(header)
            case "request":
                await said(server, child_id)
            case "measurement":
                server.evaluate(RUN_ID, pb.Evaluation(device_id=child_id, loss_sum=math.nan, num_examples=2))


def unasked(request: pb.FetchModelRequest) -> None:
    if request.child_id == "b":
        raise PayloadError("a mask key of 3 bytes")


@pytest.mark.parametrize("message", ["update", "announcement", "request", "measurement"])
async def test_a_child_refused_after_its_update_is_in_counts_and_is_not_waited_for_in_the_next_round(
    tmp_path: Path, message: str
) -> None:
    children, wait = {"a": 2, "b": 2}, TierDeadline(quorum_ratio=0.5)
    server, total = server_of(tmp_path, children=children, wait=wait, hear=unasked)
    await submit(server, "b", vector(8.0))
    await nonsense(server, "b", message)
    await submit(server, "a", vector(4.0))
    assert (await server.gather()).missing == ()
    assert total.mean()[0] == 6.0
    open_round(server, tmp_path, 1, children)
    await submit(server, "a", vector(1.0), round_number=1)
    async with asyncio.timeout(60):
        assert (await server.gather()).missing == ("b",)


async def test_a_child_refused_between_rounds_or_outside_of_a_round_is_not_waited_for_later(tmp_path: Path) -> None:
    wait = TierDeadline(quorum_ratio=0.3)
    before, _ = server_of(tmp_path, children={"a": 2}, wait=wait)
    refused = Refusals(EventLog("test"), has_child={"a", "b", "c"}.__contains__)
    server = parent_of(before.terms, refused=refused)
    await nonsense(server, "b", "update")  # no round is open yet
    open_round(server, tmp_path, 0, {"a": 2}, layout=before.opened().offers[0].model.layout)
    await nonsense(server, "c", "update")  # of another cohort
    await nonsense(server, "x", "update")
    await submit(server, "a", vector(4.0))
    await server.gather()
    assert list(refused) == ["b", "c"]
    open_round(server, tmp_path, 1, {"a": 2, "b": 2, "c": 2})
    await submit(server, "a", vector(4.0), round_number=1)
    async with asyncio.timeout(60):
        assert (await server.gather()).missing == ("b", "c")


async def test_a_sum_that_is_emptied_is_computed_again_without_a_child_refused_after_its_update(tmp_path: Path) -> None:
    children = {"a": 2, "b": 2, "c": 2}
    server, total = server_of(tmp_path, children=children, wait=TierDeadline(quorum_ratio=0.3))
    await submit(server, "a", vector(4.0))
    await submit(server, "b", vector(8.0))
    await nonsense(server, "b", "update")
    with pytest.raises(PayloadError, match="finite"):
        await submit(server, "c", vector(1.0, 2.0, math.inf))  # a part of it is in the sum
    await submit(server, "a", vector(4.0))
    async with asyncio.timeout(60):
        assert (await server.gather()).missing == ("b", "c")
    assert total.mean()[0] == 4.0


async def test_an_update_that_is_in_cannot_be_taken_out_by_a_bad_one(tmp_path: Path) -> None:
    server, total = server_of(tmp_path, children={"a": 2, "b": 2})
    await submit(server, "a", vector(4.0))
    assert (await submit(server, "a", vector(float("nan")))).accepted  # the first one counts, and only once
    await submit(server, "b", vector(0.0))
    assert (await server.gather()).num_examples == 4
    assert total.mean()[0] == 2.0


async def test_strangers_and_other_runs_are_told_so(tmp_path: Path) -> None:
    server, _ = server_of(tmp_path, children={"a": 2})
    with pytest.raises(UnknownChildError, match="'x' does not belong to round 0"):
        await submit(server, "x", vector(1.0))
    with pytest.raises(WrongRunError, match="restart with the experiment file of"):
        await server.submit(header_of("a", num_examples=1, run_id="other"), parts_of(b""))


async def test_measurements_of_others_are_refused(tmp_path: Path) -> None:
    server, _ = server_of(tmp_path, children={"a": 2, "b": 2})
    header = header_of("a", num_examples=2)
    header.evaluations.add(device_id="b", num_examples=1)
    with pytest.raises(PayloadError, match="expected at most one, its own"):
        await server.submit(header, parts_of(bytes_of(vector(1.0))))


async def test_a_measurement_sent_again_after_a_restart_stops_no_device(tmp_path: Path) -> None:
    measured = pb.Evaluation(device_id="a", round=1, sums=[1], num_examples=2)
    restarted, _ = server_of(tmp_path, children={"a": 2})  # an earlier round is open again
    with pytest.raises(NotReadyError):
        restarted.evaluate(RUN_ID, measured)
    restarted.finish()  # or it was the last, and nothing more is wanted
    restarted.evaluate(RUN_ID, measured)
    terms = restarted.terms
    with pytest.raises(NotReadyError):  # or it has not come to a round yet
        parent_of(terms).evaluate(RUN_ID, measured)


async def test_a_child_with_an_impossible_measurement_of_the_final_model_is_not_waited_for(tmp_path: Path) -> None:
    server, _ = server_of(tmp_path, children={"a": 2, "b": 2}, wait=TierDeadline(quorum_ratio=0.5))
    intake, model = Intake(children=["a", "b"], wait=server.terms.wait), server.opened().offer_to("a").model
    server.open(OpenRound(offers={0: Offer(model)}, number=1, global_round=1, intake=intake, evaluate_only=True))
    with pytest.raises(PayloadError, match="training has diverged"):
        server.evaluate(RUN_ID, pb.Evaluation(device_id="a", round=1, loss_sum=math.nan, num_examples=2))
    server.evaluate(RUN_ID, pb.Evaluation(device_id="b", round=1, num_examples=2))
    async with asyncio.timeout(60):
        assert (await server.gather()).missing == ("a",)
    assert "diverged" in server.refused.reasons["a"]


async def test_a_child_measures_a_model_between_rounds_although_it_has_sent_its_update_and_then_trains(
    tmp_path: Path,
) -> None:
    server, _ = server_of(tmp_path, children={"a": 2})
    model = server.opened().offer_to("a").model
    for evaluate_only in (True, False):  # after a restart, a child may have the next round's update already
        intake = Intake(children=["a"], wait=server.terms.wait)
        opened = OpenRound(
            offers={0: Offer(model)}, number=1, global_round=1, intake=intake, evaluate_only=evaluate_only
        )
        server.open(opened)
        reply = await said(server, "a", sent_round=1)
        assert reply.WhichOneof("part") == ("header" if evaluate_only else "send_again")
        for of_round in (0, 1, 1):  # an earlier model's measurement that comes late, this model's, the same again
            server.evaluate(RUN_ID, pb.Evaluation(device_id="a", round=of_round, num_examples=of_round))
            assert intake.is_complete == (evaluate_only and of_round == 1)
        if evaluate_only:
            result = await server.gather()
            assert [(each.device_id, each.round) for each in result.evaluations] == [("a", 1)]
    with pytest.raises(NotReadyError):
        server.evaluate(RUN_ID, pb.Evaluation(device_id="a", round=2))


async def test_a_finished_run_is_told_to_whoever_asks(tmp_path: Path) -> None:
    server, _ = server_of(tmp_path, children={"a": 2})
    server.finish("the disk is full")
    assert (await said(server, "a")).finished.reason == "the disk is full"
    assert await server.wait_all_told({"a"}, 0.01) is False  # this reader left before the stream's end


async def test_a_child_whose_update_is_in_is_held_until_the_next_round(tmp_path: Path) -> None:
    server, _ = server_of(tmp_path, children={"a": 2, "b": 2})
    await submit(server, "a", vector(1.0))
    waiting = asyncio.create_task(said(server, "a", sent_round=0))
    await submit(server, "b", vector(1.0))
    await server.gather()
    assert not waiting.done()
    open_round(server, tmp_path, 1, {"a": 2, "b": 2})
    assert (await waiting).header.round == 1


async def test_a_parent_that_gives_its_children_up_answers_their_held_calls_at_once(tmp_path: Path) -> None:
    server, _ = server_of(tmp_path, children={"a": 2, "b": 2})
    await submit(server, "a", vector(4.0))
    held = asyncio.create_task(said(server, "a", sent_round=0))
    await asyncio.sleep(0)
    assert not held.done()
    server.release()
    assert (await held).HasField("waiting")


LARGE = Layout.of({"w": (SMALL_BYTES // 4 + 1,)})  # its updates come in chunks, each in a turn


def large_header(child_id: str) -> pb.UpdateHeader:
    payload = payload_header(PayloadCodec(LARGE, "float32"), name=PART, num_examples=2)
    return pb.UpdateHeader(run_id=RUN_ID, child_id=child_id, round=0, payload=payload)


async def nothing_more() -> AsyncIterator[pb.UpdatePart]:
    """What follows the header of a sender that sends nothing more, and stays."""
    await asyncio.Event().wait()
    yield pb.UpdatePart()


async def test_an_upload_of_a_header_alone_ends_as_soon_as_its_sender_begins_another(tmp_path: Path) -> None:
    server, _ = server_of(tmp_path, children={"a": 2, "b": 2}, layout=LARGE)
    *uploads, last = [asyncio.create_task(server.submit(large_header("a"), nothing_more())) for _ in range(400)]
    ended, held = await asyncio.wait(uploads, timeout=60)
    assert not held
    assert {type(upload.exception()) for upload in ended} == {SupersededError}
    data = parts_of(bytes(LARGE.float32_bytes), chunk_bytes=SMALL_BYTES)
    assert (await server.submit(large_header("b"), data)).accepted
    last.cancel()
    await asyncio.wait([last])


async def test_a_child_with_many_streams_has_one_turn_at_a_time_and_leaves_the_others_theirs() -> None:
    turns = Turns(at_once=2, longest_s=3600.0)

    async def hold() -> None:
        async with turns.one("a"):
            await asyncio.Event().wait()

    holding = [asyncio.create_task(hold()) for _ in range(9)]
    await asyncio.sleep(0)
    async with asyncio.timeout(60), turns.one("b"):
        pass
    for task in holding:
        task.cancel()
    await asyncio.wait(holding)
    async with asyncio.timeout(60), turns.one("a"), turns.one("b"):  # all have been given back
        pass
