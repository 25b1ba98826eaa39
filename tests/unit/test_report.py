"""The report is one page that stands alone, says what the record says and trusts nothing in it."""

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from record_files import IDS, relevance_rows, write_record

from emulator.record import Relevance, RoundRow, load_record
from emulator.report import write_report
from emulator.report.curves import cumulative_bytes, round_numbers
from emulator.report.heat_map import mean_relevance, stretches_of, tree_of
from emulator.report.style import labels_of, look_of, shorten, spread
from emulator.report.units import decimal, human_bytes, human_seconds, percent
from fedstrata.errors import DataError, OutputError

VOID = {"meta", "br", "img", "link", "input", "hr", "path", "use", "rect", "image"}
HOSTILE = "<script>alert(1)</script>\"'&$x_1$ $$name ${name} %s"


class Page(HTMLParser):
    """Tags, ids, references and text of a page; complains about tags that do not match."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            assert not name.startswith("on"), f"{name} would run a script"
            if name == "id":
                self.ids.append(value or "")
            if name in {"src", "href", "xlink:href", "srcset", "action", "data"}:
                self.references.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).replace("\u00a0", " ").split())


def page_of(folder: Path) -> Page:
    return Page(write_report(folder))


def round_row(**changes: Any) -> RoundRow:
    row: dict[str, Any] = {
        "global_round": 1, "lps_round": 1, "lps_id": "lps-0", "devices": 1, "num_examples": 1, "loss": None,
        "accuracy": None, "seconds": 1.0, "bytes_up": 1, "bytes_down": 2,
    }  # fmt: skip
    return RoundRow(**{**row, **changes})


def test_the_page_says_what_the_record_says(tmp_path: Path) -> None:
    page = page_of(write_record(tmp_path / "run"))
    for said in ("two-tasks", "completed", "86.0 %", "1.000", "1 min 02 s", "9.10 kB", "one_shot"):
        assert said in page.text
    # cluster lps-0: three devices, 600 B up and 660 B down in its two rounds, which took 1 s, last loss 0.75
    assert "lps-0 3 clothes 3 90.0 % 0.750 1.0 s 660 B 600 B 121212121212" in page.text
    assert "bags 2 lps-1 (2) 80.0 %" in page.text
    assert "Mean relevance is 0.90 within clusters and 0.30 between them" in page.text


def test_the_page_has_four_figures_each_with_a_title_and_a_description(tmp_path: Path) -> None:
    page = page_of(write_record(tmp_path / "run"))
    assert [page.tags.count(tag) for tag in ("svg", "title", "desc", "figcaption")] == [4, 5, 4, 4]
    assert len(re.findall(r'<svg [^>]*role="img"[^>]* aria-labelledby="(\w+)-title \1-desc"', page.source)) == 4


def test_ids_are_unique_and_references_stay_within_the_page(tmp_path: Path) -> None:
    page = page_of(write_record(tmp_path / "run"))
    assert len(set(page.ids)) == len(page.ids)
    within = {reference[1:] for reference in page.references if reference.startswith("#")}
    assert within
    assert within <= set(page.ids)


@pytest.mark.parametrize("count", [5, 70])
def test_nothing_is_fetched_from_anywhere(tmp_path: Path, count: int) -> None:
    ids = [f"device-{index:03d}" for index in range(count)]
    relevance: list[list[object]] = [["", *ids], *([a, *(1.0 if a == b else 0.5 for b in ids)] for a in ids)]
    clusters = {"lps-0": ids[:3], "lps-1": ids[3:]}
    page = page_of(write_record(tmp_path / "run", relevance=relevance, clusters=clusters, devices=count))
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert all(reference.startswith(("#", "data:image/png;base64,")) for reference in page.references)
    assert "@import" not in page.source
    assert set(re.findall(r"url\((.)", page.source)) <= {"#"}
    assert set(re.findall(r"https?://[^\s\"<]+", page.source)) == {
        "http://www.w3.org/2000/svg",  # names of XML name spaces, which no browser fetches
        "http://www.w3.org/1999/xlink",
    }


def test_what_a_record_says_is_text_never_markup(tmp_path: Path) -> None:
    clusters = {HOSTILE: [HOSTILE, "a", "b", "c", "d"]}
    ids = ["a", "b", "c", "d", HOSTILE]
    relevance: list[list[object]] = [["", *ids], *([a, *(1.0 if a == b else 0.5 for b in ids)] for a in ids)]
    rounds = [(1, 1, HOSTILE, 5, 5, 1, 0.5, 1, 1, 1)]
    excluded = [{"device": HOSTILE, "from": HOSTILE, "reason": HOSTILE}]
    folder = write_record(
        tmp_path / "run", name=HOSTILE, run_id=HOSTILE, method=HOSTILE, clusters=clusters, accuracy={HOSTILE: 0.5},
        clusters_rule=HOSTILE, task_accuracy={HOSTILE: 0.5}, wall_seconds={HOSTILE: 1.0}, excluded=excluded,
        model_sha256={HOSTILE: HOSTILE}, experiment_sha256=HOSTILE, device_tasks=dict.fromkeys(ids, HOSTILE),
        relevance=relevance, rounds=rounds, status="failed", reason=HOSTILE,
    )  # fmt: skip
    page = page_of(folder)
    assert "script" not in page.tags
    assert page.text.count(HOSTILE) >= 10


def test_a_method_without_profiles_gets_a_page_without_a_heat_map(tmp_path: Path) -> None:
    folder = write_record(tmp_path / "run", method="random")
    (folder / "relevance.csv").unlink()
    page = page_of(folder)
    assert page.tags.count("svg") == 3
    assert "There is no relevance matrix: the method groups devices by no such matrix." in page.text


def test_a_run_without_rounds_gets_a_page_without_curves(tmp_path: Path) -> None:
    page = page_of(write_record(tmp_path / "run", rounds=()))
    assert "No LPS round was completed." in page.text


def test_rounds_that_diverged_or_were_not_evaluated_are_drawn_without_their_values(tmp_path: Path) -> None:
    rounds = [(1, 1, "lps-0", 3, 300, "nan", "", 1, 1, 1), (1, 2, "lps-0", 3, 300, "inf", "", 1, 1, 1)]
    assert "not evaluated" in page_of(write_record(tmp_path / "run", rounds=rounds)).text


def test_a_failed_run_says_why(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"clusters": {}, "accuracy": {}, "task_accuracy": None, "bytes": {}, "wall_seconds": {}}
    folder = write_record(
        tmp_path / "run", status="failed", reason="quorum of lps-1 not reached", rounds=(), device_tasks=None, **changes
    )
    page = page_of(folder)
    assert "This run failed: quorum of lps-1 not reached" in page.text
    assert "The run ended before its devices were grouped." in page.text


def test_a_record_of_one_device_is_drawn(tmp_path: Path) -> None:
    folder = write_record(
        tmp_path / "run", clusters={"lps-0": ["device-000"]}, accuracy={"mean": None}, devices=1, device_tasks=None,
        relevance=[["", "device-000"], ["device-000", 1.0]], rounds=[(1, 1, "lps-0", 1, 9, 1, 0.5, 1, 5, 5)],
    )  # fmt: skip
    assert page_of(folder).tags.count("svg") == 4


def test_more_clusters_than_colours_are_drawn_with_their_median(tmp_path: Path) -> None:
    ids = [f"device-{index:03d}" for index in range(45)]
    clusters = {f"lps-{index}": [device] for index, device in enumerate(ids)}
    rounds = [(1, 1, lps_id, 1, 9, 1, 0.5, 1, 5, 5) for lps_id in clusters]
    page = page_of(write_record(tmp_path / "run", clusters=clusters, rounds=rounds, devices=45, accuracy={}))
    assert "median" in page.text


def test_the_same_record_gives_the_same_bytes(tmp_path: Path) -> None:
    folder = write_record(tmp_path / "run")
    first = write_report(folder).read_bytes()
    assert write_report(folder).read_bytes() == first


def test_excluded_devices_are_listed_with_their_reason(tmp_path: Path) -> None:
    excluded = [{"device": "device-009", "from": "enrolment", "reason": "started after the deadline of 30 s"}]
    page = page_of(write_record(tmp_path / "run", excluded=excluded))
    assert "device-009 enrolment started after the deadline of 30 s" in page.text


def test_a_damaged_record_leaves_no_page(tmp_path: Path) -> None:
    folder = write_record(tmp_path / "run")
    (folder / "summary.json").write_text("{")
    with pytest.raises(DataError, match="is not JSON"):
        write_report(folder)
    assert not (folder / "report.html").exists()


def test_a_page_that_cannot_be_written_is_an_output_error(tmp_path: Path) -> None:
    folder = write_record(tmp_path / "run")
    (folder / "report.html").mkdir()
    with pytest.raises(OutputError, match=r"cannot write .*report\.html"):
        write_report(folder)
    assert sorted(path.name for path in folder.iterdir() if path.name.startswith(".")) == []


def test_the_dendrogram_merges_the_closest_first_and_the_first_device_stands_on_top() -> None:
    matrix = np.array([[1.0, 0.2, 0.9], [0.2, 1.0, 0.4], [0.9, 0.4, 1.0]])
    tree = tree_of(Relevance(ids=("a", "b", "c"), matrix=matrix))
    assert tree.order == [0, 2, 1]
    # a with c at 1 − 0.9; b with both at the mean of 1 − 0.2 and 1 − 0.4
    assert tree.heights == pytest.approx([0.1, 0.7])
    assert len(tree.branches) == 6


def test_mean_relevance_counts_each_pair_once_and_leaves_out_the_unplaced(tmp_path: Path) -> None:
    record = load_record(write_record(tmp_path / "run", relevance=relevance_rows()))
    assert record.relevance is not None
    assert mean_relevance(record.relevance, record.summary.cluster_of_device) == pytest.approx((0.9, 0.3))
    assert mean_relevance(record.relevance, {IDS[0]: "lps-0"}) == (None, None)


def test_neighbouring_rows_of_a_cluster_make_one_stretch() -> None:
    stretches = stretches_of(["a", "b", "c", "d"], {"a": "x", "b": "x", "c": "y"})
    assert stretches == [("x", 0, 2), ("y", 2, 3), ("–", 3, 4)]


def test_lps_rounds_count_over_the_run_however_the_file_counts_them() -> None:
    through = [round_row(global_round=1 + i // 2, lps_round=i + 1) for i in range(4)]
    anew = [round_row(global_round=1 + i // 2, lps_round=1 + i % 2) for i in range(4)]
    assert round_numbers(through) == round_numbers(anew) == [1, 2, 3, 4]


def test_bytes_add_up_over_clusters_and_rounds() -> None:
    rounds = [round_row(), round_row(lps_id="lps-1", bytes_up=10), round_row(lps_round=2, bytes_up=100, bytes_down=7)]
    assert cumulative_bytes(rounds) == ([1, 2], [11, 111], [4, 11])


def test_a_cluster_wears_the_colour_of_its_main_task_only_if_no_other_does(tmp_path: Path) -> None:
    apart = look_of(load_record(write_record(tmp_path / "apart")).summary)
    assert apart.clusters == {"lps-0": apart.tasks["clothes"][0], "lps-1": apart.tasks["bags"][0]}
    mixed = {"lps-0": ["device-000", "device-001"], "lps-1": ["device-003", "device-002", "device-004"]}
    tasks = dict.fromkeys(IDS, "clothes")
    alike = look_of(load_record(write_record(tmp_path / "alike", clusters=mixed, device_tasks=tasks)).summary)
    assert len(set(alike.clusters.values())) == 2
    assert alike.tasks["clothes"][0] not in alike.clusters.values()


def test_labels_keep_their_order_and_their_distance() -> None:
    assert spread([5.0, 5.0, 1.0], 2.0, 0.0, 10.0) == [5.0, 7.0, 1.0]
    assert spread([9.5, 9.0], 2.0, 0.0, 10.0) == [10.0, 8.0]
    assert spread([], 1.0, 0.0, 1.0) == []


def test_many_devices_are_labelled_by_what_tells_them_apart() -> None:
    assert labels_of(["device-0", "device-1"]) == (["device-0", "device-1"], "")
    assert labels_of([f"device-{index}" for index in range(13)])[0][:2] == ["0", "1"]
    assert labels_of(["board", *(f"device-{index}" for index in range(13))])[1] == ""
    assert shorten("abcdefghij", 7) == "abc…hij"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (12_345, "12.3 kB"), (999_499, "999 kB"), (999_500, "1.00 MB")],
)
def test_bytes_have_three_digits_and_a_decimal_unit(count: int, text: str) -> None:
    assert human_bytes(count).replace("\u00a0", " ") == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (0.25, "250 ms"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (185, "3 min 05 s"),
        (7380, "2 h 03 min"),
    ],
)
def test_seconds_are_told_in_the_unit_that_fits(seconds: float | None, text: str) -> None:
    assert human_seconds(seconds).replace("\u00a0", " ") == text


def test_what_is_not_there_is_a_dash() -> None:
    assert (percent(None), decimal(None)) == ("–", "–")
    assert percent(0.915).replace("\u00a0", " ") == "91.5 %"
