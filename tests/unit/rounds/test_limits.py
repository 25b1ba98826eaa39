"""What a child may claim in a round: the norm of its update, and the examples that it measured on."""

import numpy as np
import pytest

from fedstrata.errors import PayloadError
from fedstrata.rounds import ChildLimits, HeldOut, Intake
from fedstrata.rules import Gathering
from fedstrata.tasks import CLASSIFICATION
from fedstrata.tensors import Flat
from fedstrata.v1 import rounds_pb2 as pb
from tests.support.gatherings import one_stream, sums_in
from tests.support.rounds_setting import CODEC, FOREVER, LAYOUT, bytes_of, send, vector

CHILDREN = {"a": 1, "b": 1}


def intake_up_to(norm: float) -> tuple[Intake, Gathering]:
    sums = one_stream(LAYOUT.size, CHILDREN)
    return Intake(children=CHILDREN, sums=sums, wait=FOREVER, limits=ChildLimits(norm)), sums


@pytest.mark.parametrize("cuts", [(), (4,), (4, 8, 12, 20)])
async def test_an_update_may_be_as_long_as_the_bound_and_no_longer(cuts: tuple[int, ...]) -> None:
    long: Flat = vector(2.0, 2.0, 2.0, 2.0)  # its norm is 4
    exact, _ = intake_up_to(4.0)
    await send(exact, "a", long, 1, cuts)
    short, _ = intake_up_to(3.999)
    with pytest.raises(PayloadError, match=r"a sends an update with an L2 norm of 4 or more.* 3\.999"):
        await send(short, "a", long, 1, cuts)


async def test_what_was_sent_before_a_void_counts_no_more() -> None:
    intake, sums = intake_up_to(4.0)
    upload = await intake.begin("a", CODEC, (1,), 0)
    assert upload is not None
    await intake.fold(upload, bytes_of(vector(3.0))[:8])
    intake.void()
    await send(intake, "a", vector(3.0), 1, ())
    await send(intake, "b", vector(1.0), 1, ())
    await intake.close()
    assert sums_in(sums)[0].mean()[0] == 2.0


async def test_norms_are_computed_without_overflow() -> None:
    intake, _ = intake_up_to(1e6)
    with pytest.raises(PayloadError, match="L2 norm of"):
        await send(intake, "a", np.full(LAYOUT.size, 3e38, np.float32), 1, ())


def measured(examples: int, device: str = "a") -> pb.Evaluation:
    return pb.Evaluation(device_id=device, num_examples=examples, sums=[0])


def test_a_measurement_is_of_the_examples_that_were_told_at_enrolment() -> None:
    limits = ChildLimits(held_out=HeldOut(examples={"a": 7}, task=CLASSIFICATION))
    limits.check_measured([measured(7)])
    for wrong in (measured(6), measured(1 << 39), measured(1, "nobody")):
        with pytest.raises(PayloadError, match="enrolled with"):
            limits.check_measured([wrong])
    ChildLimits().check_measured([measured(1 << 39)])  # of LPSs, whose rows are checked as sums
