"""Rounds that leave updates for later rounds: who is refused after the decision does not stay in it."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from fedstrata.clock.asynchronous import Calculated, asynchronous_round
from fedstrata.clock.timeline import DeviceTimeline
from fedstrata.errors import PayloadError
from fedstrata.experiment import TierDeadline
from fedstrata.experiment_file import parse_experiment
from fedstrata.rounds import RoundServer
from fedstrata.v1 import gps_service_pb2 as gps_pb
from tests.support.rounds_setting import bytes_of, header_of, parts_of, said, server_of, vector

A, B, C = ("device-000", "device-001", "device-002")
CHILDREN = {A: 2, B: 6, C: 2}
RATES = (8_000, 4_000, 1_000)  # bits per second up: C is the last
TEXT = """
name: kept
method: fedavg
clock: virtual
partition: {kind: iid, devices: 3, examples_per_device: 10}
"""


def round_of(rhythm: str) -> Calculated:
    own = ", ".join(f"{{devices: [{index}], up_rate: {rate}bit/s}}" for index, rate in enumerate(RATES))
    changes = [f"links={{overrides: [{own}]}}", f"training.rounds.lps={rhythm}"]
    experiment = parse_experiment(TEXT, overrides=changes)
    indexes = {name: index for index, name in enumerate(CHILDREN)}
    settings = experiment.training.rounds.lps
    return asynchronous_round(DeviceTimeline(experiment), settings, 0, gps_pb.ReportHeader(), indexes)


async def submit(server: RoundServer, child_id: str, value: float) -> bool:
    header = header_of(child_id, num_examples=CHILDREN[child_id])
    return (await server.submit(header, parts_of(bytes_of(vector(value))))).accepted


@pytest.mark.parametrize("rhythm", ["{kind: buffered, buffer: 3}", "{kind: timed, period: 1000s}"])
async def test_a_child_that_is_refused_last_does_not_stay_in_the_round(tmp_path: Path, rhythm: str) -> None:
    """All updates are decided to be in the round. The last is refused when the others are complete."""
    decided = round_of(rhythm)
    wait = TierDeadline(quorum_ratio=0.5)
    server, total = server_of(tmp_path, children=CHILDREN, wait=wait, deadline=decided)
    gathering = asyncio.create_task(server.gather())
    for child_id, examples in CHILDREN.items():
        await server.hear(header_of(child_id, num_examples=examples))
    assert (await said(server, A, sent_round=0)).HasField("send_again")  # the round is decided
    before = {each.child: each.arrives_ns for each in decided.times().contributions}
    assert sorted(before) == [0, 1, 2]
    assert decided.times().ends_ns == before[2]
    assert await submit(server, A, 4.0)
    assert await submit(server, B, 8.0)
    with pytest.raises(PayloadError):
        await submit(server, C, np.nan)
    assert await submit(server, A, 4.0)  # again, because the sum was emptied
    assert await submit(server, B, 8.0)
    assert (await gathering).missing == (C,)
    assert {each.child: each.arrives_ns for each in decided.times().contributions} == {0: before[0], 1: before[1]}
    assert decided.times().ends_ns == before[1] < before[2]
    assert total.mean()[0] == 7.0
