"""A parent's side of the rounds: who is told what, who is given up, and what a round ends with."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from rounds_setting import RUN_ID, bytes_of, header_of, open_round, parts_of, server_of, vector

from fedstrata.errors import (
    ExcludedError,
    NotReadyError,
    PayloadError,
    RunStoppedError,
    UnknownChildError,
    WrongRunError,
)
from fedstrata.experiment import TierDeadline
from fedstrata.logs import EventLog
from fedstrata.metrics import ProcessMetrics
from fedstrata.rounds import RoundServer
from fedstrata.tensors import Flat
from fedstrata.v1 import rounds_pb2 as pb

SOON = TierDeadline(deadline_s=0.001, quorum_ratio=0.5)


async def submit(
    server: RoundServer, child_id: str, flat: Flat, *, num_examples: int = 2, round_number: int = 0
) -> pb.UpdateReply:
    header = header_of(child_id, num_examples=num_examples, round_number=round_number)
    return await server.submit(header, parts_of(bytes_of(flat)))


async def first_part(server: RoundServer, child_id: str, *, sent_round: int = -1) -> pb.ModelPart:
    request = pb.FetchModelRequest(run_id=RUN_ID, child_id=child_id, sent_round=sent_round, resume_round=-1)
    async for part in server.fetch(request):
        return pb.ModelPart.FromString(part) if isinstance(part, bytes) else part
    raise AssertionError("an empty stream")


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
    assert (await first_part(server, "b")).header.round == 1
    await submit(server, "a", vector(1.0), round_number=1)
    await submit(server, "b", vector(3.0), round_number=1)
    assert (await server.gather()).missing == ()
    assert total.mean()[0] == 2.0


async def test_a_late_update_is_an_answer_that_names_the_open_round(tmp_path: Path) -> None:
    server, _ = server_of(tmp_path, children={"a": 2, "b": 2}, wait=SOON)
    await submit(server, "a", vector(4.0))
    await server.gather()
    assert not (await submit(server, "b", vector(9.0))).accepted
    open_round(server, tmp_path, 1, {"a": 2, "b": 2})
    reply = await submit(server, "b", vector(9.0))
    assert (reply.accepted, reply.current_round) == (False, 1)


async def test_without_its_quorum_a_round_stops_the_run(tmp_path: Path) -> None:
    children = {"a": 2, "b": 2, "c": 2, "d": 2, "e": 2}
    server, _ = server_of(tmp_path, children=children, wait=SOON)
    await submit(server, "a", vector(4.0))
    with pytest.raises(RunStoppedError, match="1 of 5 reported, the quorum is 3"):
        await server.gather()


async def test_a_child_that_is_half_way_at_the_deadline_is_taken_out_of_the_sum(tmp_path: Path) -> None:
    server, total = server_of(tmp_path, children={"a": 2, "b": 2}, wait=TierDeadline(deadline_s=0.05, quorum_ratio=0.5))
    await submit(server, "a", vector(4.0))
    with pytest.raises(Exception, match="ended at byte 16"):
        await server.submit(header_of("b", num_examples=2), parts_of(bytes_of(vector(100.0))[:16]))
    gathering = asyncio.create_task(server.gather())
    assert (await first_part(server, "a", sent_round=0)).send_again.round == 0  # answered once the sum is void
    await submit(server, "a", vector(4.0))
    assert (await gathering).missing == ("b",)
    assert total.mean().tolist() == vector(4.0).tolist()


async def test_a_refused_half_upload_leaves_no_trace(tmp_path: Path) -> None:
    server, total = server_of(tmp_path, children={"a": 2, "b": 2}, wait=TierDeadline(quorum_ratio=0.5))
    refused: list[tuple[str, str]] = []
    server.on_ban = lambda child_id, reason: refused.append((child_id, reason))
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


async def test_an_update_that_is_in_cannot_be_taken_out_by_a_bad_one(tmp_path: Path) -> None:
    server, total = server_of(tmp_path, children={"a": 2, "b": 2})
    await submit(server, "a", vector(4.0))
    assert (await submit(server, "a", vector(float("nan")))).accepted  # the first one counts, and only once
    await submit(server, "b", vector(0.0))
    assert (await server.gather()).num_examples == 4
    assert total.mean()[0] == 2.0


async def test_strangers_and_other_runs_are_told_so(tmp_path: Path) -> None:
    server, _ = server_of(tmp_path, children={"a": 2})
    with pytest.raises(UnknownChildError, match="'x' is not of round 0"):
        await submit(server, "x", vector(1.0))
    with pytest.raises(WrongRunError, match="restart with its experiment"):
        await server.submit(header_of("a", num_examples=1, run_id="other"), parts_of(b""))


async def test_measurements_of_others_are_refused(tmp_path: Path) -> None:
    server, _ = server_of(tmp_path, children={"a": 2, "b": 2})
    header = header_of("a", num_examples=2)
    header.evaluations.add(device_id="b", num_examples=1)
    with pytest.raises(PayloadError, match="expected its own"):
        await server.submit(header, parts_of(bytes_of(vector(1.0))))


async def test_a_measurement_sent_again_after_a_restart_stops_no_device(tmp_path: Path) -> None:
    measured = pb.Evaluation(device_id="a", correct=1, num_examples=2)
    restarted, _ = server_of(tmp_path, children={"a": 2})  # an earlier round is open again
    with pytest.raises(NotReadyError):
        restarted.evaluate(RUN_ID, measured)
    restarted.finish()  # or it was the last, and nothing more is wanted
    restarted.evaluate(RUN_ID, measured)
    exchange = restarted.exchange
    with pytest.raises(NotReadyError), ThreadPoolExecutor(1) as executor:  # or it has not come to a round yet
        RoundServer(exchange, ProcessMetrics("lps"), EventLog("test"), executor).evaluate(RUN_ID, measured)


async def test_a_finished_run_is_told_to_whoever_asks(tmp_path: Path) -> None:
    server, _ = server_of(tmp_path, children={"a": 2})
    server.finish("the disk is full")
    assert (await first_part(server, "a")).finished.reason == "the disk is full"
    assert await server.wait_all_told({"a"}, 0.01) is False  # this reader left before the stream's end


async def test_a_child_whose_update_is_in_is_held_until_the_next_round(tmp_path: Path) -> None:
    server, _ = server_of(tmp_path, children={"a": 2, "b": 2})
    await submit(server, "a", vector(1.0))
    waiting = asyncio.create_task(first_part(server, "a", sent_round=0))
    await submit(server, "b", vector(1.0))
    await server.gather()
    assert not waiting.done()
    open_round(server, tmp_path, 1, {"a": 2, "b": 2})
    assert (await waiting).header.round == 1


async def test_a_parent_that_gives_its_children_up_answers_their_held_calls_at_once(tmp_path: Path) -> None:
    server, _ = server_of(tmp_path, children={"a": 2, "b": 2})
    await submit(server, "a", vector(4.0))
    held = asyncio.create_task(first_part(server, "a", sent_round=0))
    await asyncio.sleep(0)
    assert not held.done()
    server.release()
    assert (await held).HasField("waiting")
