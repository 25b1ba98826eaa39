"""Metrics: counted bytes by link, and the names that dashboards rely on."""

import math
from pathlib import Path

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from fedstrata.process.metrics import LinkKey, LinkMeter, ProcessMetrics

MODEL_DOWN = LinkKey(link="device-lps", direction="down", kind="model", end="parent")
CONTROL_DOWN = LinkKey(link="device-lps", direction="down", kind="control", end="parent")
MODEL_DOWN_AT_CHILD = LinkKey(link="device-lps", direction="down", kind="model", end="child")


def samples(metrics: ProcessMetrics) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """What a scrape gives: value by labels, by name."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(generate_latest(metrics.registry).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def test_a_total_adds_the_kinds_of_one_end_and_direction() -> None:
    meter = LinkMeter()
    for key, size in ((MODEL_DOWN, 100), (CONTROL_DOWN, 7), (MODEL_DOWN_AT_CHILD, 100)):
        meter.counter(key)(size)
    assert meter.total("device-lps", "down", "parent") == 107
    assert meter.total("device-lps", "up", "parent") == 0


def test_the_first_update_that_is_refused_is_an_increase() -> None:
    assert set(samples(ProcessMetrics("lps"))["fedstrata_updates_total"].values()) == {0}
    assert "fedstrata_updates_total" not in samples(ProcessMetrics("device"))


def test_a_snapshot_does_not_move() -> None:
    meter = LinkMeter()
    add = meter.counter(MODEL_DOWN)
    add(1)
    snapshot = meter.snapshot()
    add(1)
    assert dict(snapshot) == {MODEL_DOWN: 1}


def test_link_bytes_are_exposed_with_their_four_labels() -> None:
    metrics = ProcessMetrics("lps")
    metrics.links.counter(MODEL_DOWN)(1234)
    labels = (("direction", "down"), ("end", "parent"), ("kind", "model"), ("link", "device-lps"))
    assert samples(metrics)["fedstrata_link_bytes_total"] == {labels: 1234}


def test_the_staleness_of_taken_updates_is_exposed() -> None:
    metrics = ProcessMetrics("lps")
    assert not [name for name in samples(metrics) if "staleness" in name]
    metrics.taken([0, 0, 3])
    metrics.taken([])
    found = samples(metrics)
    assert found["fedstrata_update_staleness_rounds_sum"] == {(("tier", "lps"),): 3}
    counted = found["fedstrata_update_staleness_rounds_bucket"]
    assert [counted[("le", le), ("tier", "lps")] for le in ("0.0", "2.0", "5.0", "+Inf")] == [2, 2, 3, 3]


def test_rounds_updates_and_devices_are_exposed() -> None:
    metrics = ProcessMetrics("gps")
    metrics.round_opened(3)
    metrics.round_closed(0.3)
    for outcome in ("accepted", "accepted", "late"):
        metrics.update(outcome)
    metrics.devices({"enrolled": 4, "absent": 1})
    metrics.devices({"enrolled": 5, "absent": 0})
    found = samples(metrics)
    assert found["fedstrata_round"] == {(("tier", "gps"),): 3}
    assert found["fedstrata_round_duration_seconds_count"] == {(("tier", "gps"),): 1}
    assert found["fedstrata_round_duration_seconds_sum"] == {(("tier", "gps"),): 0.3}
    assert found["fedstrata_updates_total"] == {
        (("outcome", "accepted"), ("tier", "gps")): 2,
        (("outcome", "late"), ("tier", "gps")): 1,
        (("outcome", "rejected"), ("tier", "gps")): 0,
    }
    assert found["fedstrata_devices"] == {(("state", "enrolled"),): 5, (("state", "absent"),): 0}


def test_a_clusters_accuracy_and_loss_are_the_last_measured() -> None:
    metrics = ProcessMetrics("gps")
    gauges = {"accuracy": "accuracy_ratio", "rmse": "rmse"}
    metrics.evaluated("lps-0", gauges, {"loss": 2.0, "accuracy": 0.5, "rmse": 3.0})
    metrics.evaluated("lps-0", gauges, {"loss": 0.7, "accuracy": 0.9, "rmse": 2.5})
    metrics.evaluated("lps-1", gauges, {"loss": 1.0, "accuracy": 0.8, "rmse": None})
    found = samples(metrics)
    assert found["fedstrata_accuracy_ratio"] == {(("lps_id", "lps-0"),): 0.9, (("lps_id", "lps-1"),): 0.8}
    assert found["fedstrata_rmse"] == {(("lps_id", "lps-0"),): 2.5}
    assert found["fedstrata_loss"] == {(("lps_id", "lps-0"),): 0.7, (("lps_id", "lps-1"),): 1.0}


def test_a_process_shows_what_it_takes_of_the_machine() -> None:
    found = samples(ProcessMetrics("device"))
    assert found["process_resident_memory_bytes"][()] > 1e6
    assert found["process_cpu_seconds_total"][()] > 0


def test_two_processes_in_one_interpreter_do_not_share_counts() -> None:
    one, other = ProcessMetrics("lps"), ProcessMetrics("lps")
    one.update("accepted")
    assert set(samples(other)["fedstrata_updates_total"].values()) == {0}


def test_a_process_shows_when_its_certificate_ends_and_how_full_the_disk_with_its_state_is(tmp_path: Path) -> None:
    metrics, ends = ProcessMetrics("lps"), iter((1_800_000_000.0, 1_900_000_000.0))
    metrics.certificate(lambda: next(ends))
    metrics.state(tmp_path)
    shown = [samples(metrics) for _ in range(2)]
    assert [found["fedstrata_certificate_end_timestamp_seconds"][()] for found in shown] == [1.8e9, 1.9e9]
    assert all(0 < found["fedstrata_state_free_ratio"][()] < 1 for found in shown)


def test_a_process_without_certificate_and_with_a_lost_folder_shows_neither(tmp_path: Path) -> None:
    metrics = ProcessMetrics("device")
    assert not {"fedstrata_certificate_end_timestamp_seconds", "fedstrata_state_free_ratio"} & {*samples(metrics)}
    metrics.state(tmp_path / "gone")
    assert math.isnan(samples(metrics)["fedstrata_state_free_ratio"][()])
