"""Profiles under local differential privacy: how much noise, where it comes from, and what it leaves of a profile."""

import math
from pathlib import Path

import numpy as np
import pytest

from device.work import noise_of
from fedstrata.errors import ExperimentError, RunStoppedError, StateError
from fedstrata.experiment import Experiment
from fedstrata.experiment.privacy import ProfilePrivacy
from fedstrata.experiment_file import parse_experiment
from fedstrata.methods.one_shot import PROFILE, RELEVANCE
from fedstrata.methods.profiles.private_profiles import noise_deviation, private_spectrum
from fedstrata.methods.profiles.relevance import relevance, spectrum_of
from fedstrata.noise import BEFORE_TRAINING, ResearchNoise, SealedNoise, normals, on_grid
from fedstrata.privacy.report import privacy_lines
from fedstrata.record.privacy import privacy_summary
from tests.support.device_work import Devices

FILE = """
name: private
partition: {kind: iid, devices: 3, examples_per_device: 120}
method: {name: one_shot, clusters: 1}
privacy: {noise: research, profiles: {epsilon: 4, clip: 1}}
"""


def private(*overrides: str) -> Experiment:
    return parse_experiment(FILE, overrides=overrides)


# --- how much ---------------------------------------------------------------------------------------------------


def test_noise_is_in_proportion_to_what_one_example_moves() -> None:
    settings = ProfilePrivacy(epsilon=1, delta=1e-5, clip=1)
    assert noise_deviation(settings, 200, 16) == pytest.approx(3.7306 * math.sqrt(2) / 200, rel=1e-4)
    one, other = np.eye(4)[0], np.eye(4)[1]  # the two examples that move the matrix most
    moved = np.outer(one, one) - np.outer(other, other)
    assert np.linalg.norm(moved) == pytest.approx(math.sqrt(2))
    assert np.linalg.norm(moved[np.triu_indices(4)]) <= math.sqrt(2) * (1 + 1e-12)


def test_a_long_example_counts_as_one_of_the_clips_length() -> None:
    settings, rows = ProfilePrivacy(epsilon=100, clip=2, min_examples=1), np.tile([[3.0, 0, 0]], (1000, 1))
    rows[0] = [0, 4000.0, 0]
    spectrum = private_spectrum(rows, settings, ResearchNoise(0, "device-000"))
    assert spectrum.eigenvalues[0] == pytest.approx(4 * 0.999, abs=0.01)
    assert spectrum.eigenvalues[1] < 0.02  # 16,000 without the clip


def test_with_much_epsilon_the_profile_is_that_without_noise() -> None:
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(5000, 6)) * [6, 5, 4, 3, 2, 1]
    plain = spectrum_of(rows)
    noised = private_spectrum(rows, ProfilePrivacy(epsilon=100, clip=60, min_examples=1), ResearchNoise(0, "x"))
    cosines = np.abs(np.sum(plain.eigenvectors[:3] * noised.eigenvectors[:3], axis=1))
    assert cosines.min() > 0.99
    assert relevance(noised, plain.profile(3), k=3) > 0.9


def test_noise_is_standard_normal_and_lies_on_the_grid() -> None:
    drawn = normals(b"key", 200_001)
    assert len(drawn) == 200_001
    assert abs(drawn.mean()) < 0.01
    assert abs(drawn.std() - 1) < 0.01
    assert abs((drawn**4).mean() - 3) < 0.1
    few = normals(b"key", 9)
    assert np.array_equal(on_grid(b"key", 9, 0.5, 2.0**32), np.rint(few * 2.0**31).astype(np.int64))
    assert not np.array_equal(few, normals(b"kez", 9))


# --- where it comes from ----------------------------------------------------------------------------------------


def test_noise_for_research_has_an_address() -> None:
    keys = {
        ResearchNoise(seed, who).key(lps_round, b"") for seed in (0, 1) for who in ("a", "b") for lps_round in (0, 1)
    }
    assert len(keys) == 8
    assert ResearchNoise(0, "a").key(0, b"this") == ResearchNoise(0, "a").key(0, b"that")


@pytest.mark.parametrize(("number", "when"), [(3, "in LPS round 4"), (BEFORE_TRAINING, "before training")])
def test_a_second_process_adds_the_same_noise_and_releases_nothing_else(tmp_path: Path, number: int, when: str) -> None:
    path = tmp_path / "device-000" / "noise"
    key = SealedNoise(path, "run", "device-000").key(number, b"values")
    assert path.stat().st_mode & 0o077 == 0
    again = SealedNoise(path, "run", "device-000")
    assert again.key(number, b"values") == key
    assert again.key(number + 1, b"values") != key
    with pytest.raises(RunStoppedError, match=f"other values were released {when}, and"):
        SealedNoise(path, "run", "device-000").key(number, b"others")


def test_what_is_released_is_on_disk_before_its_key_is_given(tmp_path: Path) -> None:
    class Dies(SealedNoise):
        def _write(self, secret: bytes, known: dict[str, str]) -> None:
            raise StateError("no space left")

    with pytest.raises(StateError, match="no space"):
        Dies(tmp_path / "noise", "run", "device-000").key(BEFORE_TRAINING, b"values")
    assert not (tmp_path / "noise").exists()


def test_two_devices_and_two_runs_have_secrets_of_their_own(tmp_path: Path) -> None:
    keys = {SealedNoise(tmp_path / str(n), "run", "device").key(0, b"values") for n in range(3)}
    assert len(keys) == 3


@pytest.mark.parametrize("content", [b"", b"\0" * 64, b"{}"])
def test_a_damaged_file_of_noise_stops_the_device_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "noise"
    path.write_bytes(content)
    with pytest.raises(StateError, match="noise"):
        SealedNoise(path, "run", "device").key(0, b"values")


def test_noise_of_another_device_is_refused(tmp_path: Path) -> None:
    SealedNoise(tmp_path / "noise", "run", "one").key(0, b"values")
    with pytest.raises(StateError, match="expected"):
        SealedNoise(tmp_path / "noise", "run", "other").key(0, b"values")


def test_protection_needs_a_folder() -> None:
    with pytest.raises(ExperimentError, match="give --state"):
        noise_of(private("privacy.noise=protection"), "device-000", None)
    assert isinstance(noise_of(private("privacy.noise=protection"), "device-000", Path("there")), SealedNoise)


# --- what leaves a device -----------------------------------------------------------------------------------------


async def test_all_that_a_device_answers_comes_of_its_noised_matrix() -> None:
    devices = Devices(private())
    work, (profile, row) = devices.work(0), devices.method.questions()
    assert (profile.name, row.name) == (PROFILE, RELEVANCE)
    told = (await devices.method.answer(profile, work, {}))["eigenvectors"]
    rows = work.examples.inputs.reshape(len(work.examples), -1).astype(np.float64)
    settings = devices.experiment.privacy
    assert settings is not None
    assert settings.profiles is not None
    noised = private_spectrum(rows, settings.profiles, ResearchNoise(0, "device-000"))
    assert np.array_equal(told, noised.profile(5))
    other = (await devices.method.answer(profile, devices.work(1), {}))["eigenvectors"]
    heard = await devices.method.hear(profile, work, {"eigenvectors": other})
    assert heard == relevance(noised, other, k=5)
    assert heard != relevance(spectrum_of(rows), other, k=5)
    devices.method.check_answer(profile, {"eigenvectors": told}, ())


# --- the file -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("privacy={noise: research}", "adds noise to nothing"),
        ("privacy={profiles: {epsilon: 1, clip: 1}}", "privacy.noise"),
        ("privacy.noise=both", "privacy.noise"),
        ("privacy.profiles.epsilon=0", "privacy.profiles.epsilon"),
        ("privacy.profiles.epsilon=.inf", "privacy.profiles.epsilon"),
        ("privacy.profiles.delta=0", "privacy.profiles.delta"),
        ("privacy.profiles.clip=-1", "privacy.profiles.clip"),
        ("privacy.profiles.min_examples=121", "the partition gives a device 120: a profile of few"),
        ("partition.test_share=0.5", "the partition gives a device 60"),
    ],
)
def test_what_cannot_be_private_is_refused_in_one_line(override: str, said: str) -> None:
    with pytest.raises(ExperimentError, match=said) as refused:
        private(override)
    assert "\n" not in str(refused.value)


def test_a_device_that_has_too_few_examples_refuses_itself() -> None:
    with pytest.raises(ExperimentError, match="min_examples"):
        private_spectrum(np.ones((99, 3)), ProfilePrivacy(epsilon=1, clip=1), ResearchNoise(0, "x"))


def test_privacy_is_part_of_the_runs_id() -> None:
    plain = parse_experiment(FILE.partition("privacy")[0])
    assert "privacy: null" in plain.to_yaml()
    ids = {plain.run_id, private().run_id, private("privacy.profiles.epsilon=5").run_id}
    assert len(ids | {private("privacy.noise=protection").run_id}) == 4


def test_the_record_says_epsilon_and_whether_it_protects() -> None:
    for noise in ("research", "protection"):
        asked = private(f"privacy.noise={noise}")
        said = privacy_summary(asked)
        assert said is not None
        assert said.profiles is not None
        assert said.profiles["epsilon"] == 4
        assert said.is_protection is (noise == "protection") is not said.is_repeatable
        assert any("protects nothing" in line for line in privacy_lines(asked)) is (noise == "research")
