"""Runs whose updates are masked: the models of runs without, and nothing of a single update at the LPS."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from device.agent import DeviceAgent
from device.masking.masks import Masks
from device.rounds import DeviceRounds
from device.work import DeviceProcess
from emulator.results.read_record import RunRecord
from fedstrata.errors import ExcludedError, PayloadError
from fedstrata.experiment import Experiment
from fedstrata.experiment_file import parse_experiment
from fedstrata.rounds import Update
from fedstrata.rpc.stream import write_all
from fedstrata.tensors import ExactSum
from fedstrata.trust.authority import Authority
from fedstrata.trust.mask_proofs import Proofs
from fedstrata.v1 import rounds_pb2 as pb
from lps.servicer import LpsServicer
from tests.support.tiers import SMALL, Tiers, open_device, whole_run

MASKED = "secure_aggregation={min_devices: 3}"
FILE = SMALL.replace("devices: 3", "devices: 4").replace("devices: 2", "devices: 3")
WORDS = 4  # of an update, one after the other, which tell it from anything else


def experiment(*overrides: str) -> Experiment:
    return parse_experiment(FILE, overrides=overrides)


def models(record: RunRecord) -> Any:
    summary = record.summary
    return summary.clusters, summary.model_sha256, summary.of_headline.clusters


@pytest.mark.parametrize(
    "overrides",
    [
        ("clock=virtual", "links.device-lps={preset: lte, up: float16}"),
        ("links.device-lps.up=int8", "training.lps_optimiser={name: momentum}"),
        ("method=fedavg", "training.participation=4", "training.global_rounds=3"),
        ("method=fedavg", "topology={lps: 2}", "training.global_rounds=3"),
        (
            "method=fedavg",
            "topology={lps: 2, devices: [[0, 1, 2, 6], [3, 4, 5]]}",
            "training={lps_rounds_per_global_round: 1, global_rounds: 3}",
        ),
    ],
    ids=[
        "float16 on the virtual clock",
        "int8 and momentum",
        "participation",
        "two LPSs of one cluster",
        "partial sums",
    ],
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

    updates: dict[str, list[Update]] = {name: [] for name in asked.device_ids()}
    seen = open_device(lambda name, update: updates[name].append(update))

    async with Tiers(asked, folder, lps_servicer=Heard) as tiers:
        host = await tiers.host()
        for index in range(asked.device_count):
            tiers.start_device(host, index, seen)
        record = await tiers.ended()
    assert record.summary.status == "completed"
    return updates, Heard.heard


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
            starts = range(0, len(form) - WORDS, 4 * WORDS)
            yield from (form[at : at + WORDS].tobytes() for at in starts if np.count_nonzero(form[at : at + WORDS]) > 2)


class KeptLog(logging.Handler):
    """All that the processes of a test log, down to debugging."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(str(vars(record)))


@dataclass(frozen=True)
class Watched:
    """A run with masks: what devices' updates were, what their LPSs heard from them, and what the tiers logged."""

    folder: Path
    updates: dict[str, list[Update]]
    heard: dict[str, bytearray]
    logged: bytes


@pytest.fixture(scope="module")
def masked(folder: Path) -> Watched:
    root, kept = logging.getLogger(), KeptLog()
    level = root.level
    root.addHandler(kept)
    root.setLevel(logging.DEBUG)
    updates, heard = asyncio.run(watched_run(folder / "masked", MASKED))
    root.removeHandler(kept)
    root.setLevel(level)
    return Watched(folder / "masked", updates, heard, "\n".join(kept.lines).encode())


def test_an_lps_hears_stores_and_logs_nothing_of_a_single_update(masked: Watched) -> None:
    stored = [path.read_bytes() for path in masked.folder.glob("lps-*/**/*") if path.is_file()]
    assert len(stored) > 2
    assert b"lps_round_closed" in masked.logged
    bits = list(pieces(masked.updates))
    assert len(bits) > 1000
    kept = b"\0".join([*map(bytes, masked.heard.values()), *stored, masked.logged])
    assert not [piece for piece in bits if piece in kept]
    sizes = {name: update[0].codec.layout.size for name, update in masked.updates.items()}
    assert all(len(masked.heard[name]) > 2 * 8 * size for name, size in sizes.items())


def test_what_an_lps_hears_of_an_update_is_like_noise(masked: Watched) -> None:
    payload = b"".join(bytes(said[-4000:]) for said in masked.heard.values())  # the end of the last update
    bits = np.unpackbits(np.frombuffer(payload, np.uint8)).reshape(-1, 64)
    deviation = np.abs(bits.mean(axis=0) - 0.5) * 2 * np.sqrt(len(bits))
    assert deviation.max() < 5  # standard deviations, of any of the 64 bits of a number


class Lying(LpsServicer):
    """An LPS that gives its first device the true model, all others zeros as the same, and keeps what they send."""

    sums: ClassVar[list[np.ndarray]]

    async def FetchModel(self, request: pb.FetchModelRequest, context: Any) -> None:
        parts = (await self._handler(request.home_id)).fetch(request)
        await write_all(parts if request.child_id == "device-000" else _zeroed(parts), context)

    async def Attend(self, requests: AsyncIterator[pb.UpdatePart], context: Any) -> None:
        await super().Attend(self._kept(requests), context)

    async def _kept(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for part in requests:
            if part.HasField("header"):
                self.sums.append(np.frombuffer(part.chunk.data, "<i8").copy())
            yield part


async def _zeroed(parts: AsyncIterator[pb.ModelPart | bytes]) -> AsyncIterator[pb.ModelPart]:
    async for part in parts:
        said = pb.ModelPart.FromString(part) if isinstance(part, bytes) else part
        said.small = bytes(len(said.small))
        yield said


async def test_an_lps_that_gives_one_device_another_model_recovers_nothing_and_the_run_stops(tmp_path: Path) -> None:
    asked = experiment(MASKED, "method=fedavg")

    class Lps(Lying):
        sums: ClassVar = []

    updates: dict[str, list[Update]] = {name: [] for name in asked.device_ids()}
    seen = open_device(lambda name, update: updates[name].append(update))

    record = await whole_run(asked, tmp_path, lps_servicer=Lps, liars=dict.fromkeys(range(7), seen))
    first = updates["device-000"][0]
    total = ExactSum(first.codec.layout.size, 1 << 12)
    total.add(first.read(0, first.codec.layout.size), first.num_examples)
    recovered = sum(Lps.sums[:7]) == total.sums()  # the others' updates of a model of zeros are zero but for 10 biases
    assert np.count_nonzero(total.sums()) > 800  # of 1,210
    assert np.count_nonzero(recovered) == 0
    assert record.summary.status == "failed"
    assert "masked updates is impossible" in (record.summary.reason or "")


async def test_the_search_finds_single_updates_where_they_are_not_masked(tmp_path: Path) -> None:
    updates, heard = await watched_run(tmp_path)
    kept = b"\0".join(map(bytes, heard.values()))
    floats = [update.read(0, update.codec.layout.size).tobytes() for several in updates.values() for update in several]
    assert all(flat in kept for flat in floats)
    assert any(piece in kept for piece in pieces(updates))


async def test_with_certificates_keys_are_signed_and_the_models_the_same(tmp_path: Path) -> None:
    plain = await whole_run(experiment(), tmp_path / "plain")
    async with Tiers(experiment(MASKED), tmp_path / "masked", authority=Authority.new("run-1")) as tiers:
        await tiers.start_devices()
        masked = await tiers.ended()
    assert models(plain) == models(masked)


def _forged(key: pb.MaskKey) -> pb.MaskKey:
    return pb.MaskKey(public_key=key.public_key, signature=bytes(64), certificate=key.certificate)


def _missing(key: pb.MaskKey) -> pb.MaskKey:
    return pb.MaskKey(public_key=key.public_key)


def _of_low_order(key: pb.MaskKey) -> pb.MaskKey:
    return pb.MaskKey(public_key=bytes(32), signature=key.signature, certificate=key.certificate)


def _off_its_curve(key: pb.MaskKey) -> pb.MaskKey:
    """A certificate whose own point on P-256 is none: its second coordinate is another."""
    found = bytearray(key.certificate)
    point = x509.load_der_x509_certificate(key.certificate).public_key().public_bytes(
        Encoding.X962, PublicFormat.UncompressedPoint
    )  # fmt: skip
    found[found.index(point) + len(point) - 1] ^= 1
    return pb.MaskKey(public_key=key.public_key, signature=key.signature, certificate=bytes(found))


@pytest.mark.parametrize("lie", [_forged, _missing, _of_low_order, _off_its_curve])
async def test_a_device_with_a_certificate_and_a_false_key_is_refused_alone(
    tmp_path: Path, lie: Callable[[pb.MaskKey], pb.MaskKey]
) -> None:
    class Lying(Masks):
        @property
        def key(self) -> pb.MaskKey:
            return lie(super().key)

    asked = experiment("method=fedavg", MASKED, "deadlines.lps={quorum_ratio: 0.8}")
    async with Tiers(asked, tmp_path, authority=Authority.new("run-1")) as tiers:
        host = await tiers.host()
        proofs = Proofs(asked.run_id, host.channels.security.tls)
        liar = replace(host, shield_of=lambda device_id: Lying(asked, device_id, proofs))
        devices = [tiers.start_device(liar if index == 6 else host, index) for index in range(7)]
        record = await tiers.ended()
        ends = await asyncio.gather(*devices, return_exceptions=True)
    assert record.summary.status == "completed"
    assert {gone.device for gone in record.summary.excluded} == {"device-006"}
    assert [type(end) for end in ends] == [type(None)] * 6 + [PayloadError]


class LeavingRounds(DeviceRounds):
    """Rounds of a device that is gone in the second one, its key in the roster."""

    def _round_job(self, *arguments: Any, **named: Any) -> Any:
        if arguments[1].round == 1:
            raise ExcludedError("a test")
        return super()._round_job(*arguments, **named)


class Leaving(DeviceAgent):
    """A device that takes part so."""

    def __init__(self, host: DeviceProcess, device_index: int) -> None:
        super().__init__(host, device_index)
        self._rounds = LeavingRounds(host, device_index, self._store, self._made, self._log)


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
    uneven = FILE.replace("devices: 4", "devices: 5").replace("devices: 3", "devices: 2")
    record = await whole_run(parse_experiment(uneven, overrides=[MASKED]), tmp_path)
    assert record.summary.status == "failed"
    assert "a round asks 2 devices, and secure_aggregation needs 3 (min_devices)" in (record.summary.reason or "")
