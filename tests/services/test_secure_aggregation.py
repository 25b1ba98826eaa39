"""Runs whose updates are masked: the models of runs without, and nothing of a single update at the LPS."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from device.agent import DeviceAgent
from emulator.results.record import RunRecord
from fedstrata.errors import ExcludedError
from fedstrata.experiment import Experiment
from fedstrata.experiment_file import parse_experiment
from fedstrata.rounds import Update
from fedstrata.tensors import ExactSum
from fedstrata.trust.authority import Authority
from fedstrata.v1 import rounds_pb2 as pb
from lps.servicer import LpsServicer
from tests.support.tiers import SMALL, Open, Tiers, whole_run

MASKED = "secure_aggregation={min_devices: 3}"
FILE = SMALL.replace("devices: 3", "devices: 4").replace("devices: 2", "devices: 3")
WORDS = 4  # of an update, one after the other, which tell it from anything else


def experiment(*overrides: str) -> Experiment:
    return parse_experiment(FILE, overrides=overrides)


def models(record: RunRecord) -> Any:
    summary = record.summary
    return summary.clusters, summary.model_sha256, summary.accuracy


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("links.device-lps.up=float16",),
        ("links.device-lps.up=int8", "training.lps_optimiser={name: momentum}"),
        ("method=fedavg", "training.participation=4", "training.global_rounds=3"),
        ("clock=virtual", "links.device-lps.preset=lte"),
    ],
    ids=["plain", "float16", "int8 and momentum", "participation", "virtual clock"],
)
async def test_the_models_are_those_of_the_run_without_masks(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    plain = await whole_run(experiment(*overrides), tmp_path / "plain")
    masked = await whole_run(experiment(*overrides, MASKED), tmp_path / "masked")
    tensors = [
        {path.name: path.read_bytes().partition(b"}}")[2] for path in sorted((record.folder / "models").iterdir())}
        for record in (plain, masked)
    ]
    assert tensors[0] == tensors[1]
    if "clock=virtual" not in overrides:  # where they are part of the run's id, which is in each file
        assert models(plain) == models(masked)


class Recording(LpsServicer):
    """An LPS that keeps all that devices send it."""

    heard: ClassVar[dict[str, bytearray]]

    async def Attend(self, requests: AsyncIterator[pb.UpdatePart], context: Any) -> None:
        await super().Attend(self._kept(requests), context)

    async def _kept(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        child_id = ""
        async for part in requests:
            if part.HasField("header"):
                child_id = part.header.child_id
                self.heard[child_id] += part.header.SerializeToString()
                self.heard[child_id] += bytes(part.chunk.data) if hasattr(part, "chunk") else b""
            elif part.HasField("data"):
                self.heard[child_id] += part.data
            yield part


async def watched_run(folder: Path, *overrides: str) -> tuple[dict[str, list[Update]], dict[str, bytearray]]:
    """What devices' updates were, and what their LPSs have heard from them."""
    asked = experiment(*overrides)

    class Heard(Recording):
        heard: ClassVar = {name: bytearray() for name in asked.device_ids()}

    class Seen(Open):
        updates: ClassVar = {name: [] for name in asked.device_ids()}

    async with Tiers(asked, folder, lps_servicer=Heard) as tiers:
        host = await tiers.host()
        for index in range(asked.device_count):
            tiers.start_device(host, index, Seen)
        record = await tiers.ended()
    assert record.summary.status == "completed"
    return Seen.updates, Heard.heard


def pieces(updates: dict[str, list[Update]]) -> Iterator[bytes]:
    """Bits of each single update, as it is, and as multiples of the grid: once, and times its examples."""
    for each in [update for several in updates.values() for update in several]:
        flat = each.read(0, each.codec.layout.size)
        forms = [flat]
        for examples in (1, each.num_examples):
            total = ExactSum(len(flat), 1 << 12)
            total.add(flat, examples)
            forms.append(total.sums())
        for form in forms:
            starts = range(0, len(form) - WORDS, WORDS)
            yield from (form[at : at + WORDS].tobytes() for at in starts if np.count_nonzero(form[at : at + WORDS]) > 2)


async def test_an_lps_hears_stores_and_logs_nothing_of_a_single_update(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    updates, heard = await watched_run(tmp_path / "masked", MASKED)
    logged = "\n".join(str(vars(record)) for record in caplog.records).encode()
    stored = [path.read_bytes() for path in (tmp_path / "masked").glob("lps-*/**/*") if path.is_file()]
    assert len(stored) > 2
    assert b"lps_round_closed" in logged
    bits = list(pieces(updates))
    assert len(bits) > 1000
    kept = b"\0".join([*map(bytes, heard.values()), *stored, logged])
    assert not [piece for piece in bits if piece in kept]
    sizes = {name: update[0].codec.layout.size for name, update in updates.items()}
    assert all(len(heard[name]) > 2 * 8 * size for name, size in sizes.items())


async def test_the_search_finds_single_updates_where_they_are_not_masked(tmp_path: Path) -> None:
    updates, heard = await watched_run(tmp_path)
    kept = b"\0".join(map(bytes, heard.values()))
    floats = [update.read(0, update.codec.layout.size).tobytes() for several in updates.values() for update in several]
    assert all(flat in kept for flat in floats)
    assert any(piece in kept for piece in pieces(updates))


async def test_what_an_lps_hears_of_an_update_is_like_noise(tmp_path: Path) -> None:
    _, heard = await watched_run(tmp_path, MASKED)
    payload = b"".join(bytes(said[-4000:]) for said in heard.values())  # the end of the last update
    bits = np.unpackbits(np.frombuffer(payload, np.uint8)).reshape(-1, 64)
    deviation = np.abs(bits.mean(axis=0) - 0.5) * 2 * np.sqrt(len(bits))
    assert deviation.max() < 5  # standard deviations, of any of the 64 bits of a number


async def test_with_certificates_keys_are_signed_and_the_models_the_same(tmp_path: Path) -> None:
    plain = await whole_run(experiment(), tmp_path / "plain")
    async with Tiers(experiment(MASKED), tmp_path / "masked", authority=Authority.new("run-1")) as tiers:
        await tiers.start_devices()
        masked = await tiers.ended()
    assert models(plain) == models(masked)


class Leaving(DeviceAgent):
    """A device that is gone in the second LPS round, its key in the roster."""

    def _round_job(self, *arguments: Any, **named: Any) -> Any:
        if arguments[1].round == 1:
            raise ExcludedError("a test")
        return super()._round_job(*arguments, **named)


@pytest.mark.runs
async def test_a_device_that_leaves_in_a_round_is_left_out_as_without_masks(tmp_path: Path) -> None:
    late = "deadlines.lps={deadline_s: 6, quorum_ratio: 0.5}"
    records = [
        await whole_run(experiment("method=fedavg", late, *more), tmp_path / name, liars={1: Leaving})
        for name, more in (("plain", ()), ("masked", (MASKED,)))
    ]
    assert models(records[0]) == models(records[1])
    left_out = [gone.device for gone in records[1].summary.excluded]
    assert left_out == ["device-001"] * len(left_out)
    assert left_out


async def test_a_cluster_too_small_to_hide_in_stops_the_run_in_one_line(tmp_path: Path) -> None:
    record = await whole_run(experiment("secure_aggregation={min_devices: 4}"), tmp_path)
    assert record.summary.status == "failed"
    assert "3 devices are asked in a round, and secure_aggregation takes 4 (min_devices)" in (
        record.summary.reason or ""
    )
