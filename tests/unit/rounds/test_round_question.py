"""A question in the middle of a round: who has answered waits, and the round goes on by the plan that was made."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from fedstrata.errors import ExcludedError, NotReadyError, PayloadError, RunStoppedError, WrongRunError
from fedstrata.experiment import TierDeadline
from fedstrata.methods import Moment, Question
from fedstrata.rounds import Intake, Offer, OpenRound, ReceivedModel, RoundServer
from fedstrata.rpc.answer_messages import answer_to_proto, arrays_of
from fedstrata.rules import Gathering
from fedstrata.store import ModelInMemory
from fedstrata.tensors import Layout
from fedstrata.v1 import rounds_pb2 as pb
from fedstrata.v1.answers_pb2 import Answer
from tests.support.gatherings import one_stream, sums_in
from tests.support.rounds_setting import (
    CODEC,
    LAYOUT,
    RUN_ID,
    Wire,
    asking,
    asking_of,
    bytes_of,
    client_of,
    header_of,
    parts_of,
    said,
    server_of,
    vector,
)

QUESTION = Question(name="losses", moment=Moment.RECEIVED, arrays={"losses": ("float64", (2,))})
CHILDREN = {"a": 2, "b": 6}
SOON = TierDeadline(deadline_s=0.001, quorum_ratio=0.5)


def losses(first: float, second: float) -> Answer:
    return answer_to_proto(QUESTION, {"losses": np.array([first, second], np.float64)})


def asking_server(folder: Path, wait: TierDeadline | None = None, *, number: int = 0) -> RoundServer:
    """A parent that has just come up with a round in which its children are asked; each cluster starts elsewhere."""
    server, _ = server_of(folder, children=CHILDREN, wait=wait or TierDeadline())
    open_asking(server, number)
    return server


def open_asking(server: RoundServer, number: int) -> None:
    offers = {
        cluster: Offer(
            ModelInMemory(LAYOUT, vector(100.0 * cluster + number), {"cluster": str(cluster)}), cluster=cluster
        )
        for cluster in (0, 1)
    }
    intake = Intake(children=CHILDREN, wait=server.terms.wait)
    server.open(
        OpenRound(
            number=number,
            global_round=number,
            offers=offers,
            intake=intake,
            clusters={"b": 1},
            stages=[asking(QUESTION)],
        )
    )


async def answer(server: RoundServer, child_id: str, told: Answer, *, number: int = 0, run_id: str = RUN_ID) -> None:
    await server.hear(pb.RoundAnswer(run_id=run_id, child_id=child_id, round=number, answer=told))


def go_on(server: RoundServer, **clusters: int) -> Gathering:
    """Let the children go on in these clusters; the sum of their updates."""
    sums = one_stream(LAYOUT.size, CHILDREN)
    server.go_on(clusters, sums)
    return sums


# --- a parent's side ------------------------------------------------------------------------------


async def test_each_child_starts_from_its_clusters_model(tmp_path: Path) -> None:
    server = asking_server(tmp_path)
    headers = {child: (await said(server, child)).header for child in CHILDREN}
    assert {child: header.cluster for child, header in headers.items()} == {"a": 0, "b": 1}
    assert headers["a"].digest != headers["b"].digest


async def test_who_has_answered_is_held_until_the_round_goes_on_and_then_told_its_cluster(tmp_path: Path) -> None:
    server = asking_server(tmp_path)
    gathering = asyncio.create_task(asking_of(server).gathered())
    await answer(server, "a", losses(0.25, 1.5))
    held = asyncio.create_task(said(server, "a", answered_round=0))
    await asyncio.sleep(0)
    assert not gathering.done()
    await answer(server, "b", losses(3.0, 0.5))
    told = await gathering
    assert {child: arrays_of(QUESTION, each)["losses"].tolist() for child, each in told.items()} == {
        "a": [0.25, 1.5],
        "b": [3.0, 0.5],
    }
    assert not held.done()
    sums = go_on(server, a=1, b=0)
    assert [
        (part.go_on.round, part.go_on.cluster) for part in (await held, await said(server, "b", answered_round=0))
    ] == [
        (0, 1),
        (0, 0),
    ]
    for child, value in (("a", 4.0), ("b", 8.0)):
        header = header_of(child, num_examples=CHILDREN[child])
        assert (await server.submit(header, parts_of(bytes_of(vector(value))))).accepted
    assert (await server.gather()).missing == ()
    assert sums_in(sums)[0].mean()[0] == 7.0  # (2 · 4 + 6 · 8) / 8


async def test_the_first_answer_of_a_child_counts(tmp_path: Path) -> None:
    server = asking_server(tmp_path)
    for told in (losses(1, 2), losses(9, 9)):
        await answer(server, "a", told)
    await answer(server, "b", losses(3, 4))
    assert arrays_of(QUESTION, (await asking_of(server).gathered())["a"])["losses"].tolist() == [1.0, 2.0]


async def test_an_answer_that_was_given_to_an_earlier_life_of_the_parent_is_asked_for_again(tmp_path: Path) -> None:
    restarted = asking_server(tmp_path)
    assert (await said(restarted, "a", answered_round=0)).send_again.round == 0
    assert (await said(restarted, "a", answered_round=7)).HasField("header")  # of another round: the model comes first


async def test_where_the_plan_is_made_already_a_parent_that_has_come_up_again_lets_everybody_go_on(
    tmp_path: Path,
) -> None:
    restarted = asking_server(tmp_path)
    go_on(restarted, a=1, b=1)
    assert (await said(restarted, "a", answered_round=0)).go_on.cluster == 1
    assert (await said(restarted, "b")).HasField("header")  # it was killed itself
    await answer(restarted, "b", losses(1, 2))  # nobody waits for it any more
    assert (await said(restarted, "b", answered_round=0)).go_on.cluster == 1


async def test_answers_of_strangers_other_rounds_and_other_runs_change_nothing(tmp_path: Path) -> None:
    server = asking_server(tmp_path, SOON)
    await answer(server, "x", losses(1, 2))
    await answer(server, "a", losses(1, 2), number=3)
    with pytest.raises(WrongRunError):
        await answer(server, "a", losses(1, 2), run_id="other")
    with pytest.raises(RunStoppedError, match="0 of 2 have reported"):
        await asking_of(server).gathered()


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        (Answer(question="age"), "the answer is to 'age'; expected an answer to losses"),
        (Answer(question="losses"), "expected \\['losses'\\]"),
        (losses(float("nan"), 1.0), "numbers that are not finite"),
    ],
)
async def test_an_answer_that_is_none_costs_its_sender_the_run_and_the_others_go_on(
    tmp_path: Path, told: Answer, reason: str
) -> None:
    server = asking_server(tmp_path, TierDeadline(quorum_ratio=0.5))
    gathering = asyncio.create_task(asking_of(server).gathered())
    await asyncio.sleep(0)
    with pytest.raises(PayloadError, match=reason):
        await answer(server, "b", told)
    assert list(server.refused) == ["b"]
    with pytest.raises(ExcludedError):
        await said(server, "b")
    await answer(server, "a", losses(1, 2))
    assert set(await gathering) == {"a"}
    go_on(server, a=0)
    await server.submit(header_of("a", num_examples=2), parts_of(bytes_of(vector(4.0))))
    assert (await server.gather()).missing == ("b",)


async def test_at_the_deadline_the_round_goes_on_without_those_who_have_not_answered(tmp_path: Path) -> None:
    server = asking_server(tmp_path, SOON)
    await answer(server, "a", losses(1, 2))
    assert set(await asking_of(server).gathered()) == {"a"}
    await answer(server, "b", losses(3, 4))  # too late for this round
    go_on(server, a=0, b=0)
    assert not (await server.submit(header_of("b", num_examples=6), parts_of(bytes_of(vector(9.0))))).accepted
    await server.submit(header_of("a", num_examples=2), parts_of(bytes_of(vector(4.0))))
    assert (await server.gather()).missing == ("b",)
    open_asking(server, 1)
    assert (await said(server, "b")).header.round == 1


async def test_an_update_that_comes_while_the_answers_are_gathered_is_late_and_asked_for_again(tmp_path: Path) -> None:
    server = asking_server(tmp_path)
    update = header_of("a", num_examples=2)
    assert not (await server.submit(update, parts_of(bytes_of(vector(4.0))))).accepted
    assert "a" not in server.refused
    go_on(server, a=0, b=0)
    assert (await said(server, "a", sent_round=0)).send_again.round == 0
    assert (await server.submit(update, parts_of(bytes_of(vector(4.0))))).accepted


async def test_a_round_takes_no_update_before_it_knows_what_to_add_it_to() -> None:
    intake = Intake(children=CHILDREN, wait=TierDeadline())
    with pytest.raises(NotReadyError, match="takes no updates yet"):
        await intake.begin("a", CODEC, (2,), 0)


async def test_an_answer_to_a_round_without_a_question_is_passed_over(tmp_path: Path) -> None:
    server, _ = server_of(tmp_path, children=CHILDREN)
    await answer(server, "a", losses(1, 2))
    assert "a" not in server.refused


# --- a child's side -------------------------------------------------------------------------------


async def test_a_child_answers_and_hears_how_the_round_goes_on(tmp_path: Path) -> None:
    server = asking_server(tmp_path)
    client = client_of(Wire(server), "b")
    received = await client.fetch(-1)
    assert isinstance(received, ReceivedModel)
    assert (received.cluster, received.clusters, received.flat[0]) == (1, 0, 100.0)
    answering = asyncio.create_task(client.answer(0, losses(1, 2)))
    await answer(server, "a", losses(1, 2))
    await asking_of(server).gathered()
    go_on(server, a=0, b=1)
    said_on = await answering
    assert isinstance(said_on, pb.GoOn)
    assert (said_on.round, said_on.cluster) == (0, 1)


async def test_an_answer_that_was_cut_on_its_way_is_asked_for_again(tmp_path: Path) -> None:
    server = asking_server(tmp_path)
    client = client_of(Wire(server, cut_up=(0,)))
    assert isinstance(await client.answer(0, losses(1, 2)), pb.SendAgain)
    answering = asyncio.create_task(client.answer(0, losses(1, 2)))
    await answer(server, "b", losses(3, 4))
    assert set(await asking_of(server).gathered()) == {"a", "b"}
    go_on(server, a=1, b=1)
    assert isinstance(await answering, pb.GoOn)


async def test_where_the_word_to_go_on_was_cut_nothing_is_answered_twice(tmp_path: Path) -> None:
    server = asking_server(tmp_path)
    client = client_of(Wire(server, cut_down=(0, 0)))
    answering = asyncio.create_task(client.answer(0, losses(1, 2)))
    await answer(server, "b", losses(3, 4))
    await asking_of(server).gathered()
    go_on(server, a=1, b=1)
    assert isinstance(await answering, pb.GoOn)


async def test_a_child_whose_parent_was_killed_sends_its_answer_again_and_nothing_is_trained_anew(
    tmp_path: Path,
) -> None:
    wire = Wire(asking_server(tmp_path))
    client = client_of(wire)
    await client.fetch(-1)
    answering = asyncio.create_task(client.answer(0, losses(1, 2)))
    await asyncio.sleep(0)
    answering.cancel()
    (tmp_path / "second-life").mkdir()
    wire.server = asking_server(tmp_path / "second-life")
    assert isinstance(await client.fetch(-1), pb.SendAgain)


async def test_a_child_with_a_new_model_has_answered_nothing(tmp_path: Path) -> None:
    server = asking_server(tmp_path)
    wire = Wire(server)
    client = client_of(wire)
    answering = asyncio.create_task(client.answer(0, losses(1, 2)))
    await asyncio.sleep(0)
    open_asking(server, 1)
    received = await answering
    assert isinstance(received, ReceivedModel)
    assert received.round == 1
    await client.fetch(-1)
    assert not wire.asked[-1].HasField("answered_round")


async def test_a_refused_answer_is_told_to_the_child_with_the_reason(tmp_path: Path) -> None:
    client = client_of(Wire(asking_server(tmp_path)))
    with pytest.raises(PayloadError, match="not finite"):
        await client.answer(0, losses(float("inf"), 1.0))


# --- several clusters' streams at once --------------------------------------------------------------


def test_an_offer_of_all_streams_says_how_many_and_which_is_the_childs() -> None:
    both = Layout.of({"0/w": (8,), "1/w": (8,)})
    offer = Offer(ModelInMemory(both, np.arange(16, dtype=np.float32), {"x": "y"}), cluster=1, clusters=2)
    offer.parts = [("0/model", both.select(["0/w"])), ("1/model", both.select(["1/w"]))]
    offer.announce(pb.ModelHeader(run_id=RUN_ID, round=4), "float32")
    assert (offer.header.round, offer.header.cluster, offer.header.clusters) == (4, 1, 2)
    assert [part.name for part in offer.header.payload.parts] == ["0/model", "1/model"]
    assert offer.header.payload.payload_bytes == 64
