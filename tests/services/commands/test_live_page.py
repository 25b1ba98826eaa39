"""The live page follows a run from before its first device to its record, and then says what the record says."""

import asyncio
import csv
import json
from pathlib import Path
from typing import Any

from emulator.results.report.run_page import document_of
from gps.page_data import LivePage
from tests.support.records import summary_of
from tests.support.tiers import Tiers, small


class Reader:
    """An open page: its document, with all that it has been told put in."""

    def __init__(self, page: LivePage) -> None:
        self._events = page.feed.read()
        self.names: list[str] = []
        self.parts: dict[str, Any] = {}
        self.rounds: dict[tuple[int, str], list[Any]] = {}

    def take(self) -> bool:
        """Wait for an event; False where there are no more."""
        for event in self._events:
            if event.startswith(b"event"):
                name, data = event.decode().split("\ndata: ")
                self.names.append(name.removeprefix("event: "))
                said = json.loads(data)
                self.parts |= said["parts"]
                self.rounds |= {(row[1], row[2]): row for row in said["rounds"]}
                return True
        return False

    def take_all(self) -> None:
        while self.take():
            pass


async def test_a_page_opened_before_the_first_device_follows_the_run_to_its_record(tmp_path: Path) -> None:
    async with Tiers(small(), tmp_path / "run") as tiers:
        page = LivePage(tiers.run)
        reader = Reader(page)
        assert await asyncio.to_thread(reader.take)
        assert (reader.parts["live/phase"], reader.parts["live/states"]) == ("enrolment", "aaaaa")
        assert reader.parts["summary/status"] == "running"
        following = asyncio.create_task(asyncio.to_thread(reader.take_all))
        await tiers.start_devices()
        record = await tiers.ended()
        await page.close()
        await following
    summary = summary_of(record.folder)
    said = {name.removeprefix("summary/"): value for name, value in reader.parts.items() if name.startswith("summary/")}
    assert said == summary
    assert (reader.parts["live/phase"], reader.parts["live/states"]) == ("completed", "ggggg")
    with (record.folder / "rounds.csv").open() as file:
        _, *rows = csv.reader(file)
    assert sorted(reader.rounds) == sorted((int(row[1]), row[2]) for row in rows)
    assert [round(reader.rounds[int(row[1]), row[2]][5], 6) for row in rows] == [float(row[5]) for row in rows]
    report = document_of(record)["parts"]
    assert report.pop("label_picture") is not None  # which the GPS cannot tell: it knows no labels
    assert {name: reader.parts.get(name) for name in report} == report
    assert report["relevance"] is not None
    assert reader.names[0] == "document"
    assert set(reader.names[1:]) == {"change"}


async def test_a_page_of_a_run_that_is_over_says_what_its_record_says_and_ends(tmp_path: Path) -> None:
    async with Tiers(small(), tmp_path / "run") as tiers:
        await tiers.start_devices()
        record = await tiers.ended()
        page = LivePage(tiers.run)
        reader = Reader(page)
        assert await asyncio.to_thread(reader.take)
        assert reader.parts["live/has_record"]
        assert reader.parts["summary/accuracy"] == dict(record.summary.of_headline.clusters)
        assert len(reader.rounds) == len(record.rounds)
        await page.close()


async def test_nothing_is_done_for_a_page_that_nobody_has_open(tmp_path: Path) -> None:
    async with Tiers(small(), tmp_path / "run") as tiers:
        page = LivePage(tiers.run)
        asked: list[int] = []
        tiers.run.journal.rounds.rows_after = lambda place: asked.append(place) or []  # type: ignore[method-assign,func-returns-value]
        await tiers.start_devices()
        await tiers.ended()
        await page.close()
    assert asked == []


async def test_a_failed_run_is_shown_with_its_reason(tmp_path: Path) -> None:
    async with Tiers(small(), tmp_path / "run") as tiers:
        page = LivePage(tiers.run)
        reader = Reader(page)
        assert await asyncio.to_thread(reader.take)
        following = asyncio.create_task(asyncio.to_thread(reader.take_all))
        tiers.run.stop("the building is on fire")
        await tiers.ended()
        await page.close()
        await following
    assert (reader.parts["summary/status"], reader.parts["live/phase"]) == ("failed", "failed")
    assert reader.parts["summary/reason"] == "the building is on fire"
