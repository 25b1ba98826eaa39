"""The GPS reads a relayed answer once for all devices that request it at about the same time, unless it is large."""

from pathlib import Path

import pytest

from fedstrata.v1 import answers_pb2
from tests.support.gps_parts import GpsParts


def reads_of(gps: GpsParts, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The device of each answer that is read from the journal from now on."""
    reads: list[int] = []
    read = gps.journal.answers.one

    def noted(question: str, index: int) -> bytes:
        reads.append(index)
        return read(question, index)

    monkeypatch.setattr(gps.journal.answers, "one", noted)
    return reads


async def all_relayed(gps: GpsParts) -> dict[int, list[answers_pb2.AnswerPart]]:
    """What each of five devices is streamed: the answers of the four others."""
    gps.enrol(*range(5))
    await gps.profiles(*range(5))
    return {index: await gps.relayed(index) for index in range(5)}


async def test_five_answers_are_read_five_times_and_not_twenty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gps = GpsParts(tmp_path)
    reads = reads_of(gps, monkeypatch)
    sent = await all_relayed(gps)
    assert sorted(reads) == [0, 1, 2, 3, 4]
    senders = {index: [part.header.device_index for part in parts[::2]] for index, parts in sent.items()}
    assert senders == {index: [other for other in range(5) if other != index] for index in range(5)}


async def test_large_answers_are_read_for_each_device_and_do_not_stay_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = await all_relayed(GpsParts(tmp_path))
    monkeypatch.setattr("gps.devices.relayed.KEPT_BYTES", 1000)  # less than one answer with its headers
    (tmp_path / "second").mkdir()
    gps = GpsParts(tmp_path / "second")
    reads = reads_of(gps, monkeypatch)
    assert await all_relayed(gps) == whole
    assert len(reads) == 5 * 4
