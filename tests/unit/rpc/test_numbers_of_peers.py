"""Every float that a message of ours has is read in a finite range, or refused with its sender."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor

from emulator.runs.run_client import checked_status
from fedstrata.errors import PayloadError
from fedstrata.rounds.parent.report_checks import HeldOut, check_evaluation, check_lps_rounds, check_notes
from fedstrata.rpc.payload import accepted_parts, payload_header
from fedstrata.tasks import CLASSIFICATION
from fedstrata.tensors import Layout, PayloadCodec
from fedstrata.v1 import answers_pb2, gps_service_pb2, lps_service_pb2, rounds_pb2, tensors_pb2
from fedstrata.v1 import gps_service_pb2 as pb
from tests.support.waiting_setting import Setting

FILES = (answers_pb2, gps_service_pb2, lps_service_pb2, rounds_pb2, tensors_pb2)
NO_NUMBERS = (math.nan, math.inf, -math.inf, 1e308)
LAYOUT = Layout.of({"w": (2,)})


def lps_round(**said: Any) -> None:
    check_lps_rounds([rounds_pb2.LpsRound(**said)], rounds_per_global=1, held_out=0, task=CLASSIFICATION)


def held_out(**said: Any) -> None:
    HeldOut(examples={}, task=CLASSIFICATION).check(rounds_pb2.Evaluation(**said))


def scale(number: float) -> None:
    header = payload_header(PayloadCodec(LAYOUT, "int8", [number]), name="update")
    accepted_parts(header, layout=LAYOUT, parts=[("update", LAYOUT)], encoding="int8")


def waited(folder: Path, number: float) -> None:
    setting = Setting(folder)
    with setting.waiting.call_of(pb.FetchClustersRequest(lps_id="lps-0", waits=[pb.Wait(name="a", seconds=number)])):
        pass


# by field: what reads it, first from whom
READERS: dict[str, Callable[[Path, float], object]] = {
    # a device to its LPS, an LPS to the GPS
    "UpdateHeader.train_loss": lambda _, x: check_notes(rounds_pb2.UpdateHeader(train_loss=x)),
    "Evaluation.loss_sum": lambda _, x: check_evaluation(rounds_pb2.Evaluation(loss_sum=x)),
    "Evaluation.received_loss_sum": lambda _, x: check_evaluation(rounds_pb2.Evaluation(received_loss_sum=x)),
    "Evaluation.sums": lambda _, x: held_out(sums=[x]),
    "Evaluation.received_sums": lambda _, x: held_out(sums=[0], received_sums=[x], has_received=True),
    "TensorHeader.scale": lambda _, x: scale(x),
    # an LPS to the GPS
    "Wait.seconds": waited,
    "LpsRound.seconds": lambda _, x: lps_round(seconds=x),
    "LpsRound.train_loss": lambda _, x: lps_round(train_loss=x),
    "LpsRound.loss_sum": lambda _, x: lps_round(loss_sum=x),
    "LpsRound.received_loss_sum": lambda _, x: lps_round(received_loss_sum=x),
    "LpsRound.sums": lambda _, x: lps_round(sums=[x]),
    "LpsRound.received_sums": lambda _, x: lps_round(received_sums=[x]),
    "Factors.factors": lambda _, x: lps_round(factors=rounds_pb2.Factors(children=[0], factors=[x])),
    "LpsRound.lowest": lambda _, x: lps_round(lowest=x, highest=0.5),
    "LpsRound.highest": lambda _, x: lps_round(lowest=0, highest=x),
    # the GPS to the experimenter, with the waits that it tells
    "RunStatus.seconds": lambda _, x: checked_status(pb.RunStatus(seconds=x, waits=[pb.Wait(seconds=1)])),
    "RunStatus.epsilon_spent": lambda _, x: checked_status(pb.RunStatus(epsilon_spent=x)),
    "ClusterStatus.loss": lambda _, x: checked_status(pb.RunStatus(clusters=[pb.ClusterStatus(loss=x)])),
    "ClusterStatus.headline": lambda _, x: checked_status(pb.RunStatus(clusters=[pb.ClusterStatus(headline=x)])),
}


def test_every_float_of_the_protocol_has_a_reader_here() -> None:
    kinds = {FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE}
    messages = [message for file in FILES for message in file.DESCRIPTOR.message_types_by_name.values()]
    floats = {f"{message.name}.{f.name}" for message in messages for f in message.fields if f.cpp_type in kinds}
    assert floats == set(READERS)


@pytest.mark.parametrize("number", NO_NUMBERS)
@pytest.mark.parametrize("field", READERS)
def test_what_is_no_number_is_refused_wherever_it_is_read(field: str, number: float, tmp_path: Path) -> None:
    READERS[field](tmp_path, 0.0)
    with pytest.raises(PayloadError, match="expected a finite number from"):
        READERS[field](tmp_path, number)


@pytest.mark.parametrize("number", NO_NUMBERS)
def test_waits_that_a_gps_tells_are_refused_alike(number: float) -> None:
    with pytest.raises(PayloadError, match="the GPS sends a state with"):
        checked_status(pb.RunStatus(waits=[pb.Wait(seconds=number)]))
