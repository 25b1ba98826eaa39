"""The report is one page that stands alone, holds what the record says and trusts nothing in it.

What it looks like, a browser says: tests/browser.
"""

import json
from base64 import b64decode, b64encode
from hashlib import sha256
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emulator.console.units import decimal, human_bytes, human_seconds, percent
from emulator.results.read_record import load_record
from emulator.results.report import write_report
from emulator.results.report.run_page import write_page
from emulator.results.report.style import shorten
from fedstrata.errors import DataError, OutputError
from fedstrata.page.relevance_drawing import mean_relevance, relevance_part, tree_of
from tests.support.record_files import IDS, relevance_rows, write_record

VOID = {"meta", "link"}
HOSTILE = "<script>alert(1)</script><!--\"'&$x_1$ $$name ${name} %s"


class Page(HTMLParser):
    """Tags, scripts, styles and references of a page; complains about tags that do not match."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.inner: list[tuple[str, str]] = []
        self._open: list[str] = []
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open:
            self.inner.append((self._open[-1], data))

    def texts(self, tag: str) -> list[str]:
        return [text for inside, text in self.inner if inside == tag]

    @property
    def document(self) -> Any:
        return json.loads(self.texts("script")[0])

    @property
    def parts(self) -> dict[str, Any]:
        return dict(self.document["parts"])

    @property
    def policy(self) -> dict[str, list[str]]:
        (content,) = [value for name, value in self.attributes if name == "content" and "default-src" in value]
        return {words[0]: words[1:] for words in (rule.split() for rule in unescape(content).split(";"))}


def page_of(folder: Path) -> Page:
    return Page(write_report(folder))


def test_the_page_holds_what_the_record_says(tmp_path: Path) -> None:
    folder = write_record(tmp_path / "run", device_accuracy=dict.fromkeys(IDS, 0.5))
    page = page_of(folder)
    summary = json.loads((folder / "summary.json").read_text())
    said = {name.removeprefix("summary/"): value for name, value in page.parts.items() if name.startswith("summary/")}
    assert {name: said[name] for name in summary} == summary
    assert said["name"] == "two-tasks"
    assert page.document["rounds"][0] == [1, 1, "lps-0", 3, 300, 1.5, None, 0.5, 300, 330, None, None, None, None]
    assert len(page.document["rounds"]) == 4
    assert page.parts["experiment"] == (folder / "experiment.yaml").read_text()
    assert "two-tasks · Fedstrata run" in page.texts("title")


def test_nothing_is_fetched_and_nothing_runs_but_what_the_page_brings(tmp_path: Path) -> None:
    page = page_of(write_record(tmp_path / "run"))
    assert not {"img", "iframe", "object", "form"} & set(page.tags)
    references = {value for name, value in page.attributes if name in {"src", "href"}}
    assert references == {"data:,"}  # an icon that is none
    assert page.policy["default-src"] == page.policy["base-uri"] == page.policy["form-action"] == ["'none'"]
    hashes = [f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for text in page.texts("script")[1:]]
    assert page.policy["script-src"] == hashes
    assert "connect-src" not in page.policy
    assert not any("unsafe" in word for words in page.policy.values() for word in words)


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
    assert page.tags.count("script") == 1 + len(page.policy["script-src"])
    assert page.document["rounds"][0][2] == page.parts["summary/reason"] == HOSTILE
    assert page.parts["summary/excluded"] == excluded
    assert page.texts("title") == [f"{HOSTILE} · Fedstrata run"]


def test_a_method_without_a_matrix_gets_a_page_without_one(tmp_path: Path) -> None:
    folder = write_record(tmp_path / "run", method="random")
    (folder / "relevance.csv").unlink()
    assert page_of(folder).parts["relevance"] is None


def test_rounds_that_diverged_or_were_not_evaluated_are_without_their_values(tmp_path: Path) -> None:
    rounds = [(1, 1, "lps-0", 3, 300, "nan", "", 1, 1, 1), (1, 2, "lps-0", 3, 300, "inf", "", 1, 1, 1)]
    told = page_of(write_record(tmp_path / "run", rounds=rounds)).document["rounds"]
    assert [row[5:7] for row in told] == [[None, None], [None, None]]


def test_a_failed_run_says_why(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"clusters": {}, "accuracy": {}, "task_accuracy": None, "bytes": {}, "wall_seconds": {}}
    folder = write_record(
        tmp_path / "run", status="failed", reason="quorum of lps-1 not reached", rounds=(), device_tasks=None, **changes
    )
    page = page_of(folder)
    assert page.parts["summary/reason"] == "quorum of lps-1 not reached"
    assert page.document["rounds"] == []


def test_the_same_record_gives_the_same_bytes(tmp_path: Path) -> None:
    folder = write_record(tmp_path / "run")
    first = write_report(folder).read_bytes()
    assert write_report(folder).read_bytes() == first


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


def test_a_page_in_a_folder_that_cannot_be_written_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"cannot write .*report\.html: Not a directory"):
        write_page(tmp_path / "file" / "report.html", "a page")


def test_the_dendrogram_merges_the_closest_first_and_the_first_device_stands_on_top() -> None:
    matrix = np.array([[1.0, 0.2, 0.9], [0.2, 1.0, 0.4], [0.9, 0.4, 1.0]])
    tree = tree_of(matrix)
    assert tree.order == [0, 2, 1]
    # a with c at 1 − 0.9; b with both at the mean of 1 − 0.2 and 1 − 0.4
    assert tree.heights == pytest.approx([0.1, 0.7])
    assert len(tree.branches) == 6
    part = relevance_part(matrix, ["a", "b", "c"], {"x": ["a", "c"], "y": ["b"]})
    assert part["ids"] == ["a", "c", "b"]
    assert part["cut"] == pytest.approx((0.1 + 0.7) / 2)
    # in 255ths, in the dendrogram's order
    assert list(b64decode(part["cells"])) == [255, 230, 51, 230, 255, 102, 51, 102, 255]


def test_one_device_has_a_matrix_of_one_and_no_dendrogram() -> None:
    part = relevance_part(np.ones((1, 1)), ["a"], {"x": ["a"]})
    assert (part["branches"], part["cut"], list(b64decode(part["cells"]))) == ([], None, [255])


def test_a_matrix_of_many_devices_is_told_in_blocks() -> None:
    side = 1001
    part = relevance_part(np.full((side, side), 0.6), [str(index) for index in range(side)], {})
    assert part["block"] == 3
    assert list(b64decode(part["cells"])) == [153] * 334**2


def test_mean_relevance_counts_each_pair_once_and_leaves_out_the_unplaced(tmp_path: Path) -> None:
    record = load_record(write_record(tmp_path / "run", relevance=relevance_rows()))
    assert record.relevance is not None
    given = record.relevance.matrix, record.relevance.ids
    assert mean_relevance(*given, record.summary.cluster_of_device) == pytest.approx((0.9, 0.3))
    assert mean_relevance(*given, {IDS[0]: "lps-0"}) == (None, None)


def test_a_long_name_is_cut_in_its_middle() -> None:
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
