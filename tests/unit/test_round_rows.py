"""What devices measure of a round's model goes into that round's row."""

from fedstrata.tasks import CLASSIFICATION
from fedstrata.v1 import gps_service_pb2 as gps_pb
from fedstrata.v1 import rounds_pb2 as pb
from lps.notes import add_evaluations


def measured(device: str, correct: int, examples: int, of_round: int = 1) -> pb.Evaluation:
    return pb.Evaluation(device_id=device, round=of_round, loss_sum=2.0, sums=[correct], num_examples=examples)


def test_a_row_has_the_least_and_the_most_accurate_device() -> None:
    report = gps_pb.ReportHeader(lps_rounds=[pb.LpsRound(lps_round=0), pb.LpsRound(lps_round=1)])
    add_evaluations(report, [measured("a", 5, 10), measured("b", 9, 10)], CLASSIFICATION)
    add_evaluations(report, [measured("c", 1, 5), measured("d", 0, 0), measured("e", 1, 1, of_round=9)], CLASSIFICATION)
    row, unmeasured = report.lps_rounds
    assert (row.sums, row.evaluated_examples, row.loss_sum) == ([15], 25, 8.0)
    assert (row.lowest, row.highest) == (0.2, 0.9)
    assert not unmeasured.HasField("lowest") and not unmeasured.HasField("highest")
