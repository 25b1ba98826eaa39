"""Every example experiment runs, shortened, and so does the own code in the documents."""

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from fedstrata.datasets import load_dataset
from fedstrata.errors import DataError
from fedstrata.experiment import DataSettings, Experiment
from fedstrata.experiment_file import load_experiment, parse_experiment
from tests.support.programs import REPOSITORY
from tests.support.tiers import run_in_process

EXAMPLES = sorted((REPOSITORY / "experiments").glob("*.yaml"))
EXAMPLES_PER_DEVICE = 20


def shortened(path: Path) -> Experiment:
    """An example with one round and little data."""
    partition = load_experiment(path).partition
    parts = next((name for name in ("tasks", "groups") if hasattr(partition, name)), "")
    keys = [f"{parts}.{number}.examples_per_device" for number in range(len(getattr(partition, parts, ())))]
    keys = keys or [name for name in ("examples_per_device",) if hasattr(partition, name)]
    sizes = [f"partition.{key}={EXAMPLES_PER_DEVICE}" for key in keys]
    return load_experiment(path, ["training.global_rounds=1", "training.lps_rounds_per_global_round=1", *sizes])


@cache
def why_not_here(data: DataSettings) -> str:
    try:
        load_dataset(data, 0)
    except DataError as error:
        return str(error)
    return ""


def test_there_are_the_examples_that_the_documentation_names() -> None:
    assert {"digits", "fmnist_three_tasks", "fmnist_random"} <= {path.stem for path in EXAMPLES}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_to_a_completed_record(path: Path, tmp_path: Path) -> None:
    experiment = shortened(path)
    if reason := why_not_here(experiment.data):
        pytest.skip(f"its data set is not here: {reason}")
    summary = run_in_process(experiment, tmp_path / "run").summary
    assert summary.status == "completed"
    assert summary.rounds == 1
    assert sum(len(devices) for devices in summary.clusters.values()) == experiment.device_count
    assert not summary.excluded
    assert set(summary.model_sha256) >= set(summary.clusters)  # a cluster may have nobody in it
    assert summary.mean is not None


# --- own code in the documents ------------------------------------------------------------------------------


@pytest.fixture
def own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """own.py of docs/own-code.md and means.py of the page on methods, in the current directory; gives the former."""
    pages = ("own-code.md", "tutorial/own-method.md")
    page, other = ((REPOSITORY / "docs" / name).read_text("utf-8") for name in pages)
    for name, text in (("own", page), ("means", other)):
        source = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[0]
        (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield page
    for name in ("own", "means"):
        sys.modules.pop(name, None)


def test_own_data_model_features_and_method_find_the_tasks(own_code: str, tmp_path: Path) -> None:
    text = re.findall(r"^```yaml\n(.*?)^```", own_code, re.MULTILINE | re.DOTALL)[0]
    summary = run_in_process(parse_experiment(text), tmp_path / "run").summary
    assert summary.adjusted_rand_index == 1.0
    assert summary.clusters_rule == "2 by relevance above 0.5"
    assert summary.mean is not None
    assert summary.mean > 0.95


def test_a_method_in_fifty_lines_finds_the_tasks(own_code: str, tmp_path: Path) -> None:
    assert len((tmp_path / "means.py").read_text().splitlines()) <= 52
    section = "method={name: 'means:Means', groups: 3, mu: 0.05}"
    experiment = load_experiment(REPOSITORY / "experiments" / "digits.yaml", [section, "training.global_rounds=2"])
    summary = run_in_process(experiment, tmp_path / "run").summary
    assert summary.status == "completed"
    assert summary.adjusted_rand_index == 1.0
    assert summary.clusters_rule == "3 by mean input"
