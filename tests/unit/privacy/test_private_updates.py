"""Updates under differential privacy: how much noise, what ε it comes to, what leaves a device, what is refused."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent, get_epsilon_gaussian
from dp_accounting.pld import PLDAccountant

from device.__main__ import load
from device.personal import KeptInMemory
from device.round_job import RoundJob
from device.work import DeviceProcess
from emulator.runs.progress import progress_line, status_fields
from fedstrata.errors import ExperimentError, PayloadError, RunStoppedError
from fedstrata.experiment import Experiment, LinkSettings
from fedstrata.experiment_file import parse_experiment
from fedstrata.methods.cohort import cohort
from fedstrata.noise import Noise, ResearchNoise, SealedNoise, epsilon_of, noise_multiplier_of
from fedstrata.partitions import device_data
from fedstrata.privacy.report import EpsilonSpent, privacy_lines
from fedstrata.privacy.updates import UpdateBudget, _on_grid, _scale, budget_of, private_update
from fedstrata.process.logs import EventLog
from fedstrata.process.metrics import ProcessMetrics
from fedstrata.record.privacy import privacy_summary
from fedstrata.rounds import Identity, ParentCalls, ReceivedModel, RoundClient, Update
from fedstrata.tensors import ExactSum, Flat
from fedstrata.trust.security import OPEN
from fedstrata.v1 import gps_service_pb2 as pb

FILE = """
name: private
partition: {kind: iid, devices: 6, examples_per_device: 40}
model: {name: mlp, hidden: [4]}
method: fedavg
training: {global_rounds: 4, lps_rounds_per_global_round: 2, local_steps: 2, batch_size: 16}
privacy: {noise: research, updates: {epsilon: 8, clip: 0.5}}
"""
MASKS = "secure_aggregation={min_devices: 4}"


def private(*overrides: str) -> Experiment:
    return parse_experiment(FILE, overrides=overrides)


def budget(*overrides: str) -> UpdateBudget:
    found = budget_of(private(*overrides))
    assert found is not None
    return found


# --- how much ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("multiplier", [0.02, 0.1, 0.5, 1.0, 4.0, 50.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
def test_epsilon_of_one_release_is_the_librarys(multiplier: float, delta: float) -> None:
    assert epsilon_of(multiplier, delta) == pytest.approx(get_epsilon_gaussian(multiplier, delta), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("epsilon", [0.1, 8.0, 100.0, 1000.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
def test_epsilon_and_noise_are_each_others_inverse_far_out_too(epsilon: float, delta: float) -> None:
    assert epsilon_of(noise_multiplier_of(epsilon, delta), delta) == pytest.approx(epsilon, rel=1e-6)


@pytest.mark.parametrize(("releases", "multiplier"), [(8, 2.0), (8, 8.0), (100, 20.0)])
def test_epsilon_of_a_run_is_that_of_the_librarys_composition(releases: int, multiplier: float) -> None:
    rounds = f"training.global_rounds={releases // 2}"
    found = budget(f"privacy.updates={{clip: 1, noise_multiplier: {multiplier}}}", rounds)
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    # replaced data move an update by twice its length, so the library's multiplier is half of it
    accountant.compose(SelfComposedDpEvent(GaussianDpEvent(multiplier / 2), releases))
    assert found.releases == releases
    assert found.epsilon == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-2)
    assert found.epsilon == pytest.approx(get_epsilon_gaussian(multiplier / 2 / math.sqrt(releases), 1e-5), rel=1e-6)


def test_noise_for_an_epsilon_is_that_of_one_release_times_the_root_of_all() -> None:
    found = budget()
    one = noise_multiplier_of(8, 1e-5)
    assert found.releases == 8
    assert found.deviation == pytest.approx(math.sqrt(8) * one * 2 * 0.5)
    assert found.epsilon == 8
    assert found.epsilon_after(2) == pytest.approx(epsilon_of(math.sqrt(8 / 2) * one, 1e-5))
    assert 0 == found.epsilon_after(0) < found.epsilon_after(1) < found.epsilon_after(7) < 8


def test_for_sums_each_device_adds_its_share_and_its_update_by_itself_has_less() -> None:
    alone, shared = budget(), budget(MASKS, "privacy.updates.covers=sum")
    assert shared.deviation == pytest.approx(alone.deviation / math.sqrt(4))
    assert shared.epsilon == 8
    one = noise_multiplier_of(8, 1e-5)
    assert shared.epsilon_after(8, 1) == pytest.approx(epsilon_of(one / math.sqrt(4), 1e-5))
    assert budget(MASKS).epsilon_after(8, 4) == pytest.approx(epsilon_of(one * math.sqrt(4), 1e-5))


def test_with_participation_the_rounds_count_that_the_seed_draws_a_device_for() -> None:
    found = budget("training.participation=2", "seed=5")
    drawn = [cohort(range(6), 2, 5, number) for number in range(8)]
    often = [sum(index in there for there in drawn) for index in range(6)]
    assert found.releases == max(often) < 8
    assert found.deviation == pytest.approx(math.sqrt(max(often)) * noise_multiplier_of(8, 1e-5) * 2 * 0.5)
    assert found.releases_in(1) == 1
    out = next(index for index in range(6) if index not in drawn[0])
    with pytest.raises(PayloadError, match="round 1 of 8, but this device takes no part"):
        private_update(np.ones(9, np.float32), found, ResearchNoise(0, "x"), device_index=out, lps_round=0)


def test_one_device_a_round_is_not_the_share_of_all_devices() -> None:
    assert budget("training.participation=1").releases < 8
    assert budget("training.participation=1.0").releases == 8


@pytest.mark.parametrize(
    "override",
    ["topology={lps: 2}", "newcomers={share: 0.2, from_global_round: 2}", "deadlines.enrolment.deadline_s=5"],
)
def test_where_more_than_the_seed_decides_all_rounds_count(override: str) -> None:
    assert budget("training.participation=2", override).releases == 8


# --- what leaves a device ---------------------------------------------------------------------------------------


def noised(update: Flat, found: UpdateBudget, lps_round: int = 0, noise: Noise | None = None) -> Flat:
    return private_update(update, found, noise or ResearchNoise(0, "device-000"), device_index=0, lps_round=lps_round)


def test_an_update_is_shortened_and_noised_by_as_much_as_said() -> None:
    found = budget()
    update = np.random.default_rng(3).normal(size=300_001).astype(np.float32)
    left, zeros = noised(update, found), noised(np.zeros_like(update), found)
    assert np.linalg.norm(left.astype(np.float64) - zeros) == pytest.approx(0.5, rel=1e-3)
    assert zeros.std() == pytest.approx(found.deviation, rel=0.01)
    assert abs(zeros.mean()) < 4 * found.deviation / math.sqrt(len(zeros))
    for at in (1 << 14, 1 << 18):  # neither noise nor pieces are there twice
        assert abs(np.corrcoef(zeros[:-at], zeros[at:])[0, 1]) < 0.01
    assert not np.array_equal(zeros, noised(np.zeros_like(update), found, 1))


def test_a_short_update_stays_as_long_as_it_is() -> None:
    found = budget("privacy.updates={clip: 0.5, noise_multiplier: 0.001}")
    update = np.full(16, 0.1, np.float32)
    assert np.abs(noised(update, found) - update).max() < 6 * found.deviation < 0.01


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_counts_as_zeros(bad: float) -> None:
    update = np.ones(9, np.float32)
    update[4] = bad
    assert np.array_equal(noised(update, budget()), noised(np.zeros(9, np.float32), budget()))


@pytest.mark.parametrize("lps_round", [-1, 8, 10**6])
def test_a_round_that_the_run_has_not_is_refused(lps_round: int) -> None:
    with pytest.raises(PayloadError, match="ε counts no update there"):
        noised(np.ones(9, np.float32), budget(), lps_round)


@pytest.mark.parametrize("clip", [1e-4, 0.37, 1.0, 1e3])
def test_what_leaves_lies_on_a_grid_that_float32_and_exact_sums_keep(clip: float) -> None:
    found = budget(f"privacy.updates.clip={clip}", MASKS, "privacy.updates.covers=sum")
    updates = [
        noised(np.linspace(-clip, clip, 1000, dtype=np.float32), found, noise=ResearchNoise(0, f"{index}"))
        for index in range(4)
    ]
    counts = [update.astype(np.float64) * found.grid for update in updates]
    assert all(np.array_equal(each, np.rint(each)) for each in counts)
    assert max(np.abs(each).max() for each in counts) <= 2**24  # float32 has all whole numbers up to there
    assert found.deviation * found.grid > 1000  # steps are far finer than noise
    total = ExactSum(1000, 4)
    for update in updates:
        total.add(update, 1)
    assert np.array_equal(total.sums() * 2.0**-32, sum(counts) / found.grid)


def test_rounding_makes_no_update_longer() -> None:
    found = budget("privacy.updates={clip: 1, noise_multiplier: 0.001}")
    update = np.random.default_rng(0).normal(size=5000).astype(np.float32)
    kept: list[bytes] = []

    class Caught(ResearchNoise):
        def key(self, lps_round: int, released: bytes) -> bytes:
            kept.append(released)
            return super().key(lps_round, released)

    noised(update, found, noise=Caught(0, "x"))
    scale = _scale(update, 1.0)
    assert scale is not None
    ((_, counts),) = _on_grid(update, scale, found.grid)
    length = math.sqrt(sum(int(count) ** 2 for count in counts)) / found.grid
    assert 1 - 1e-3 < length <= 1 + 1e-9
    assert len(kept) == 1


# --- a round at a device ----------------------------------------------------------------------------------------


def host_of(*overrides: str, state: Path | None = None) -> DeviceProcess:
    return load(private(*overrides), cast(Any, SimpleNamespace(security=OPEN)), ProcessMetrics("device"), state)


async def sent_by(host: DeviceProcess, lps_round: int = 0, seed: int = 7) -> Update:
    """What device 1 sends that has received a model."""
    received = ReceivedModel(
        round=lps_round, global_round=lps_round // 2, evaluate_only=False, plan_version=1, flat=host.model.initial(seed)
    )
    unused: Any = None
    client = RoundClient(
        ParentCalls(stream=unused, submit=unused, locate=unused),
        Identity(run_id="run", child_id="device-001", home_id="lps-0"),
        host.streams.travelling, link=LinkSettings(), log=EventLog("test"),
    )  # fmt: skip
    job = RoundJob(
        host, device_data(host.experiment, host.dataset, 1), received, device_index=1, device_id="device-001",
        client=client, store=KeptInMemory(), made={},
    )  # fmt: skip
    sent = await job.begin()
    assert isinstance(sent, Update)
    return sent


def values_of(sent: Update) -> Flat:
    return sent.read(0, sent.codec.layout.size)


async def test_a_device_sends_its_noised_update_and_counts_as_one() -> None:
    plain = await sent_by(host_of("privacy=null"), 3)
    sent = await sent_by(host_of(), 3)
    assert (plain.num_examples, sent.num_examples) == (40, 1)
    expected = private_update(values_of(plain), budget(), ResearchNoise(0, "device-001"), device_index=1, lps_round=3)
    assert np.array_equal(values_of(sent), expected)
    assert not np.array_equal(values_of(sent), values_of(plain))


async def test_noise_for_protection_is_the_same_after_a_death_and_no_other_update_leaves(tmp_path: Path) -> None:
    words = ("privacy.noise=protection",)
    first = await sent_by(host_of(*words, state=tmp_path))
    again = await sent_by(host_of(*words, state=tmp_path))  # another process
    assert np.array_equal(values_of(first), values_of(again))
    assert not np.array_equal(values_of(first), values_of(await sent_by(host_of(*words, state=tmp_path / "other"))))
    with pytest.raises(RunStoppedError, match="other values were released in LPS round 1"):
        await sent_by(host_of(*words, state=tmp_path), seed=8)


async def test_the_hash_of_an_update_is_on_disk_before_it_is_noised(tmp_path: Path) -> None:
    host = host_of("privacy.noise=protection", state=tmp_path)
    await sent_by(host)
    path = tmp_path / host.experiment.run_id / "device-001" / "noise"
    assert path.exists()
    assert SealedNoise(path, host.experiment.run_id, "device-001")._read()[1].keys() == {"0"}


# --- what is said of it -----------------------------------------------------------------------------------------


def test_the_record_says_epsilon_of_what_over_how_many_rounds() -> None:
    asked = private(MASKS, "privacy.updates.covers=sum")
    said = privacy_summary(asked, EpsilonSpent(asked).after(4))
    assert said is not None
    found = said.updates
    assert found is not None
    assert (found.epsilon, found.epsilon_spent, found.delta) == (8, 8, 1e-5)
    assert (found.covers, found.releases, found.clip) == ("sum", 8, 0.5)
    assert found.epsilon_of_sums == pytest.approx(8)
    assert found.epsilon_of_updates > 2 * 8
    assert said.not_covered[:2] == ("losses and hits", "numbers of examples")
    assert "updates" not in said.not_covered
    lines = privacy_lines(asked)
    assert lines[0].startswith(
        "sums of 4 updates or more: ε 8, δ 1e-05, in all rounds together (at most 8 of a device)"
    )
    assert any("protects nothing" in line for line in lines)
    alone = privacy_lines(private(MASKS))
    assert alone[0].startswith("each update, against anybody who sees it: ε 8")
    assert "only sums of 4 updates or more: ε" in alone[1]


def test_epsilon_spent_counts_the_open_round_and_nothing_before_devices_are_grouped() -> None:
    spent = EpsilonSpent(private())
    assert spent.after(0, is_grouped=False) == 0
    found = [spent.after(done) for done in range(5)]
    assert found[0] == pytest.approx(budget().epsilon_after(2))
    assert found[3] == found[4] == 8
    assert EpsilonSpent(private("privacy=null")).after(2) is None


def test_epsilon_spent_is_worked_out_once_for_each_number_of_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    worked_out: list[float] = []

    def counted(multiplier: float, delta: float) -> float:
        worked_out.append(multiplier)
        return epsilon_of(multiplier, delta)

    monkeypatch.setattr("fedstrata.privacy.updates.epsilon_of", counted)
    spent = EpsilonSpent(private())
    told = [spent.after(done) for done in (0, 0, 0, 1, 1)]
    assert (len(worked_out), len(set(told))) == (2, 2)


def test_progress_tells_epsilon() -> None:
    status = pb.RunStatus(phase="training", global_round=1, global_rounds=4, epsilon_spent=3.14159)
    assert progress_line(status) == "training: global round 1/4, ε 3.14 spent"
    assert status_fields(status)["epsilon_spent"] == 3.14159
    assert status_fields(pb.RunStatus(phase="training"))["epsilon_spent"] is None


# --- the file ---------------------------------------------------------------------------------------------------

SUM = "{epsilon: 8, clip: 1, covers: sum}"


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["privacy.updates={clip: 1}"], "one of epsilon and noise_multiplier"),
        (["privacy.updates.noise_multiplier=1"], "one of epsilon and noise_multiplier"),
        (["privacy.updates={epsilon: 1}"], "privacy.updates.clip"),
        (["privacy.updates.clip=0"], "privacy.updates.clip"),
        (["privacy.updates.clip=.nan"], "privacy.updates.clip"),
        (["privacy.updates.epsilon=0"], "privacy.updates.epsilon"),
        (["privacy.updates.epsilon=.nan"], "privacy.updates.epsilon"),
        (["privacy.updates.delta=1"], "privacy.updates.delta"),
        (["privacy.updates.delta=0"], "privacy.updates.delta"),
        (["privacy.updates={clip: 1, noise_multiplier: 0}"], "privacy.updates.noise_multiplier"),
        (["privacy.updates.covers=all"], "privacy.updates.covers"),
        (["privacy.updates.at=lps"], "at"),
        (
            ["privacy.updates={clip: 10000, noise_multiplier: 10000}"],
            "can reach ±1.3e.09, and sums hold at most ±262144",
        ),
    ],
)
def test_what_noise_cannot_cover_is_refused_in_one_line(overrides: list[str], said: str) -> None:
    with pytest.raises(ExperimentError, match=said) as refused:
        private(*overrides)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "ditto", "fedper", "{name: random, clusters: 2}"])
def test_methods_that_only_send_updates_go_with_noise(method: str) -> None:
    assert budget(f"method={method}").releases == 8


def test_profiles_and_updates_may_both_be_noised() -> None:
    both = private(
        "method={name: one_shot, clusters: 1}", "partition.examples_per_device=200",
        "privacy.profiles={epsilon: 4, clip: 5}",
    )  # fmt: skip
    said = privacy_lines(both)
    assert said[0].startswith("profiles: ε 4")
    assert said[1].startswith("each update, against anybody who sees it: ε 8")


def test_noise_on_updates_is_part_of_the_runs_id_and_its_absence_is_not() -> None:
    ids = {private().run_id, private("privacy.updates.epsilon=9").run_id, private("privacy=null").run_id}
    assert len(ids | {private("privacy.noise=protection").run_id}) == 4


def test_two_amounts_of_noise_are_two_runs_because_the_same_noise_at_two_scales_reveals_the_update() -> None:
    shared = [
        private(MASKS, f"secure_aggregation.min_devices={least}", "privacy.updates.covers=sum") for least in (4, 5)
    ]
    assert budget_of(shared[0]) != budget_of(shared[1])
    assert shared[0].run_id != shared[1].run_id
    assert private(MASKS).run_id == private().run_id
