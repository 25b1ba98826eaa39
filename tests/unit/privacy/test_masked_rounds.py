"""Rounds whose updates are masked: who waits for whose key, and what becomes of the sum when somebody is gone."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from device.masking.masks import Masks
from fedstrata.clock.deadline import Deadline
from fedstrata.errors import ExcludedError, OutdatedError, PayloadError, RunStoppedError
from fedstrata.experiment import Experiment, LinkSettings, TierDeadline
from fedstrata.experiment.privacy import MOST_MASKED
from fedstrata.process.logs import EventLog
from fedstrata.process.metrics import ProcessMetrics
from fedstrata.rounds import (
    Intake,
    Offer,
    OpenRound,
    PlainUpdates,
    ReceivedModel,
    RoundServer,
    RoundTerms,
    Update,
    on_time,
)
from fedstrata.rounds.parent.mask_keys import MOST_KEYS, EnoughToMask, KeyRing, Masked, MaskedUpdates
from fedstrata.rpc.payload import Acceptance
from fedstrata.rules import Gathering
from fedstrata.store import ModelFile, write_model
from fedstrata.tensors import Flat
from fedstrata.trust.mask_proofs import KeyCheck, Proofs
from fedstrata.v1 import rounds_pb2 as pb
from tests.support.gatherings import MASKED as MASKED_MEAN
from tests.support.gatherings import MEAN, one_stream, sums_in
from tests.support.loop_time import LoopTime, turns
from tests.support.masks_setting import LAYOUT, masked_experiment
from tests.support.rounds_setting import PART, RUN_ID, Wire, announced, client_of, vector

EXPERIMENT = masked_experiment(5)
MASKED = Acceptance(LAYOUT, "exact", PART)
IDS = EXPERIMENT.device_ids()
FOREVER = TierDeadline()
SOON = TierDeadline(deadline_s=60, quorum_ratio=0.5)  # by a clock that the test sets


@dataclass
class Parent:
    """A parent whose children mask, with a round open."""

    server: RoundServer
    updates: PlainUpdates
    sums: Gathering

    @classmethod
    def of(
        cls, folder: Path, children: Sequence[str] = IDS, wait: TierDeadline = FOREVER,
        deadline: Deadline | None = None, updates: PlainUpdates | None = None,
    ) -> "Parent":  # fmt: skip
        updates = updates or MaskedUpdates(IDS.__contains__, 3, KeyCheck(EXPERIMENT.run_id, None).check)
        terms = RoundTerms(run_id=RUN_ID, link=LinkSettings(), wait=wait)
        server = RoundServer(
            terms, ProcessMetrics("lps"), EventLog("test"),
            accepts_updates=lambda number: MASKED, hear=updates.hear,
        )  # fmt: skip
        parent = cls(server, updates, None)  # type: ignore[arg-type]
        parent.open(folder, 0, children, deadline or Deadline())
        return parent

    def open(self, folder: Path, number: int, children: Sequence[str] = IDS, deadline: Deadline | None = None) -> None:
        path, most = folder / f"model-{number}.safetensors", dict.fromkeys(children, 4)
        write_model(path, LAYOUT, [np.arange(LAYOUT.size, dtype=np.float32) + number], {})
        self.sums = one_stream(LAYOUT.size, most, MASKED_MEAN if isinstance(self.updates, MaskedUpdates) else MEAN)
        intake = Intake(children=most, sums=self.sums, wait=self.server.terms.wait, enough=self.updates.enough)
        stages = [*self.updates.stages(intake, sum(most.values())), *on_time(deadline or Deadline())]
        offers = {0: Offer(ModelFile(path, LAYOUT))}
        self.server.open(OpenRound(offers=offers, number=number, global_round=number, intake=intake, stages=stages))

    async def mean(self) -> Flat:
        """The round's result."""
        await self.server.gather()
        await self.sums.settle()
        return sums_in(self.sums)[0].mean()


class Child:
    """A device in a round: it fetches, masks, sends, and masks anew where it is told to."""

    def __init__(self, parent: Parent, device_id: str, *, experiment: Experiment = EXPERIMENT, **cuts: Any) -> None:
        self.masks = Masks(experiment, device_id, Proofs(experiment.run_id, None))
        self.wire = Wire(parent.server, **cuts)
        self.client = client_of(self.wire, device_id, layout=LAYOUT, shield=self.masks)
        self.sent: Update | None = None
        self.uploads = 0

    async def send(self, flat: Flat, num_examples: int = 2) -> None:
        """Fetch the model and send an update of it."""
        received = await self.client.fetch(-1)
        assert isinstance(received, ReceivedModel)
        self.sent = self.update_of(received, flat, num_examples)
        await self.send_again()

    def update_of(self, received: Any, flat: Flat, num_examples: int = 2) -> Update:
        """The update of a model that was received."""
        return Update(
            round=received.round,
            num_examples=num_examples,
            codec=self.client.codec_for(flat),
            read=lambda start, stop: flat[start:stop],
            base_digest=received.digest,
            trained_from=received.trained_from("lps-0", 0),
        )

    async def send_again(self) -> None:
        assert self.sent is not None
        self.uploads += 1
        await self.client.submit(self.masks.masked(self.sent))

    async def stay(self) -> None:
        """Send again as often as the parent says so."""
        while True:
            assert self.sent is not None
            said = await self.client.fetch(self.sent.round, self.sent.base_digest)
            assert isinstance(said, pb.SendAgain)
            await self.send_again()

    async def take_part(self, flat: Flat) -> None:
        await self.send(flat)
        await self.stay()


async def mean_of(parent: Parent, *jobs: Any) -> Flat:
    """The round's mean while these go on; a failure of theirs is the test's."""
    running = {asyncio.ensure_future(job) for job in jobs}
    gathering = asyncio.ensure_future(parent.mean())
    while not gathering.done():
        done, _ = await asyncio.wait({gathering, *running}, return_when=asyncio.FIRST_COMPLETED)
        for job in done & running:
            job.result()
        running -= done
    for job in running:
        job.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    return await gathering


async def deadline_passes(parent: Parent, clock: LoopTime, absent: str, lacks: str) -> None:
    """Let the deadline pass as soon as one child alone is waited for."""
    await turns()
    while parent.server.awaited != (0, (absent,), lacks):  # noqa: ASYNC110  # nobody tells
        await asyncio.sleep(0)
    await clock.advance(60)


async def test_a_masked_round_has_the_bits_of_the_plain_mean(tmp_path: Path) -> None:
    parent = Parent.of(tmp_path)
    flats = [np.random.default_rng(number).normal(size=LAYOUT.size).astype(np.float32) for number in range(5)]
    jobs = [Child(parent, name).send(flat) for name, flat in zip(IDS, flats, strict=True)]
    mean = await mean_of(parent, *jobs)
    on_grid = [np.rint(flat.astype(np.float64) * 2**32) for flat in flats]
    assert mean.tobytes() == np.float32(sum(on_grid) * 2 / (10 * 2.0**32)).tobytes()


async def test_nobody_gets_the_model_before_all_keys_are_there(tmp_path: Path) -> None:
    parent = Parent.of(tmp_path, IDS[:3])
    first, second, third = (Child(parent, name) for name in IDS[:3])
    waiting = [asyncio.create_task(child.send(vector(1.0))) for child in (first, second)]
    await turns()
    assert not any(job.done() for job in waiting)
    mean = await mean_of(parent, *waiting, third.send(vector(4.0)))
    assert mean[0] == 2.0


async def test_a_device_that_never_shows_a_key_is_left_out_at_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, clock = Parent.of(tmp_path, wait=SOON), LoopTime(monkeypatch)
    late = deadline_passes(parent, clock, IDS[4], "its mask key")
    mean = await mean_of(parent, *(Child(parent, name).send(vector(2.0)) for name in IDS[:4]), late)
    assert mean[0] == 2.0
    assert sums_in(parent.sums)[0].num_examples == 8


async def test_a_device_that_drops_out_has_all_others_mask_anew_for_who_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, clock = Parent.of(tmp_path, wait=SOON), LoopTime(monkeypatch)
    silent = Child(parent, IDS[4])
    children = [Child(parent, name) for name in IDS[:4]]
    late = deadline_passes(parent, clock, IDS[4], "its update")
    mean = await mean_of(parent, silent.client.fetch(-1), *(child.take_part(vector(3.0)) for child in children), late)
    assert mean[0] == 3.0
    assert [child.uploads for child in children] == [2] * 4
    assert len({child.masks.digest for child in children}) == 1
    assert silent.masks.digest != children[0].masks.digest


async def test_a_device_that_comes_back_with_another_key_is_masked_for_anew(tmp_path: Path) -> None:
    parent = Parent.of(tmp_path)
    children = [Child(parent, name) for name in IDS[:4]]
    killed = Child(parent, IDS[4])
    await asyncio.gather(killed.client.fetch(-1), *(child.send(vector(1.0)) for child in children))
    assert parent.server.awaited[1] == (IDS[4],)
    born_again = Child(parent, IDS[4])
    mean = await mean_of(parent, born_again.send(vector(6.0)), *(child.stay() for child in children))
    assert mean[0] == 2.0
    assert [child.uploads for child in children] == [2] * 4


async def test_a_late_update_shows_the_key_of_the_next_global_round_and_nobody_else_masks_anew(tmp_path: Path) -> None:
    parent, short = Parent.of(tmp_path), masked_experiment(5, rounds_per_global=1)
    children = [Child(parent, name, experiment=short) for name in IDS]
    late, killed = children[3:]
    waiting = [child.client.fetch(-1) for child in (late, killed)]
    received, *_ = await asyncio.gather(*waiting, *(child.send(vector(1.0)) for child in children[:3]))
    born_again = Child(parent, IDS[4], experiment=short)
    again = asyncio.ensure_future(_then(asyncio.ensure_future(born_again.client.fetch(-1)), born_again, vector(6.0)))
    await turns()
    late.sent = late.update_of(received, vector(1.0))
    await late.send_again()
    mean = await mean_of(parent, again, *(child.stay() for child in children[:4]))
    assert mean[0] == 2.0
    assert [child.uploads for child in children[:4]] == [2] * 4


async def test_as_long_as_keys_are_missing_those_are_named_who_have_shown_none(tmp_path: Path) -> None:
    parent = Parent.of(tmp_path)
    (masked,) = parent.server.opened().stages
    assert isinstance(masked, Masked)
    for number, name in enumerate(IDS):
        assert parent.server.awaited == (0, tuple(IDS[number:]), "its mask key")
        parent.updates.hear(pb.FetchModelRequest(child_id=name, mask_key=Child(parent, name).masks.key))
        masked.heard(name)
    assert parent.server.awaited == (0, tuple(IDS), "its update")


async def test_a_device_whose_update_is_in_may_come_with_another_key(tmp_path: Path) -> None:
    parent = Parent.of(tmp_path)
    children = [Child(parent, name) for name in IDS]
    jobs = [asyncio.ensure_future(child.send(vector(1.0))) for child in children[:4]]
    await asyncio.gather(children[4].client.fetch(-1), *jobs)
    born_again = Child(parent, IDS[0])
    again = asyncio.ensure_future(born_again.client.fetch(-1))
    await turns()
    mean = await mean_of(parent, children[4].send(vector(1.0)))
    assert mean[0] == 1.0
    parent.open(tmp_path, 1)
    others = [child.send(vector(2.0)) for child in children[1:]]
    received = asyncio.ensure_future(_then(again, born_again, vector(2.0)))
    assert (await mean_of(parent, received, *others))[0] == 2.0


async def _then(fetched: "asyncio.Future[Any]", child: Child, flat: Flat) -> None:
    await fetched
    await child.send(flat)


async def test_an_update_masked_for_others_is_late_and_asked_for_again(tmp_path: Path) -> None:
    parent = Parent.of(tmp_path)
    children = [Child(parent, name) for name in IDS]
    await asyncio.gather(*(child.client.fetch(-1) for child in children))
    received = await children[0].client.fetch(-1)
    assert isinstance(received, ReceivedModel)
    update = Update(
        round=0, num_examples=2, codec=children[0].client.codec_for(vector(1.0)), read=lambda a, b: vector(1.0)[a:b],
        base_digest=received.digest, trained_from=received.trained_from("lps-0", 0),
    )  # fmt: skip
    masked = children[0].masks.masked(update)
    parent.server.ban(IDS[4], "a test")
    assert not (await children[0].client.submit(masked)).accepted
    assert isinstance(await children[0].client.fetch(0, received.digest), pb.SendAgain)
    assert (await children[0].client.submit(children[0].masks.masked(update))).accepted


async def test_a_model_and_a_reply_that_were_cut_change_no_mask(tmp_path: Path) -> None:
    parent = Parent.of(tmp_path, IDS[:3])
    children = [Child(parent, IDS[0], cut_down=(1,), cut_up=(0,)), Child(parent, IDS[1]), Child(parent, IDS[2])]
    mean = await mean_of(parent, *(child.send(vector(1.0)) for child in children))
    assert mean[0] == 1.0


async def test_after_a_restart_of_the_parent_keys_are_shown_again_and_updates_sent_again(tmp_path: Path) -> None:
    parent = Parent.of(tmp_path, IDS[:3])
    children = [Child(parent, name) for name in IDS[:3]]
    await asyncio.gather(*(child.send(vector(5.0)) for child in children[:2]), children[2].client.fetch(-1))
    (tmp_path / "second").mkdir()
    restarted = Parent.of(tmp_path / "second", IDS[:3])
    for child in children:
        child.wire.server = restarted.server
    before = [child.masks.digest for child in children]
    mean = await mean_of(restarted, children[2].send(vector(5.0)), *(child.stay() for child in children[:2]))
    assert mean[0] == 5.0
    assert [child.masks.digest for child in children] == before


async def test_a_device_that_cannot_mask_is_refused_and_the_others_mask_anew(tmp_path: Path) -> None:
    parent = Parent.of(tmp_path, wait=TierDeadline(quorum_ratio=0.5))
    children = [Child(parent, name) for name in IDS]
    diverged = asyncio.ensure_future(children[4].send(vector(float("nan"))))
    mean = await mean_of(parent, *(child.take_part(vector(1.0)) for child in children[:4]))
    assert mean[0] == 1.0
    with pytest.raises(PayloadError, match="not finite"):
        await diverged
    assert IDS[4] in parent.server.refused


def no_check(child_id: str, key: pb.MaskKey) -> None:
    """Take every key."""


@pytest.mark.parametrize("is_announced", [False, True])
async def test_a_round_stops_where_too_few_are_left_to_hide_among(tmp_path: Path, is_announced: bool) -> None:
    # where updates are announced: who is left never hears of the model, and announces nothing
    deadline = announced(IDS[:3]) if is_announced else None
    parent = Parent.of(tmp_path, IDS[:3], wait=TierDeadline(quorum_ratio=0.1), deadline=deadline)
    gathering = asyncio.create_task(parent.server.gather())
    await asyncio.sleep(0)
    parent.server.ban(IDS[0], "a test")
    with pytest.raises(RunStoppedError, match=r"2 of 3 devices are left .*min_devices is 3 .device-000 was refused"):
        await asyncio.wait_for(gathering, 60)


async def test_a_masked_round_stops_at_once_where_a_device_is_refused_that_may_not_be_left_out(tmp_path: Path) -> None:
    """The others would not mask for those who are left, so nobody waits for that."""
    parent = Parent.of(tmp_path)
    children = [Child(parent, name) for name in IDS]
    await asyncio.gather(children[4].client.fetch(-1), *(child.send(vector(1.0)) for child in children[:4]))
    gathering = asyncio.create_task(parent.server.gather())
    await asyncio.sleep(0)
    parent.server.ban(IDS[4], "a test")
    with pytest.raises(
        RunStoppedError, match=r"4 of 5 have reported, but the quorum is 5; absent: device-004 .*a test"
    ):
        await asyncio.wait_for(gathering, 60)


async def test_a_sum_in_which_masks_do_not_cancel_stops_the_run_and_is_no_model(tmp_path: Path) -> None:
    parent = Parent.of(tmp_path, IDS[:3])
    children = [Child(parent, name) for name in IDS[:3]]
    liar = children[2]
    masked = liar.masks.masked

    def for_others(update: Update) -> Update:
        return masked(replace(update, trained_from=b"another"))

    liar.masks.masked = for_others  # type: ignore[method-assign]
    with pytest.raises(RunStoppedError, match="no server can tell which"):
        await mean_of(parent, *(child.send(vector(*[1.0] * LAYOUT.size)) for child in children))


async def test_a_device_that_changes_its_key_all_the_time_is_refused(tmp_path: Path) -> None:
    parent = Parent.of(tmp_path, IDS[:3])
    held = [asyncio.ensure_future(Child(parent, name).client.fetch(-1)) for name in IDS[:2]]
    for _ in range(MOST_KEYS + 1):
        await Child(parent, IDS[2]).client.fetch(-1)
    await asyncio.gather(*held)
    with pytest.raises((PayloadError, ExcludedError), match=f"more than {MOST_KEYS} times"):
        await Child(parent, IDS[2]).client.fetch(-1)
    assert IDS[2] in parent.server.refused


@pytest.mark.parametrize(
    "key",
    [
        pb.MaskKey(),
        pb.MaskKey(public_key=b"short"),
        pb.MaskKey(public_key=bytes(32), signature=b"short"),
        pb.MaskKey(public_key=bytes(32), signature=bytes(64), certificate=bytes(4096)),
    ],
)
async def test_what_is_no_key_is_refused(tmp_path: Path, key: pb.MaskKey, monkeypatch: pytest.MonkeyPatch) -> None:
    parent = Parent.of(tmp_path)
    child = Child(parent, IDS[0])
    monkeypatch.setattr(Masks, "key", key)
    with pytest.raises(PayloadError, match="give all processes the same experiment file"):
        await child.client.fetch(-1)


async def test_a_device_that_masks_is_refused_by_a_parent_that_does_not_know_of_it(tmp_path: Path) -> None:
    parent = Parent.of(tmp_path, updates=PlainUpdates())
    with pytest.raises(PayloadError, match="its parent runs without secure_aggregation"):
        await Child(parent, IDS[0]).client.fetch(-1)


async def test_keys_of_strangers_are_not_kept() -> None:
    keys = KeyRing(lambda child_id: child_id in IDS, 3, KeyCheck(EXPERIMENT.run_id, None).check)
    shown = Masks(EXPERIMENT, IDS[0], Proofs(EXPERIMENT.run_id, None)).key
    keys.show("a-stranger", shown)
    keys.show(IDS[0], shown)
    assert keys.of("a-stranger") is None
    assert keys.of(IDS[0]) == shown


@pytest.mark.parametrize(
    ("children", "says"), [(2, "form fewer clusters"), (MOST_MASKED + 1, "set training.participation")]
)
def test_a_round_of_too_few_or_too_many_does_not_begin(children: int, says: str) -> None:
    with pytest.raises(RunStoppedError, match=says):
        MaskedUpdates(lambda child_id: True, 3, no_check).check_size(children)


class Vouching:
    """Says of keys that these certificates vouch for them, and no other."""

    def __init__(self, *certificates: bytes) -> None:
        self.by = certificates

    def check(self, child_id: str, key: pb.MaskKey) -> None:
        if key.certificate not in self.by:
            raise OutdatedError("a test")


def keys_by(certificate: bytes) -> dict[str, pb.MaskKey]:
    return {
        device_id: pb.MaskKey(public_key=bytes([number]) * 32, signature=bytes(64), certificate=certificate)
        for number, device_id in enumerate(IDS)
    }


def with_old_keys() -> tuple[Vouching, KeyRing, Intake]:
    """All devices have shown keys that the old authority vouches for."""
    vouching = Vouching(b"old")
    keys = KeyRing(lambda child_id: child_id in IDS, 3, vouching.check)
    for device_id, key in keys_by(b"old").items():
        keys.show(device_id, key)
    most = dict.fromkeys(IDS, 4)
    sums = one_stream(LAYOUT.size, most, MASKED_MEAN)
    return vouching, keys, Intake(children=most, sums=sums, wait=FOREVER, enough=EnoughToMask(3))


async def test_when_an_authority_is_dropped_the_next_roster_waits_until_all_have_shown_their_keys_anew() -> None:
    vouching, keys, intake = with_old_keys()
    vouching.by = (b"old", b"new")
    assert Masked(keys, intake, 20).is_formed
    vouching.by = (b"new",)
    masking = Masked(keys, intake, 20)
    for device_id, key in keys_by(b"new").items():
        assert not masking.is_formed
        keys.show(device_id, key)
        masking.heard(device_id)
    assert masking.is_formed


async def test_a_roster_that_is_out_stays_until_all_have_shown_their_keys_by_the_other_authority() -> None:
    vouching, keys, intake = with_old_keys()
    masking = Masked(keys, intake, 20)
    digest, roster = masking.digest, masking.part.roster
    vouching.by = (b"new",)
    for device_id, key in keys_by(b"new").items():
        assert (masking.digest, masking.part.roster) == (digest, roster)
        keys.show(device_id, key)
        masking.heard(device_id)
    assert masking.digest == digest
    assert list(masking.part.roster.certificates) == [b"new"]


async def test_a_key_that_is_not_vouched_for_now_is_as_none_and_its_device_may_show_another() -> None:
    keys, (name, *_) = KeyRing(lambda child_id: True, 3, Vouching(b"new").check), IDS
    keys.show(name, keys_by(b"old")[name])
    assert keys.of(name) is None
    keys.show(name, keys_by(b"new")[name])
    assert keys.of(name) == keys_by(b"new")[name]
