"""The report in a browser: what it shows, to whom, and what can be saved of it."""

from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

from emulator.results.report import write_report
from tests.support.record_files import write_record
from tests.support.window import Page

Browser = Callable[..., Page]


def opened(page: Page, folder: Path) -> Page:
    """A record's report in a browser, drawn."""
    page.open(write_report(folder).as_uri())
    page.until("document.body.dataset.phase")
    return page


def click_all(page: Page, words: str) -> None:
    """Press all buttons that can be seen and say `words`."""
    for button in page.run("return [...document.querySelectorAll('button')].filter((button) => button.offsetParent)"):
        if button.text == words:
            button.click()


def wait_until_saved(page: Page, suffix: str, stems: set[str]) -> None:
    """Wait until the saved files of a kind are exactly these."""
    # Chromium makes an empty file of the name first, and moves the whole one over it.
    saved = lambda: {path.stem for path in page.folder.glob(f"*.{suffix}") if path.stat().st_size}  # noqa: E731
    WebDriverWait(page.driver, 30, 0.1).until(lambda _: saved() == stems)


def test_the_page_says_what_the_record_says_and_asks_nobody(browser: Browser, tmp_path: Path) -> None:
    page = opened(browser(1600), write_record(tmp_path / "run"))
    for said in ("two-tasks", "completed", "86.0 %", "1.000", "1 min 02 s", "9.10 kB", "one_shot"):
        assert said in page.text
    # cluster lps-0: three devices, 600 B up and 660 B down in its two rounds, which took 1 s, last loss 0.75
    assert "lps-0 3 clothes 3 90.0 % 0.750 1.0 s 660 B 600 B 121212121212" in page.text
    assert "bags 2 lps-1 (2) 80.0 %" in page.text
    assert "Mean relevance is 0.90 within clusters and 0.30 between them" in page.text
    assert page.asked == set()
    assert page.console == []


def test_the_page_says_what_devices_took_where_energy_was_counted(browser: Browser, tmp_path: Path) -> None:
    by_device = {"device-000": 10.0, "device-004": 30.0}
    energy = {"joules": 40.0, "down": 1.0, "compute": 30.0, "up": 9.0, "late": 0.05, "by_device": by_device}
    page = opened(browser(1600), write_record(tmp_path / "run", energy=energy))
    assert "40.0 J, 20.0 J a mean device. 50.0 mJ went into updates that missed their round." in page.text
    assert "computing 30.0 J" in page.text
    assert "device-004 30.0 J" in page.text
    assert page.console == []
    plain = opened(browser(1600), write_record(tmp_path / "plain"))
    assert "Energy by part" not in plain.text


def test_the_page_says_how_stale_updates_of_asynchronous_rounds_are(browser: Browser, tmp_path: Path) -> None:
    counts = {"updates": 2500, "staleness": {0: 1500, 1: 900, 3: 100}, "fewest": 0, "most": 75, "never": ["device-004"]}
    page = opened(browser(1600), write_record(tmp_path / "run", asynchronous=counts))
    assert "Asynchronous rounds" in page.text
    assert "updates, of a device 0 to 75. Without any: device-004." in page.text
    assert page.console == []
    plain = opened(browser(1600), write_record(tmp_path / "plain"))
    assert "Asynchronous rounds" not in plain.text


def test_what_is_wall_time_is_called_so_beside_virtual_time(browser: Browser, tmp_path: Path) -> None:
    parts = {"down": 1.0, "compute": 2.0, "up": 3.0, "waiting": 4.0}
    virtual = {"seconds": 3600.0, "before": parts, "gps": parts, "lps": parts, "timeline_sha256": ""}
    page = opened(browser(1600), write_record(tmp_path / "run", virtual=virtual))
    assert page.fact("Virtual time") == "1 h 00 min"
    assert page.fact("Wall time") == "1 min 02 s"
    assert "Newest round by wall time" in page.text
    assert "Total time" not in page.text


def test_every_figure_says_in_words_what_it_shows(browser: Browser, tmp_path: Path) -> None:
    page = opened(browser(1600), write_record(tmp_path / "run"))
    said = page.run("return [...document.querySelectorAll('figure svg')].map((svg) => svg.getAttribute('aria-label'))")
    assert len(said) == 7
    assert all(label and len(label) > 10 for label in said)
    assert "lps-0 ends at 90.000, lps-1 ends at 80.000" in " ".join(said)


def test_a_failed_run_says_why(browser: Browser, tmp_path: Path) -> None:
    nothing: dict[str, object] = {
        "clusters": {},
        "accuracy": {},
        "task_accuracy": None,
        "bytes": {},
        "wall_seconds": {},
    }
    folder = write_record(
        tmp_path / "run", status="failed", reason="quorum of lps-1 not reached", rounds=(), device_tasks=None, **nothing
    )
    page = opened(browser(1600), folder)
    assert "This run failed: quorum of lps-1 not reached" in page.text
    assert "The run ended before its devices were grouped." in page.text
    assert "No LPS round was completed." in page.text
    assert page.console == []


def test_more_clusters_than_colours_are_drawn_with_their_median(browser: Browser, tmp_path: Path) -> None:
    ids = [f"device-{index:03d}" for index in range(70)]
    clusters = {f"lps-{index}": [device] for index, device in enumerate(ids)}
    rounds = [(number, number, lps_id, 1, 9, 1, 0.5, 1, 5, 5) for lps_id in clusters for number in (1, 2)]
    relevance: list[list[object]] = [["", *ids], *([a, *(1.0 if a == b else 0.5 for b in ids)] for a in ids)]
    folder = write_record(
        tmp_path / "run",
        clusters=clusters,
        rounds=rounds,
        devices=70,
        accuracy={},
        device_tasks=None,
        relevance=relevance,
    )
    page = opened(browser(400), folder)
    assert "median" in page.figure_text
    assert "and 10 LPSs more" in page.text
    assert page.run("return document.scrollingElement.scrollWidth") <= 400
    assert page.console == []


def test_events_are_told_in_the_order_in_which_they_came(browser: Browser, tmp_path: Path) -> None:
    folder = write_record(
        tmp_path / "run",
        excluded=[{"device": "device-004", "from": "evaluation", "reason": "no report"}],
        adoptions=[{"cluster": "lps-1", "by": "lps-0", "from": "global round 2"}],
        replanned=[{"global_round": 1, "clusters": 2, "moved": 3}],
        lost_state=["device-001"],
    )
    page = opened(browser(1600), folder)
    words = ["began anew", "planned again", "adopted", "excluded"]
    events = page.text[page.text.index("4 events") :]
    assert sorted(words, key=events.index) == words
    assert "3 devices moved" in events


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [400, 1600])
def test_nothing_serious_keeps_anybody_from_reading_it(
    browser: Browser, tmp_path: Path, width: int, is_dark: bool
) -> None:
    page = opened(browser(width, is_dark=is_dark), write_record(tmp_path / "run"))
    page.run("for (const details of document.querySelectorAll('details')) details.open = true")
    page.until("document.querySelector('details table')")
    assert page.faults() == []
    assert page.run("return document.scrollingElement.scrollWidth") <= width


def test_devices_are_found_by_the_keyboard_alone(browser: Browser, tmp_path: Path) -> None:
    page = opened(browser(1600), write_record(tmp_path / "run"))
    keys = ActionChains(page.driver)
    for _ in range(60):
        keys.send_keys(Keys.TAB).perform()
        if page.run("return document.activeElement.textContent === 'Devices, one by one'"):
            break
    keys.send_keys(Keys.ENTER).perform()
    page.until("document.querySelector('details').open")
    keys.send_keys(Keys.TAB).send_keys("bags").perform()
    page.until("document.querySelectorAll('details tbody tr').length === 2")
    assert "device-002" in page.text


def test_figures_are_saved_as_files_that_stand_alone(browser: Browser, tmp_path: Path) -> None:
    page = opened(browser(1600, is_dark=True), write_record(tmp_path / "run"))
    click_all(page, "Save as SVG")
    expected = {
        "topology",
        "accuracy",
        "loss",
        "newest-round-by-wall-time",
        "bytes-over-rounds",
        "bytes-by-link",
        "relevance",
    }
    wait_until_saved(page, "svg", expected)
    for path in page.folder.glob("*.svg"):
        text = path.read_text(encoding="utf-8")
        ElementTree.fromstring(text)
        assert "var(" not in text
        assert 'color="#1f2933"' in text  # the light ink, though the page is dark


def test_numbers_behind_figures_are_saved_as_csv(browser: Browser, tmp_path: Path) -> None:
    counts = {"updates": 24, "staleness": {0: 15, 2: 9}, "fewest": 0, "most": 20, "never": []}
    measured = {"device-000": 0.9, "device-004": 0.75}
    page = opened(browser(400), write_record(tmp_path / "run", asynchronous=counts, device_accuracy=measured))
    click_all(page, "Save as CSV")
    stems = {"accuracy", "loss", "devices", "newest-round-by-wall-time", "bytes-over-rounds", "bytes-by-link"}
    wait_until_saved(page, "csv", stems | {"asynchronous-rounds"})
    rows = {path.stem: path.read_text(encoding="utf-8").splitlines() for path in page.folder.glob("*.csv")}
    assert rows["accuracy"] == [
        "global_round,lps_round,lps_id,accuracy,lowest_accuracy,highest_accuracy,cohort_accuracy,seconds,bytes_up,bytes_down",
        "1,1,lps-1,0.5,,,,0.25,200,220",
        "2,2,lps-0,0.9,,,,0.5,300,330",
        "2,2,lps-1,0.8,,,,0.25,200,220",
    ]
    assert rows["loss"][1:3] == ["1,1,lps-0,1.5,0.5,300,330", "1,1,lps-1,1.25,0.25,200,220"]
    assert rows["devices"] == [
        "device,task,cluster,lps_id,accuracy",
        "device-000,clothes,lps-0,lps-0,0.9",
        "device-004,bags,lps-1,lps-1,0.75",
    ]
    assert rows["newest-round-by-wall-time"][-1] == "2,2,lps-1,0.25"
    assert rows["bytes-over-rounds"] == ["lps_round,bytes_down,bytes_up", "1,550,500", "2,1100,1000"]
    assert rows["bytes-by-link"][1] == "device-gps,4500,1500"
    assert rows["asynchronous-rounds"] == ["staleness,updates", "0,15", "2,9"]
    assert page.console == []


def test_a_text_with_commas_and_quotes_stays_one_value_of_a_csv(browser: Browser, tmp_path: Path) -> None:
    page = opened(browser(400), write_record(tmp_path / "run"))
    file = page.run("return fedstrata.csvFile([{ a: 'x,\"y\"', b: null }, { a: 1.5, b: 'z' }])")
    assert file == 'a,b\r\n"x,""y""",\r\n1.5,z\r\n'
