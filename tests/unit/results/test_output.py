"""The folder of a run that is to go on: refused where it was altered, and a record that is cut made again."""

import json
import resource
from pathlib import Path

import pytest

from emulator.commands import main as cli
from emulator.results.output import prepare_folder, resume_folder, run_folder
from fedstrata.errors import ExperimentError, OutputError
from fedstrata.experiment import Experiment
from fedstrata.experiment_file import parse_experiment
from fedstrata.store import whole_files
from tests.support.record_files import SUMMARY

TEXT = "name: five\npartition: {kind: iid, devices: 5, examples_per_device: 20}\nmethod: {name: random, clusters: 1}\n"


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    """An experiment whose run has begun in the folder."""
    made = parse_experiment(TEXT)
    prepare_folder(tmp_path, made)
    (tmp_path / "state" / "gps" / made.run_id / "record").mkdir(parents=True)
    return made


def summary_of(folder: Path, experiment: Experiment) -> Path:
    return folder / "state" / "gps" / experiment.run_id / "record" / "summary.json"


def test_an_experiment_file_that_was_altered_is_told_and_no_other_run_begun(
    tmp_path: Path, experiment: Experiment
) -> None:
    assert resume_folder(tmp_path).run_id == experiment.run_id
    (tmp_path / "experiment.yaml").write_text(TEXT + "seed: 7\n", encoding="utf-8")
    with pytest.raises(ExperimentError, match=rf"was altered: it describes run five-.* is of {experiment.run_id}"):
        resume_folder(tmp_path)


@pytest.mark.parametrize("text", ['{"status": "comp', "", "[]", '{"status": "failed"}', "[" * 100_000])
def test_a_record_that_is_cut_or_of_a_failed_end_is_made_again(
    tmp_path: Path, experiment: Experiment, text: str
) -> None:
    summary_of(tmp_path, experiment).write_text(text, encoding="utf-8")
    resume_folder(tmp_path)
    assert not summary_of(tmp_path, experiment).exists()


def test_the_record_of_a_completed_run_stays(tmp_path: Path, experiment: Experiment) -> None:
    summary_of(tmp_path, experiment).write_text(json.dumps(SUMMARY), encoding="utf-8")
    resume_folder(tmp_path)
    assert summary_of(tmp_path, experiment).exists()


def test_an_experiment_file_that_does_not_fit_on_the_disk_is_not_left_in_part(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.raises(OutputError, match="cannot write"):
            prepare_folder(tmp_path, parse_experiment(TEXT))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not (tmp_path / "experiment.yaml").exists()


# --- a folder that another process works in ----------------------------------------------------------------------


def tree(folder: Path) -> dict[str, bytes]:
    """All files of a folder with what is in them."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_that_still_goes_on_is_not_resumed_and_nothing_of_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(whole_files, "CLAIM_TRIES", 1)
    monkeypatch.setattr(whole_files, "CLAIM_PAUSE_S", 0.0)
    made, out = parse_experiment(TEXT), tmp_path / "run"
    with run_folder(out, made):
        summary = summary_of(out, made)
        summary.parent.mkdir(parents=True)
        summary.write_text('{"status": "failed"}', encoding="utf-8")  # a run writes it before it ends
        before = tree(out)
        assert cli.execute(["run", "--resume", str(out), "--quiet"]) != 0
        assert (
            capsys.readouterr().err
            == f"error: {out / 'state'} is in use by another process; stop that process, or give another folder\n"
        )
        assert tree(out) == before  # no certificates, and the record is there
    with run_folder(out, None) as again:
        assert again.run_id == made.run_id
    assert not summary.exists()


def test_a_run_without_its_logs_is_resumed_with_new_ones(tmp_path: Path, experiment: Experiment) -> None:
    (tmp_path / "logs").rmdir()
    resume_folder(tmp_path)
    assert (tmp_path / "logs").is_dir()


def test_a_folder_that_is_no_runs_is_not_resumed(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="has no state/ to continue from"), run_folder(tmp_path, None):
        pass
    assert not list(tmp_path.iterdir())
