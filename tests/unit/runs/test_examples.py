"""Example experiments by name: from any folder, unless a file of that name is there."""

import json
import re
from pathlib import Path

import pytest

from emulator.commands import main as cli
from emulator.results.output import unused_folder
from emulator.shipped.experiments import complete_experiment, examples, find_experiment
from fedstrata.errors import ExperimentError
from fedstrata.experiment_file import load_experiment

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The empty folder that a test stands in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.execute(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_every_example_is_listed_on_one_line_with_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "examples")
    names = [line.split()[0] for line in out.splitlines()]
    assert (code, names) == (0, sorted(path.stem for path in (REPOSITORY / "experiments").glob("*.yaml")))
    assert all(re.fullmatch(r"\w+ +[A-Z0-9].*\. *", line) for line in out.splitlines()), out


def test_show_prints_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "examples", "--show", "digits")
    assert (code, out) == (0, (REPOSITORY / "experiments" / "digits.yaml").read_text())


def test_an_example_is_checked_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "check", "digits")
    assert code == 0
    assert out.startswith(load_experiment(REPOSITORY / "experiments" / "digits.yaml").run_id)


@pytest.mark.parametrize("name", ["fmnist_random", "fmnist-random"])
def test_a_name_may_have_hyphens(name: str) -> None:
    assert find_experiment(Path(name)) == examples()["fmnist_random"].path


def test_a_file_comes_before_an_example_and_a_folder_after_it(elsewhere: Path) -> None:
    (elsewhere / "digits").mkdir()
    assert find_experiment(Path("digits")) == examples()["digits"].path
    (elsewhere / "digits").rmdir()
    (elsewhere / "digits").write_text("name: mine\n")
    assert find_experiment(Path("digits")) == Path("digits")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("digit", "there is no file digit, and no example is called 'digit'; did you mean digits?"),
        ("fmnist_3_tasks", "did you mean fmnist_three_tasks?"),
        ("qqqq", "there are digits, flat, fmnist_"),
        ("digits.yaml", "there is no file digits.yaml; for the example that comes with Fedstrata give digits"),
        ("experiments/digits.yaml", "give digits"),
        ("mine.yaml", "there is no file mine.yaml; give an experiment file, or the name of an example"),
        ("some", "some is a folder; give an experiment file"),
        ("runs/one", "for the experiment of its run give runs/one/experiment.yaml"),
    ],
)
def test_what_is_neither_a_file_nor_an_example_is_told_with_what_to_do(elsewhere: Path, given: str, said: str) -> None:
    (elsewhere / "some").mkdir()
    (elsewhere / "runs" / "one").mkdir(parents=True)
    (elsewhere / "runs" / "one" / "experiment.yaml").touch()
    with pytest.raises(ExperimentError, match=re.escape(said)):
        find_experiment(Path(given))


def test_a_run_without_out_takes_the_first_name_that_is_free(tmp_path: Path) -> None:
    assert unused_folder(tmp_path, "digits") == tmp_path / "digits"
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits-2").symlink_to("nowhere")
    assert unused_folder(tmp_path, "digits") == tmp_path / "digits-3"


def test_the_shell_is_offered_examples_experiment_files_and_folders(elsewhere: Path) -> None:
    (elsewhere / "dir").mkdir()
    (elsewhere / "dir" / "own.yaml").touch()
    (elsewhere / "di.txt").touch()
    assert list(complete_experiment("di")) == ["digits", "dir/"]
    assert list(complete_experiment("dir/")) == ["dir/own.yaml"]


def test_the_schema_knows_every_section_and_is_closed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "schema")
    schema = json.loads(out)
    assert code == 0
    assert {"name", "seed", "data", "partition", "model", "method", "training", "links"} <= set(schema["properties"])
    assert schema["additionalProperties"] is False
