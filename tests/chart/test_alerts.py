"""The alerts as promtool judges them: on series of real runs, and on some of hours that are written by hand.

record_series.py made recorded/*.json: five runs of eight minutes that are well, and six that are not.
"""

import json
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.charts import CHART, ROOT, one, render, values_of

HERE = Path(__file__).parent
PROMTOOL = shutil.which("promtool")
OF = 'namespace="lab",app_kubernetes_io_instance="demo"'
ALERTS = (
    "FedstrataGpsAbsent", "FedstrataRunStalled", "FedstrataWaits", "FedstrataRunFailed", "FedstrataUpdatesRejected",
    "FedstrataVolumeFull", "FedstrataCertificateExpires", "FedstrataRestarts",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Story:
    """A run as it was scraped once a minute, in promtool's notation of series, and what fires at a minute of it."""

    series: dict[str, str]
    minute: int
    fires: dict[str, dict[str, str]] = field(default_factory=dict)  # by alert its labels


def run(phase: str, progress: str, **others: str) -> dict[str, str]:
    """The series of a GPS that is scraped over four hours."""
    phases = {name: "1x240" if name == phase else "0x240" for name in ("enrolment", "training", "completed", "failed")}
    return {
        "fedstrata_run_info{OF}": "1x240",
        "fedstrata_progress_timestamp_seconds{OF}": progress,
        **{f'fedstrata_phase{{OF,phase="{name}"}}': values for name, values in phases.items()},
        **others,
    }


EACH_MINUTE = "0+60x240"
DAY_S = 86400
IN_A_WEEK, IN_A_MONTH = (f"{days * DAY_S}x240" for days in (7, 30))  # promtool's time begins at 0
OF_LPS = 'pod="lps-0"'
CRITICAL = {"FedstrataGpsAbsent", "FedstrataRunFailed", "FedstrataVolumeFull"}
WELL = {
    "a certificate that ends in a month and a volume that is half full": Story(
        series=run("training", EACH_MINUTE, **{
            f"fedstrata_certificate_end_timestamp_seconds{{OF,{OF_LPS}}}": IN_A_MONTH,
            f"fedstrata_state_free_ratio{{OF,{OF_LPS}}}": "0.5x240",
        }),
        minute=60,
    ),
    "a volume that is full for a moment": Story(
        series=run("training", EACH_MINUTE, **{f"fedstrata_state_free_ratio{{OF,{OF_LPS}}}": "0.5x30 0.05x2 0.5x90"}),
        minute=34,
    ),
    "a pod that is replaced twice": Story(
        series=run("training", EACH_MINUTE, **{
            f"process_start_time_seconds{{OF,{OF_LPS}}}": "0x10 600x10 1200x40",
        }),
        minute=25,
    ),
    "devices enrol for two hours and no round is open": Story(series=run("enrolment", EACH_MINUTE), minute=120),
    "a GPS that was restarted after the end of its run": Story(series=run("completed", "0x240"), minute=200),
    "boards that take 50 minutes a round": Story(
        series=run("training", "0x49 3000x49 6000x49 9000x90"), minute=148
    ),
    "a run of a single round that takes half an hour": Story(
        series=run("training", "0x240", **{'fedstrata_round{OF,tier="gps"}': "0x240"}), minute=30
    ),
    "a device pod that comes back after eight minutes": Story(
        series=run("training", EACH_MINUTE, **{'fedstrata_waits_seconds{OF,who="device-003"}': "0+60x8 stale"}),
        minute=9,
    ),
}  # fmt: skip
SICK = {
    "no GPS": Story(
        series={"up": "1x240"}, minute=6,
        fires={"FedstrataGpsAbsent": {"namespace": "lab", "app_kubernetes_io_instance": "demo"}},
    ),
    "a stall in enrolment": Story(series=run("enrolment", "600x240"), minute=75, fires={"FedstrataRunStalled": {}}),
    "a stall in the first round": Story(
        series=run("training", "600x240", **{'fedstrata_round{OF,tier="gps"}': "0x240"}), minute=75,
        fires={"FedstrataRunStalled": {}},
    ),
    "a stall in the last round of twenty": Story(
        series=run("training", "600x240", **{'fedstrata_round{OF,tier="gps"}': "19x240"}), minute=75,
        fires={"FedstrataRunStalled": {}},
    ),
    "a device that is gone": Story(
        series=run("training", EACH_MINUTE, **{'fedstrata_waits_seconds{OF,who="device-003"}': EACH_MINUTE}),
        minute=13, fires={"FedstrataWaits": {"who": "device-003"}},
    ),
    "a certificate that ends in a week": Story(
        series=run("training", EACH_MINUTE, **{
            f"fedstrata_certificate_end_timestamp_seconds{{OF,{OF_LPS}}}": IN_A_WEEK,
            'fedstrata_certificate_end_timestamp_seconds{OF,pod="gps-0"}': IN_A_MONTH,
        }),
        minute=7, fires={"FedstrataCertificateExpires": {"pod": "lps-0"}},
    ),
    "a volume with a twentieth left": Story(
        series=run("training", EACH_MINUTE, **{
            f"fedstrata_state_free_ratio{{OF,{OF_LPS}}}": "0.5x10 0.05x100",
            'fedstrata_state_free_ratio{OF,pod="gps-0"}': "0.5x240",
        }),
        minute=20, fires={"FedstrataVolumeFull": {"pod": "lps-0"}},
    ),
    "a process that is started again and again": Story(
        series=run("training", EACH_MINUTE, **{
            f"process_start_time_seconds{{OF,{OF_LPS}}}": "0x5 300x5 600x5 900x40",
        }),
        minute=20, fires={"FedstrataRestarts": {"pod": "lps-0"}},
    ),
    "a run that failed": Story(series=run("failed", "0x240"), minute=90, fires={"FedstrataRunFailed": {}}),
    "updates that are refused": Story(
        series=run("training", EACH_MINUTE, **{
            'fedstrata_updates_total{OF,tier="lps",outcome="rejected"}': "0 0 0 1x200",
        }),
        minute=5, fires={"FedstrataUpdatesRejected": {"tier": "lps"}},
    ),
}  # fmt: skip


# What fires of each recorded run, in the end; in the same order as record_series.py has them.
RECORDED: dict[str, list[tuple[str, dict[str, str]]]] = {
    "devices_that_enrol_one_by_one": [],
    "a_gps_restarted_after_the_end_of_its_run": [],
    "a_gps_killed_and_back_in_training": [],
    "slow_boards": [],
    "a_device_that_comes_back": [],
    "no_gps": [("FedstrataGpsAbsent", {"namespace": "lab", "app_kubernetes_io_instance": "demo"})],
    "a_stall_in_enrolment": [("FedstrataRunStalled", {}), ("FedstrataWaits", {"who": "device-004"})],
    "a_stall_in_the_first_round": [("FedstrataRunStalled", {}), ("FedstrataWaits", {"who": "device-004"})],
    "a_device_that_is_gone": [("FedstrataRunStalled", {}), ("FedstrataWaits", {"who": "device-004"})],
    "a_run_that_fails": [("FedstrataRunFailed", {})],
    "updates_that_are_refused": [("FedstrataUpdatesRejected", {"tier": "lps"})],
}
EVERY_S, LENGTH_S = 5, 480
IN_MINUTES = {"stalledAfterSeconds": 180, "waitsAfterSeconds": 60}  # the recorded runs are of eight minutes


def rules_of(**changes: int) -> list[dict[str, Any]]:
    """The chart's rules, with other limits."""
    values = values_of(CHART / "ci" / "monitored.yaml")
    values["prometheusRule"] |= changes
    found = one(render(values), "PrometheusRule", "demo-fedstrata")
    groups: list[dict[str, Any]] = found["spec"]["groups"]
    return groups


@pytest.fixture(scope="module")
def rules() -> list[dict[str, Any]]:
    return rules_of()


@pytest.fixture(scope="module")
def short_rules() -> list[dict[str, Any]]:
    return rules_of(**IN_MINUTES)


Fires = list[tuple[str, dict[str, str]]]  # alerts and their labels


def judged(
    series: dict[str, str], every: str, fires: dict[str, Fires], rules: list[dict[str, Any]], folder: Path
) -> subprocess.CompletedProcess[str]:
    """What promtool says of series if this fires at these times, and nothing else does."""
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": rules}))
    annotations = {rule["alert"]: rule["annotations"] for group in rules for rule in group["rules"] if "alert" in rule}
    expected = [
        {
            "eval_time": time,
            "alertname": name,
            "exp_alerts": [
                {
                    "exp_labels": {"severity": "critical" if name in CRITICAL else "warning", **labels},
                    "exp_annotations": _filled(annotations[name], labels),
                }
                for alert, labels in firing
                if alert == name
            ],
        }
        for time, firing in fires.items()
        for name in ALERTS
    ]
    found = [{"series": name.replace("OF", OF), "values": values} for name, values in series.items()]
    test = {"interval": every, "input_series": found, "alert_rule_test": expected}
    (folder / "test.yaml").write_text(
        yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": every, "tests": [test]})
    )
    command = [str(PROMTOOL), "test", "rules", str(folder / "test.yaml")]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def _filled(annotations: dict[str, str], labels: dict[str, str]) -> dict[str, str]:
    """Annotations with the labels in their places."""
    for name in ("who", "tier", "pod"):
        mark = f"{{{{ $labels.{name} }}}}"
        annotations = {key: text.replace(mark, labels.get(name, "")) for key, text in annotations.items()}
    return annotations


def judged_story(story: Story, rules: list[dict[str, Any]], folder: Path) -> subprocess.CompletedProcess[str]:
    return judged(story.series, "1m", {f"{story.minute}m": list(story.fires.items())}, rules, folder)


@pytest.mark.skipif(PROMTOOL is None, reason="needs promtool, which comes with Prometheus")
@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_run_that_is_well_fires_nothing_and_one_that_is_not_what_is_wrong(
    name: str, short_rules: list[dict[str, Any]], tmp_path: Path
) -> None:
    recorded = json.loads((HERE / "recorded" / f"{name}.json").read_text())
    wrong_s = recorded["began_s"] if RECORDED[name] else LENGTH_S
    fires: dict[str, Fires] = {f"{seconds}s": [] for seconds in range(0, wrong_s, 30)}  # until something is wrong
    fires[f"{LENGTH_S - EVERY_S}s"] = RECORDED[name]
    done = judged(recorded["series"], f"{EVERY_S}s", fires, short_rules, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(PROMTOOL is None, reason="needs promtool, which comes with Prometheus")
@pytest.mark.parametrize("name", [*WELL, *SICK])
def test_what_is_well_fires_nothing_and_what_is_not_its_own_alert(
    name: str, rules: list[dict[str, Any]], tmp_path: Path
) -> None:
    done = judged_story((WELL | SICK)[name], rules, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(PROMTOOL is None, reason="needs promtool, which comes with Prometheus")
def test_promtool_would_say_so_if_an_alert_were_missing(rules: list[dict[str, Any]], tmp_path: Path) -> None:
    story = WELL["boards that take 50 minutes a round"]
    wrong = Story(series=story.series, minute=story.minute, fires={"FedstrataRunStalled": {}})
    assert judged_story(wrong, rules, tmp_path).returncode != 0


def test_every_alert_names_its_section_of_the_runbook(rules: list[dict[str, Any]]) -> None:
    runbook = (ROOT / "docs" / "runbook.md").read_text()
    alerts = [rule for group in rules for rule in group["rules"] if "alert" in rule]
    assert {rule["alert"] for rule in alerts} == {*ALERTS}
    assert [rule["annotations"]["runbook_url"] for rule in alerts] == [
        f"docs/runbook.md#{rule['alert'].lower()}" for rule in alerts
    ]
    assert all(f"## {rule['alert']}\n" in runbook for rule in alerts)


def test_the_address_of_the_runbook_is_a_value() -> None:
    values = values_of(CHART / "ci" / "monitored.yaml")
    values["prometheusRule"]["runbookUrl"] = "https://wiki.example/runbook"
    groups = one(render(values), "PrometheusRule", "demo-fedstrata")["spec"]["groups"]
    (gone,) = (rule for group in groups for rule in group["rules"] if rule.get("alert") == "FedstrataGpsAbsent")
    assert gone["annotations"]["runbook_url"] == "https://wiki.example/runbook#fedstratagpsabsent"
