"""An LPS takes over a cluster: which device is asked for its model, what is refused, and where the cluster goes on."""

import asyncio
import gc
import hashlib
import weakref
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest

from fedstrata.errors import NotReadyError, PayloadError, StateError, WrongRunError
from fedstrata.experiment import TierDeadline
from fedstrata.experiment_file import parse_experiment
from fedstrata.process.logs import EventLog
from fedstrata.rounds import ReceivedModel, Refusals
from fedstrata.rpc.payload import payload_header
from fedstrata.rules import AS_STATED
from fedstrata.store import write_model
from fedstrata.tensors import Flat, PayloadCodec
from fedstrata.v1 import lps_service_pb2 as lps_pb
from fedstrata.v1 import rounds_pb2 as pb
from fedstrata.v1.gps_service_pb2 import Cluster, Member, ReportHeader
from lps.kept.kept_model import KeptModel
from lps.kept.model_search import MOST_CUTS, Held, ModelSearch
from lps.kept.state import ClusterState
from lps.kept.takeover import Takeover, oldest_usable, round_to_open, write_start
from lps.to_gps import NewestPlan
from tests.support.attempts import attempt_of
from tests.support.cluster_states import state_in
from tests.support.gatherings import MEAN
from tests.support.gps_parts import TEXT
from tests.support.lps_session import session_of
from tests.support.two_layers import MODEL as LAYOUT
from tests.support.two_layers import STREAMS as TWO_LAYERS

EXPERIMENT = parse_experiment(TEXT, overrides=["training.lps_rounds_per_global_round=3"])
RUN_ID = attempt_of(EXPERIMENT)
CODEC = PayloadCodec(LAYOUT, "float32")
SHARED = [slice(0, 3)]
STREAMS = replace(TWO_LAYERS, spans=False)
LOG = EventLog("test_takeover")
MODEL = np.float32([1, 2, 3, 4, 5])


def gathering_of(*members: str, refused: Refusals | None = None) -> ModelSearch:
    return ModelSearch(
        RUN_ID, layout=LAYOUT, members=set(members), wait=TierDeadline(), likely_rounds=range(9),
        refused=refused or Refusals(LOG), log=LOG,
    )  # fmt: skip


def searching(*members: str, refused: Refusals | None = None) -> tuple[ModelSearch, "asyncio.Task[Held | None]"]:
    """A search among these devices that has begun, and what it will find."""
    gathering = gathering_of(*members, refused=refused)
    return gathering, asyncio.create_task(gathering.model())


async def found_by(finding: "asyncio.Task[Held | None]") -> tuple[int, list[float]]:
    """The round and the values of the model that a search finds."""
    found = await finding
    assert found is not None
    return found.lps_round, found.flat.tolist()


async def told(gathering: ModelSearch, device_id: str, held_round: int | None, run_id: str = RUN_ID) -> pb.ModelPart:
    """What a device is told that holds a model of that round."""
    request = pb.FetchModelRequest(run_id=run_id, child_id=device_id, sent_round=-1, held_round=held_round)
    async for part in gathering.fetch(request):
        assert isinstance(part, pb.ModelPart)
        return part
    raise AssertionError("an empty stream")


def header_of(device_id: str, held_round: int, flat: Flat, **changed: str) -> lps_pb.HeldModelHeader:
    fields = {"run_id": RUN_ID, "sha256": hashlib.sha256(flat.tobytes()).hexdigest(), **changed}
    payload = payload_header(CODEC, name="model")
    return lps_pb.HeldModelHeader(device_id=device_id, round=held_round, payload=payload, **fields)


async def parts_of(flat: Flat) -> AsyncIterator[lps_pb.HeldModelPart]:
    data = flat.tobytes()
    for start in range(0, len(data), 8):
        yield lps_pb.HeldModelPart(data=data[start : start + 8])


# --- who is asked -------------------------------------------------------------------------------------------


async def sent(gathering: ModelSearch, held: dict[str, int], flats: dict[str, Flat]) -> "dict[str, asyncio.Task[None]]":
    """What becomes of the models of devices, all of which are asked and send theirs."""
    asked = await asyncio.gather(*(told(gathering, name, held_round) for name, held_round in held.items()))
    assert [part.send_model.round for part in asked] == list(held.values())
    return {
        name: asyncio.create_task(gathering.take_model(header_of(name, held[name], flat), parts_of(flat)))
        for name, flat in flats.items()
    }


async def test_what_most_devices_hold_is_read_from_the_first_of_them_and_from_no_other() -> None:
    held = {"a": 4, "b": 5, "c": 5}
    gathering, finding = searching(*held)
    sending = await sent(gathering, held, {"a": MODEL * 2, "b": MODEL, "c": MODEL})
    assert await found_by(finding) == (5, MODEL.tolist())
    await asyncio.gather(*sending.values())  # none is refused
    gathering.release()


@pytest.mark.parametrize("claimed", [5, 6, 10**6, -1])
async def test_one_device_that_lies_about_its_model_is_not_believed(claimed: int) -> None:
    held = {"a": 5 if claimed < 0 else claimed, "b": 5, "c": 5}
    gathering, finding = searching(*held)
    sending = await sent(gathering, held, {"a": np.zeros_like(MODEL), "b": MODEL, "c": MODEL})
    assert await found_by(finding) == (5, MODEL.tolist())
    await asyncio.gather(*sending.values())


async def test_of_as_many_devices_the_newest_round_is_believed_that_there_can_be() -> None:
    held = {"a": 10**6, "b": 5, "c": 4}
    gathering, finding = searching(*held)
    await sent(gathering, held, {"a": MODEL * 3, "b": MODEL, "c": MODEL * 2})
    assert await found_by(finding) == (5, MODEL.tolist())


async def test_a_search_does_not_keep_the_model_that_it_has_found() -> None:
    gathering, finding = searching("a")
    await told(gathering, "a", 5)
    await gathering.take_model(header_of("a", 5, MODEL), parts_of(MODEL))
    found = await finding
    assert found is not None
    flat = weakref.ref(found.flat)
    del finding, found
    await asyncio.sleep(0)  # the loop still has the task's result in this turn
    gc.collect()
    assert flat() is None


async def test_a_model_that_was_cut_is_taken_when_it_is_sent_again() -> None:
    gathering, finding = searching("a")
    await told(gathering, "a", 5)
    with pytest.raises(NotReadyError, match="the model of a was cut at byte 16 of 20; send it again"):
        await gathering.take_model(header_of("a", 5, MODEL), parts_of(MODEL[:4]))
    await gathering.take_model(header_of("a", 5, MODEL), parts_of(MODEL))
    assert isinstance(await finding, Held)


async def test_a_model_that_is_cut_again_and_again_is_read_from_another_device() -> None:
    held = {"a": 5, "b": 5}
    gathering, finding = searching(*held)
    sending = await sent(gathering, held, {"b": MODEL})
    for _ in range(MOST_CUTS):
        with pytest.raises(NotReadyError):
            await gathering.take_model(header_of("a", 5, MODEL), parts_of(MODEL[:4]))
        if finding.done():
            break
    assert isinstance(await finding, Held)
    await sending["b"]


async def test_where_no_device_holds_a_model_there_is_none() -> None:
    gathering, finding = searching("a", "b")
    calls = [asyncio.create_task(told(gathering, name, None)) for name in "ab"]
    assert await finding is None
    gathering.release()
    assert all(part.HasField("waiting") for part in await asyncio.gather(*calls))


async def test_round_0_is_a_round_that_a_device_can_hold() -> None:
    gathering, finding = searching("a")
    assert (await told(gathering, "a", 0)).send_model.round == 0
    await gathering.take_model(header_of("a", 0, MODEL), parts_of(MODEL))
    assert isinstance(await finding, Held)


async def test_a_device_that_was_started_again_is_asked_for_nothing_and_the_others_are() -> None:
    gathering, finding = searching("a", "b", "c")
    sending = await sent(gathering, {"a": 5, "b": 5, "c": 5}, {"c": MODEL})
    again = [asyncio.create_task(told(gathering, name, None)) for name in "ab"]  # other processes, who hold nothing
    async with asyncio.timeout(60):
        await sending["c"]
    assert not any(call.done() for call in again)
    assert isinstance(await finding, Held)
    gathering.release()
    assert all(part.HasField("waiting") for part in await asyncio.gather(*again))


async def test_without_deadlines_every_member_is_waited_for_and_strangers_do_not_count() -> None:
    gathering, finding = searching("a", "b")
    calls = [asyncio.create_task(told(gathering, name, 3)) for name in ("a", "stranger")]
    for _ in range(10):
        await asyncio.sleep(0)
    assert not any(call.done() for call in (*calls, finding))
    for call in (*calls, finding):
        call.cancel()


# --- what is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held_round", "flat", "sha256", "reason"),
    [
        (4, MODEL, None, "of round 4, but was asked for round 5"),
        (5, np.float32([1, 2, np.nan, 4, 5]), None, "not finite"),
        (5, np.append(MODEL, MODEL), None, "a chunk has 8 bytes"),
        (5, MODEL, "f" * 64, "has another digest than"),
        (5, MODEL, "x" * 64, "expected a SHA-256"),
    ],
)
async def test_a_model_that_is_not_what_was_asked_for_is_refused_and_another_device_asked(
    held_round: int, flat: Flat, sha256: str | None, reason: str
) -> None:
    refused = Refusals(LOG)
    gathering, finding = searching("a", "b", refused=refused)
    calls = {name: asyncio.create_task(told(gathering, name, 5)) for name in "ab"}
    await asyncio.gather(*calls.values())
    bad = header_of("a", held_round, flat.astype(np.float32), **({"sha256": sha256} if sha256 else {}))
    good = asyncio.create_task(gathering.take_model(header_of("b", 5, MODEL), parts_of(MODEL)))
    with pytest.raises(PayloadError, match=reason):
        await gathering.take_model(bad, parts_of(flat.astype(np.float32)))
    assert isinstance(await finding, Held)
    await good
    assert list(refused) == ["a"]  # it ends, so no round may wait for it


async def test_calls_of_another_run_are_refused() -> None:
    gathering = gathering_of("a")
    with pytest.raises(WrongRunError):
        await gathering.take_model(header_of("a", 5, MODEL, run_id="run-2"), parts_of(MODEL))
    with pytest.raises(WrongRunError):
        gathering.locate(pb.LocateUpdateRequest(run_id="run-2"))


async def test_an_answer_is_passed_over_and_an_update_late_while_no_round_is_open() -> None:
    gathering = gathering_of("a")
    await gathering.hear(pb.RoundAnswer(run_id=RUN_ID, child_id="a", round=5))
    with pytest.raises(WrongRunError):
        await gathering.hear(pb.RoundAnswer(run_id="run-2", child_id="a"))
    assert not (await gathering.submit(pb.UpdateHeader(run_id=RUN_ID, child_id="a"), aiter_of_nothing())).accepted


async def aiter_of_nothing() -> AsyncIterator[pb.UpdatePart]:
    return
    yield


# --- where it goes on ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held_round", "opened"),
    [
        (None, 6),  # global round 2 of three LPS rounds each is rounds 6, 7, 8
        (2, 6),
        (4, 6),
        (5, 5),  # the last round of the global round before: its updates are gathered again for the head
        (6, 6),
        (8, 8),
        (9, 6),  # of a global round that the GPS has not opened
    ],
)
def test_the_round_held_is_opened_if_the_global_round_allows_it(held_round: int | None, opened: int) -> None:
    assert round_to_open(held_round, 2, 3) == opened


@pytest.mark.parametrize(
    ("term", "global_round", "is_exact", "oldest"),
    [
        (0, 0, True, -1),  # it can begin with the initial model
        (1, 0, True, 0),  # another LPS may have begun
        (0, 2, True, -1),
        (1, 2, True, 0),
        (0, 3, True, 3),
        (0, 9, True, 21),  # global round 7
        (0, 2, False, 0),
    ],
)
def test_an_lps_trains_again_from_a_state_of_the_two_global_rounds_before_the_open_one(
    term: int, global_round: int, is_exact: bool, oldest: int
) -> None:
    assert oldest_usable(term, global_round, 3, is_exact=is_exact) == oldest


@pytest.mark.parametrize("held_round", [7, 12])
async def test_without_deadlines_a_model_of_another_global_round_stops_the_run(tmp_path: Path, held_round: int) -> None:
    shared = ReceivedModel(round=3, global_round=3, evaluate_only=False, plan_version=1, flat=np.zeros(3, np.float32))
    cluster = Cluster(home_id="lps-0", members=[Member(device_id="a", num_examples=1)], global_round=3)
    shown: asyncio.Queue[ModelSearch] = asyncio.Queue()
    session = session_of(EXPERIMENT, tmp_path, cluster, shared, STREAMS)
    taking_over = asyncio.create_task(session.holding.recover(shown.put_nowait))
    gathering = await shown.get()
    await told(gathering, "a", held_round)
    await gathering.take_model(header_of("a", held_round, MODEL), parts_of(MODEL))
    with pytest.raises(StateError, match=f"is of LPS round {held_round}, while the GPS is at global round 4"):
        await taking_over


async def test_a_device_that_the_lps_before_has_refused_is_not_waited_for(tmp_path: Path) -> None:
    refused = [pb.Exclusion(device_id="b", stage="training", reason="refused: an update of NaN")]
    members = [Member(device_id=name, num_examples=1) for name in "ab"]
    cluster = Cluster(home_id="lps-0", members=members, global_round=2, term=1, refused=refused)
    shown: asyncio.Queue[ModelSearch] = asyncio.Queue()
    session = session_of(EXPERIMENT, tmp_path, cluster, streams=STREAMS)
    taking_over = asyncio.create_task(session.holding.recover(shown.put_nowait))
    assert (await shown.get()).awaited == (-1, ("a",), "")
    assert session.server.refused.reasons == {"b": "an update of NaN"}
    taking_over.cancel()


def of_three_rounds(folder: Path) -> ClusterState:
    return state_in(folder, LAYOUT, run_id=RUN_ID, rounds_per_global=3)


def write_held(state: ClusterState, held_round: int) -> int:
    """Write the start after a takeover in global round 2 with the model `MODEL`, and return the round to open."""
    held, opened = state.scratch(iter([MODEL])), round_to_open(held_round, 2, 3)
    shared = ReceivedModel(round=2, global_round=2, evaluate_only=False, plan_version=1, flat=np.float32([-1, -2, -3]))
    write_start(state, opened, held, shared, places=SHARED, report=ReportHeader())
    return opened


def started(folder: Path, held_round: int) -> tuple[int, Flat, Flat]:
    """The round that is opened in global round 2 with a model held, its model, and the one before its global round."""
    opened = write_held(of_three_rounds(folder), held_round)
    standing = of_three_rounds(folder).newest(LOG)
    assert standing is not None
    assert standing.lps_round == opened
    return opened, standing.model.read_all(), standing.base.read_all()


def test_in_the_middle_of_a_global_round_the_model_is_as_held_and_its_base_has_the_shared_layers(
    tmp_path: Path,
) -> None:
    opened, model, base = started(tmp_path, 7)
    assert opened == 7
    assert model.tolist() == [1, 2, 3, 4, 5]
    assert base.tolist() == [-1, -2, -3, 4, 5]


def test_a_model_of_an_older_global_round_keeps_its_own_layers_and_takes_the_shared_ones_of_now(
    tmp_path: Path,
) -> None:
    opened, model, base = started(tmp_path, 3)
    assert opened == 6
    assert model.tolist() == base.tolist() == [-1, -2, -3, 4, 5]


def test_the_last_round_of_the_global_round_before_is_opened_as_it_was(tmp_path: Path) -> None:
    opened, model, _ = started(tmp_path, 5)
    assert opened == 5
    assert model.tolist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("held_round", [5, 7])
def test_a_take_over_that_was_broken_off_between_its_files_is_made_again(
    tmp_path: Path, held_round: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Path] = []

    def write_one(path: Path, *args: Any, **kwargs: Any) -> None:
        if written:
            raise KeyboardInterrupt  # as a kill would have it
        written.append(path)
        write_model(path, *args, **kwargs)

    monkeypatch.setattr("lps.kept.state.write_model", write_one)
    with pytest.raises(KeyboardInterrupt):
        write_held(of_three_rounds(tmp_path), held_round)
    assert written
    assert of_three_rounds(tmp_path).newest(LOG) is None


async def test_what_an_lps_wrote_in_an_earlier_term_is_used_only_if_no_device_has_a_model(tmp_path: Path) -> None:
    experiment = parse_experiment(
        TEXT, overrides=["training.lps_rounds_per_global_round=3", "deadlines.gps={deadline_s: 5, quorum_ratio: 0.5}"]
    )
    folder = tmp_path / attempt_of(experiment)
    first = state_in(folder / "lps-0", LAYOUT, run_id=experiment.run_id, rounds_per_global=3)
    first.save(0, iter([MODEL]), ReportHeader()).close()
    shared = ReceivedModel(round=2, global_round=2, evaluate_only=False, plan_version=1, flat=np.float32([-1, -2, -3]))
    cluster = Cluster(home_id="lps-0", members=[Member(device_id="a", num_examples=1)], global_round=2, term=2)
    session = session_of(experiment, tmp_path, cluster, shared, STREAMS)
    assert session.holding.may_recover()
    shown: asyncio.Queue[ModelSearch] = asyncio.Queue()
    taking_over = asyncio.create_task(session.holding.recover(shown.put_nowait))
    await told(await shown.get(), "a", None, attempt_of(experiment))
    await taking_over
    third = state_in(folder / "lps-0.2", LAYOUT, run_id=experiment.run_id, rounds_per_global=3).newest(LOG)
    assert third is not None
    assert (third.lps_round, third.model.read_all().tolist()) == (6, [-1, -2, -3, 4, 5])
    assert not session_of(experiment, tmp_path, cluster, shared, STREAMS).holding.may_recover()


# --- rounds that were missed ----------------------------------------------------------------------------------


async def test_an_lps_that_missed_global_rounds_goes_on_with_the_state_of_its_optimiser(tmp_path: Path) -> None:
    changes = [
        "deadlines.gps={deadline_s: 5, quorum_ratio: 0.5}",
        "training.lps_optimiser={name: momentum, momentum: 0.5}",
    ]
    lps = SimpleNamespace(
        experiment=parse_experiment(TEXT, overrides=changes), streams=STREAMS, state_folder=tmp_path, model=None,
        rule=MEAN, method=SimpleNamespace(initial=lambda model, cluster: MODEL, server_optimiser=None),
    )  # fmt: skip
    gps = SimpleNamespace(newest_plan=NewestPlan(None))
    parts = SimpleNamespace(
        lps=lps, folder=tmp_path, cluster=Cluster(home_id="lps-0"), rounds=1, gps=gps, clock=Mock(kept_here=""),
        log=LOG, update_encoding="float32", empty_report=ReportHeader, members=None, folder_of=lambda term: tmp_path,
    )  # fmt: skip
    kept = KeptModel(cast(Any, parts))
    number, report = await kept.begin()
    for opened in (3, 4):  # global rounds 1 and 2 were missed
        sums = kept.sums({"a": 1}, {"a": 1}, AS_STATED)
        sums.take("a", 0, np.float32([1, 1, 1, 1, 1]), [1])
        sums.accept("a", [1])
        await kept.move(number, sums, report)
        shared = np.zeros(3, np.float32)
        given = ReceivedModel(round=opened, global_round=opened, evaluate_only=False, plan_version=0, flat=shared)
        await kept.take(given, report)
        number = opened
    await kept.written()
    model = kept.offers().models[0].model.read_all()
    assert model.tolist() == [0, 0, 0, 4 + 1 + 1.5, 5 + 1 + 1.5]  # velocity 1, then 0.5 + 1


@pytest.mark.parametrize(
    ("damaged", "said"),
    [
        (
            (),
            "has no complete state of lps-0 newer than the start of LPS round 3, which is too old, and devices do not",
        ),
        ((1, 2), "has no complete state of lps-0 newer than the start of LPS round 1, which is too old"),
        ((0, 1, 2), "has no complete state of lps-0, and devices do not have the times of links; put the files back"),
    ],
)
async def test_a_state_that_is_too_old_is_named(tmp_path: Path, damaged: tuple[int, ...], said: str) -> None:
    state = state_in(tmp_path, LAYOUT, rounds_per_global=3)
    for number in range(3):
        state.save(number, iter([MODEL]), ReportHeader()).close()
    for number in damaged:
        state.path_of(number).write_bytes(b"")
    parts = SimpleNamespace(
        lps=SimpleNamespace(experiment=EXPERIMENT), cluster=Cluster(home_id="lps-0", global_round=4), rounds=3, log=LOG,
        clock=SimpleNamespace(kept_here="the times of links"),
    )  # fmt: skip
    with pytest.raises(StateError) as raised:
        await Takeover(cast(Any, parts), state, lambda: MODEL).run_if_needed(Mock())
    assert said in str(raised.value)
