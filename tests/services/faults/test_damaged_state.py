"""Files of an LPS are damaged, and every process is started again: the LPS trains again from an older file."""

import json
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fedstrata.experiment_file import parse_experiment
from fedstrata.process.fault_points import VARIABLE
from fedstrata.v1 import rounds_pb2 as pb
from tests.support.hand_started import Processes
from tests.support.programs import events
from tests.support.records import summary_of
from tests.support.tiers import Tiers, run_in_process, small

EXPERIMENT = """
name: damaged-state
partition:
  kind: tasks
  tasks:
    - {{name: low, labels: [0, 1, 2, 3, 4], devices: 2, examples_per_device: 40}}
    - {{name: high, labels: [5, 6, 7, 8, 9], devices: 2, examples_per_device: 40}}
model: {{name: mlp, hidden: [16]}}
method: {{name: {method}}}
training:
  global_rounds: 5
  lps_rounds_per_global_round: {rounds}
  local_steps: 1
  batch_size: 16
  optimiser: {{momentum: 0.5, state: kept}}
{more}
"""
CLOCK = "clock: virtual"
OPTIMISER = "  lps_optimiser: {name: momentum, momentum: 0.5}"
SAME = ("model_sha256", "personal_sha256", "device_accuracy", "excluded", "lost_state", "virtual")


def newest(folder: Path) -> list[Path]:
    """The models in a cluster's folder, newest first."""
    return sorted(folder.glob("*/*/lps-0/round-*.safetensors"), reverse=True)


def finished(folder: Path, text: str, *, rounds: int, dies_in: int, damaged: int) -> Mapping[str, Any]:
    """The summary of a run in which lps-0 dies before it has saved the start of global round `dies_in`, which the GPS
    has opened. Its newest but `damaged` model is damaged, and all processes are started again.
    """
    # A report is one write and a model two. An optimiser's state is two, before the GPS closes the global round.
    of_round, before = (5, 2) if OPTIMISER in text else (3, 0)
    order = {
        "point": "state_write",
        "count": of_round * dies_in * rounds + before + 1,
        "marker": str(folder.with_suffix(".marker")),
    }
    with Processes(folder, text) as processes:
        first = processes.lps(0, environment={VARIABLE: json.dumps([order])})
        second = processes.lps(1)
        devices = processes.devices("0-3", keeps_state=True)
        processes.until_round(dies_in)
        first.process.wait(timeout=60)
        for program in (second, devices, processes.first_gps):
            program.process.send_signal(signal.SIGKILL)
            program.process.wait()
        found = newest(folder / "lps-0")
        assert found[0].stem == f"round-{dies_in * rounds - 1:06d}"
        found[damaged].write_bytes(found[damaged].read_bytes()[:100])
        processes.gps_again()
        processes.lps(0)
        processes.lps(1)
        processes.devices("0-3", keeps_state=True)
        summary = summary_of(processes.record())
    told = [event["event"] for event in events(folder / "lps-0.2.log")]
    assert "state_passed_over" in told or damaged >= rounds
    assert "taken_over" not in told
    return summary


@pytest.mark.kills
@pytest.mark.parametrize(
    ("method", "rounds", "more", "dies_in", "damaged"),
    [
        ("oracle", 1, "", 3, 0),  # global round 1 is trained again, and the shared layers of round 2 are fetched
        ("oracle", 1, "", 1, 0),  # the LPS begins with its initial model
        ("oracle", 2, "", 3, 0),
        ("oracle", 2, "", 3, 1),  # the base of the last global round
        ("ditto", 1, "", 4, 0),
        ("fedper", 1, "", 5, 0),  # training is over
        ("oracle", 1, OPTIMISER, 3, 0),
        ("oracle", 1, CLOCK, 3, 0),
        ("oracle", 3, CLOCK, 3, 2),
    ],
)
def test_an_lps_with_a_damaged_file_trains_again_from_the_file_before(
    tmp_path: Path, *, method: str, rounds: int, more: str, dies_in: int, damaged: int
) -> None:
    text = EXPERIMENT.format(method=method, rounds=rounds, more=more)
    calm = summary_of(run_in_process(parse_experiment(text), tmp_path / "calm").folder)
    summary = finished(tmp_path / "run", text, rounds=rounds, dies_in=dies_in, damaged=damaged)
    assert {key: summary[key] for key in SAME} == {key: calm[key] for key in SAME}


DEADLINE = "deadlines.gps={deadline_s: 60, quorum_ratio: 0.5}"


@pytest.mark.parametrize(
    ("overrides", "sent_round", "is_damaged", "said"),
    [
        ((), 1, False, 2),  # the vector of global round 2, although the GPS is at global round 3
        ((), 2, False, "finished"),  # as any LPS
        ((), 0, False, "finished"),  # the GPS no longer has the vector of global round 1
        ((), -1, False, "finished"),
        ((), 1, True, "finished"),
        ((DEADLINE,), 1, False, "finished"),  # this LPS has missed a round, which nobody repeats
    ],
)
async def test_the_gps_has_the_vector_before_the_open_round_for_an_lps_that_repeats_a_round(
    tmp_path: Path, *, overrides: tuple[str, ...], sent_round: int, is_damaged: bool, said: int | str
) -> None:
    async with Tiers(small("training.global_rounds=3", *overrides), tmp_path) as tiers:
        await tiers.start_devices()
        await tiers.ended()
        if is_damaged:
            (tmp_path / "gps" / "shared-000002.safetensors").write_bytes(b"")
        request = pb.FetchModelRequest(run_id=tiers.run.journal.attempt_id, child_id="lps-0", sent_round=sent_round)
        data, *_ = [part async for part in tiers.run.rounds.fetch(request)]
        part = data if isinstance(data, pb.ModelPart) else pb.ModelPart.FromString(data)
    assert said == (part.header.round if part.HasField("header") else part.WhichOneof("part"))
