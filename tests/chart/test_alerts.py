"""The alerts on recorded series: five runs that are well and seven that are not, as promtool judges them."""

import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from charts import CHART, one, render, values_of

PROMTOOL = shutil.which("promtool")
OF = 'namespace="lab",app_kubernetes_io_instance="demo"'
ALERTS = (
    "FedstrataGpsAbsent", "FedstrataRunStalled", "FedstrataWaits", "FedstrataRunFailed", "FedstrataUpdatesRejected",
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
WELL = {
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
    "a run that failed": Story(series=run("failed", "0x240"), minute=90, fires={"FedstrataRunFailed": {}}),
    "updates that are refused": Story(
        series=run("training", EACH_MINUTE, **{
            'fedstrata_updates_total{OF,tier="lps",outcome="rejected"}': "0 0 0 1x200",
        }),
        minute=5, fires={"FedstrataUpdatesRejected": {"tier": "lps"}},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def rules() -> list[dict[str, Any]]:
    found = one(render(values_of(CHART / "ci" / "monitored.yaml")), "PrometheusRule", "demo-fedstrata")
    groups: list[dict[str, Any]] = found["spec"]["groups"]
    return groups


def judged(story: Story, rules: list[dict[str, Any]], folder: Path) -> subprocess.CompletedProcess[str]:
    """What promtool says of a story."""
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": rules}))
    annotations = {rule["alert"]: rule["annotations"] for group in rules for rule in group["rules"] if "alert" in rule}
    expected = []
    for name in ALERTS:
        fires = [
            {
                "exp_labels": {"severity": "warning", **labels},
                "exp_annotations": {
                    key: text.replace("{{ $labels.who }}", labels.get("who", "")).replace(
                        "{{ $labels.tier }}", labels.get("tier", "")
                    )
                    for key, text in annotations[name].items()
                },
            }
            for alert, labels in story.fires.items()
            if alert == name
        ]
        expected.append({"eval_time": f"{story.minute}m", "alertname": name, "exp_alerts": fires})
    series = [{"series": name.replace("OF", OF), "values": values} for name, values in story.series.items()]
    test = {"interval": "1m", "input_series": series, "alert_rule_test": expected}
    (folder / "test.yaml").write_text(
        yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [test]})
    )
    command = [str(PROMTOOL), "test", "rules", str(folder / "test.yaml")]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.skipif(PROMTOOL is None, reason="needs promtool, which comes with Prometheus")
@pytest.mark.parametrize("name", [*WELL, *SICK])
def test_what_is_well_fires_nothing_and_what_is_not_its_own_alert(
    name: str, rules: list[dict[str, Any]], tmp_path: Path
) -> None:
    done = judged((WELL | SICK)[name], rules, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(PROMTOOL is None, reason="needs promtool, which comes with Prometheus")
def test_promtool_would_say_so_if_an_alert_were_missing(rules: list[dict[str, Any]], tmp_path: Path) -> None:
    story = WELL["boards that take 50 minutes a round"]
    wrong = Story(series=story.series, minute=story.minute, fires={"FedstrataRunStalled": {}})
    assert judged(wrong, rules, tmp_path).returncode != 0
