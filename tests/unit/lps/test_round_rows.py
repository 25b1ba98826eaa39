"""What devices measure of a round's model goes into that round's row; whom an LPS refuses outlives it."""

from pathlib import Path

from fedstrata.process.logs import EventLog
from fedstrata.process.metrics import ProcessMetrics
from fedstrata.tasks import CLASSIFICATION
from fedstrata.v1 import gps_service_pb2 as gps_pb
from fedstrata.v1 import rounds_pb2 as pb
from lps.notes import Notes, add_evaluations
from lps.report_files import RefusedDevices


def measured(device: str, correct: int, examples: int, of_round: int = 1) -> pb.Evaluation:
    return pb.Evaluation(device_id=device, round=of_round, loss_sum=2.0, sums=[correct], num_examples=examples)


def test_a_row_has_the_least_and_the_most_accurate_device() -> None:
    report = gps_pb.ReportHeader(lps_rounds=[pb.LpsRound(lps_round=0), pb.LpsRound(lps_round=1)])
    found = [measured("a", 5, 10), measured("b", 9, 10), measured("c", 1, 5), measured("d", 0, 0)]
    add_evaluations(report, [*found, measured("e", 1, 1, of_round=9)], CLASSIFICATION, {"a", "b", "c", "d"})
    row, unmeasured = report.lps_rounds
    assert not row.is_of_cohort and not unmeasured.is_of_cohort
    assert (row.sums, row.evaluated_examples, row.loss_sum) == ([15], 25, 8.0)
    assert (row.lowest, row.highest) == (0.2, 0.9)
    assert not unmeasured.HasField("lowest") and not unmeasured.HasField("highest")


def test_a_row_that_lacks_a_device_is_of_a_cohort_and_one_that_all_have_measured_stays_as_it_is() -> None:
    report = gps_pb.ReportHeader(lps_rounds=[pb.LpsRound(lps_round=0), pb.LpsRound(lps_round=1)])
    add_evaluations(report, [measured("a", 5, 10)], CLASSIFICATION, {"a", "b"})
    add_evaluations(report, [measured("b", 1, 4, 2), measured("a", 2, 4, 2)], CLASSIFICATION, {"a", "b"})
    add_evaluations(report, [measured("b", 1, 4, 2)], CLASSIFICATION, {"a", "b"})  # of the next round's cohort
    assert [(row.sums, row.is_of_cohort) for row in report.lps_rounds] == [([5], True), ([3], False)]


def notes_in(folder: Path, metrics: ProcessMetrics | None = None) -> Notes:
    log = EventLog("test")
    refused = RefusedDevices(folder, "lps-0", log)
    metrics = metrics or ProcessMetrics("lps")
    return Notes("lps-0", CLASSIFICATION, metrics, log, refused, has_member={"a"}.__contains__)


def test_metrics_have_the_staleness_of_the_updates_that_a_round_has_taken(tmp_path: Path) -> None:
    metrics = ProcessMetrics("lps")
    row = pb.LpsRound(lps_round=7)
    row.times.contributions.extend([pb.Contribution(child=0, from_round=7), pb.Contribution(child=1, from_round=2)])
    notes_in(tmp_path, metrics).of_taken(gps_pb.ReportHeader(lps_rounds=[row]), {})
    name = "fedstrata_update_staleness_rounds"
    assert metrics.registry.get_sample_value(f"{name}_sum", {"tier": "lps"}) == 0 + 5
    assert metrics.registry.get_sample_value(f"{name}_count", {"tier": "lps"}) == 2


def test_a_refused_device_stays_refused_when_its_lps_restarts_and_the_record_names_it_once(tmp_path: Path) -> None:
    notes_in(tmp_path).refused.refuse(3, "a", "values are not finite")
    again = notes_in(tmp_path)
    assert again.refused.reasons == {"a": "values are not finite"}
    named = [pb.Exclusion(device_id="a", stage="training", reason="refused: values are not finite")]
    for saved in ([], named):  # before and after the report of a round was saved
        again.go_on_from(gps_pb.ReportHeader(exclusions=saved))
        assert again.exclusions == named
