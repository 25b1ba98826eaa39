"""Models of a record whose files were damaged after the run."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from rich.console import Console
from safetensors.numpy import load_file, save_file

import fedstrata
from emulator.results.compare import compare, show
from emulator.results.read_record import load_record
from emulator.results.weights import check_models, read_weights
from fedstrata.errors import DataError
from tests.support.record_files import write_models, write_record

MODELS = {"lps-0": {"w": np.float32([1, 2])}, "lps-1": {"w": np.float32([3, 4])}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    written = write_record(tmp_path / "run")
    write_models(written, MODELS)
    return written


def with_weights(change: Callable[[NDArray[np.float32]], NDArray[np.float32]], name: str = "w") -> Callable[..., None]:
    def damage(path: Path) -> None:
        save_file({name: change(load_file(path)["w"])}, path)

    return damage


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def empty_digest(path: Path) -> None:
    summary = path.parents[1] / "summary.json"
    document = json.loads(summary.read_text("utf-8"))
    summary.write_text(json.dumps({**document, "model_sha256": {}}), encoding="utf-8")


DAMAGES = [
    flip_a_bit,
    with_weights(lambda values: values * np.float32(np.nan)),
    with_weights(lambda values: values[::-1].copy()),
    with_weights(lambda values: values.reshape(1, 2)),
    with_weights(lambda values: values[:1]),
    with_weights(lambda values: values, name="v"),
    lambda path: path.write_bytes((path.parent / "lps-1.safetensors").read_bytes()),
    lambda path: path.write_bytes(path.read_bytes()[:-4]),
    lambda path: path.write_bytes(b""),
    lambda path: path.unlink(),
    lambda path: (path.unlink(), path.mkdir()),
    lambda path: (path.unlink(), path.symlink_to("/dev/zero")),
    empty_digest,
]


def test_models_as_the_run_wrote_them_are_read(folder: Path) -> None:
    record = load_record(folder)
    check_models(record)
    assert read_weights(record, "lps-0")["w"].tolist() == [1, 2]


def test_a_failed_run_has_no_model_to_copy(folder: Path) -> None:
    path = folder / "models" / "lps-0.safetensors"
    empty_digest(path)
    path.unlink()
    summary = folder / "summary.json"
    summary.write_text(json.dumps(json.loads(summary.read_text("utf-8")) | {"status": "failed"}), encoding="utf-8")
    for advice in ("its state, and fetch the record again", "fedstrata run --resume"):
        with pytest.raises(DataError, match=f"has no model of lps-0, .* not complete; finish it with {advice}"):
            read_weights(load_record(folder), "lps-0")
        (folder / "state").mkdir(exist_ok=True)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_model_is_named_wherever_it_is_read(folder: Path, damage: Callable[[Path], None]) -> None:
    damage(folder / "models" / "lps-0.safetensors")
    with pytest.raises(DataError, match=r"lps-0\.safetensors.*copy the record again") as raised:
        fedstrata.load(folder).models["lps-0"]
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("damage", [*DAMAGES[:9], *DAMAGES[10:]])
def test_a_damaged_model_is_not_copied(folder: Path, damage: Callable[[Path], None]) -> None:
    damage(folder / "models" / "lps-0.safetensors")
    with pytest.raises(DataError, match=r"lps-0\.safetensors"):
        check_models(load_record(folder))


def test_only_whole_models_are_equal_to_the_bit(folder: Path, tmp_path: Path) -> None:
    other = write_record(tmp_path / "other")
    write_models(other, MODELS)
    flip_a_bit(other / "models" / "lps-0.safetensors")
    console = Console(width=400, record=True)
    show(compare([folder, other]), console)
    told = console.export_text()
    assert "Equal weights" not in told
    assert f"Damaged: {other}/models/lps-0.safetensors has other weights" in told
