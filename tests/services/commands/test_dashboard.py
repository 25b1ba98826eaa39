"""Every panel of the dashboard shows something of a real run, asked of a real Prometheus, and what is so."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.hand_started import Processes
from tests.support.programs import REPOSITORY
from tests.support.prometheus import BINARY, OF_RELEASE, STEP_S, Prometheus
from tests.support.records import summary_of

pytestmark = [
    pytest.mark.runs,
    pytest.mark.skipif(BINARY is None, reason="no prometheus here (Debian's package prometheus)"),
]

DASHBOARD = json.loads((REPOSITORY / "helm" / "fedstrata" / "files" / "dashboard.json").read_text())
EXPERIMENT = (REPOSITORY / "experiments" / "digits.yaml").read_text()
# A process of devices dies in the fourth LPS round; it is started again once Prometheus knows who is waited for.
DIES = {"point": "upload", "round": 3}
VARIABLES = {"$namespace": "lab", "$release": "demo", "$__rate_interval": "1s"}
WAITED_FOR = "The longest waits"


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What one query of a panel gives: the numbers of each series, one or a line of them."""

    panel: str
    query: str
    lines: dict[str, list[float]]

    @property
    def values(self) -> dict[str, float]:
        """The last of each."""
        return {name: line[-1] for name, line in self.lines.items()}

    @property
    def text(self) -> str:
        """As a table has it; of rates, which are zero in the end, the highest."""
        chosen = {name: max(line) for name, line in self.lines.items()} if "rate(" in self.query else self.values
        return " · ".join(f"{name} {number(value)}".removeprefix("- ") for name, value in chosen.items())


@dataclass(frozen=True, kw_only=True)
class Watched:
    """A finished run, what the dashboard shows at its end, and what of the waits while it was held up."""

    summary: dict[str, Any]
    at_the_end: list[Shown]
    held_up: list[Shown]
    names: dict[str, list[str]]  # that the dashboard offers to choose from

    def panel(self, title: str) -> dict[str, float]:
        (shown,) = [shown for shown in self.at_the_end if shown.panel == title]
        return shown.values


def queries() -> Iterator[tuple[str, str, str]]:
    """Panel, its type, and its query in short; rows have none."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], panel["type"], target["expr"]


def asked(prometheus: Prometheus, since: float, until: float) -> list[Shown]:
    """What Grafana would show: lines over the time of the run, everything else as it is now."""
    found = []
    for panel, kind, query in queries():
        filled = query
        for name, value in VARIABLES.items():
            filled = filled.replace(name, value)
        over_time = kind == "timeseries"
        lines = prometheus.over_time(filled, since, until) if over_time else prometheus.now(filled)
        found.append(Shown(panel=panel, query=query, lines=lines))
    return found


@pytest.fixture(scope="module")
def watched(folder: Path) -> Iterator[Watched]:
    with Prometheus(folder / "prometheus") as prometheus, Processes(folder / "run", EXPERIMENT) as run:
        scraped = {("gps", 0): run.http}
        for number in range(3):
            scraped["lps", number] = run.lps(number).addresses()["http"]
        scraped["device", 0] = run.devices("0-4", stays=True).addresses()["http"]
        dies = json.dumps([{**DIES, "marker": str(folder / "died")}])
        scraped["device", 1] = run.devices("5-9", stays=True, environment={"FEDSTRATA_DIE_AT": dies}).addresses()[
            "http"
        ]
        prometheus.scrape(scraped)
        since = prometheus.until('fedstrata_devices{state="enrolled"}')
        until = prometheus.until("fedstrata_waits_seconds")
        held_up = asked(prometheus, since, until)
        scraped["device", 1] = run.devices("5-9", stays=True).addresses()["http"]
        prometheus.scrape(scraped)
        over = prometheus.until('fedstrata_phase{phase="completed"} == 1 and on () fedstrata_awaited == 0')
        until = prometheus.until(f"count(up == 1 and timestamp(up) > {over}) == {len(scraped)}")
        names = {name: prometheus.label_values(name, "fedstrata_run_info") for name in OF_RELEASE}
        at_the_end = asked(prometheus, since, until + STEP_S)
        summary = summary_of(run.record())
        yield Watched(summary=summary, at_the_end=at_the_end, held_up=held_up, names=names)


def short(query: str) -> str:
    """A query without what chooses the release, which every one has."""
    return query.replace('namespace="$namespace",app_kubernetes_io_instance="$release",', "").replace(
        '{namespace="$namespace",app_kubernetes_io_instance="$release"}', ""
    )


def number(value: float) -> str:
    return f"{value:.0f}" if value.is_integer() or value >= 1000 else f"{value:.3g}"


def table(shown: list[Shown]) -> str:
    """Panel, query and value as rows of a document's table."""
    return "".join(
        "| {} | `{}` | {} |\n".format(one.panel, short(one.query).replace("|", "\\|"), one.text) for one in shown
    )


def test_no_panel_is_empty(watched: Watched) -> None:
    text = table(watched.at_the_end) + table([shown for shown in watched.held_up if shown.panel == WAITED_FOR])
    print(text)
    assert not [(shown.panel, shown.query) for shown in watched.at_the_end if not shown.lines]
    rates = [shown for shown in watched.at_the_end if "rate(" in shown.query]
    assert not [shown.panel for shown in rates if not any(max(line) > 0 for line in shown.lines.values())]
    assert len(watched.at_the_end) >= 20


def test_the_panels_say_what_the_record_says(watched: Watched) -> None:
    summary = watched.summary
    assert watched.panel("Phase") == {"completed": 1}
    assert list(watched.panel("Run")) == [f"digits one_shot {summary['run_id']}"]
    assert watched.panel("Global rounds done") == {"-": 1}
    assert watched.panel("Time left") == {"-": 0}
    assert watched.panel("Devices")["assigned"] == 10
    assert watched.panel("Processes that answer") == {"gps": 1, "lps": 3, "device": 2}
    clusters = {name: value for name, value in summary["accuracy"].items() if name != "mean"}
    assert watched.panel("Accuracy") == pytest.approx(clusters, abs=1e-6)
    by_link = {link: both["up"] + both["down"] for link, both in summary["bytes"].items()}
    assert watched.panel("Bytes so far") == by_link
    below = by_link["device-lps"] / sum(by_link.values())
    assert watched.panel("Share of bytes below the GPS") == {"-": pytest.approx(below)}
    assert watched.panel("Bytes per global round") == {"-": (by_link["device-lps"] + by_link["lps-gps"]) / 8}
    by_kind = watched.panel("Bytes so far, by kind")
    assert sum(by_kind.values()) == sum(by_link.values())


def test_who_is_waited_for_is_named_and_afterwards_nobody(watched: Watched) -> None:
    (held_up,) = [shown.values for shown in watched.held_up if shown.panel == WAITED_FOR]
    assert set(held_up) <= {f"device-00{number}" for number in range(5, 10)} | {"lps-0", "lps-1", "lps-2"}
    assert any(name.startswith("device-") and seconds > 5 for name, seconds in held_up.items())
    assert watched.panel(WAITED_FOR) == {"nobody": 0}
    assert watched.panel("Devices and LPSs waited for") == {"-": 0}


def test_the_dashboard_offers_the_namespace_and_the_release(watched: Watched) -> None:
    asks = [variable["query"] for variable in DASHBOARD["templating"]["list"] if variable["type"] == "query"]
    assert [re.sub(r"\{.*\}", "", ask) for ask in asks] == [
        f"label_values(fedstrata_run_info, {name})" for name in OF_RELEASE
    ]
    assert watched.names == {name: [value] for name, value in OF_RELEASE.items()}
