"""Files of models and of state: whole or not there, and never believed when they were altered."""

import hashlib
import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedstrata.errors import StateError, SupersededError
from fedstrata.store import ModelFile, ModelInMemory, clear_asides, read_sealed, write_aside, write_model, write_sealed
from fedstrata.tensors import Flat, Layout

LAYOUT = Layout.of({"fc1.weight": (3, 2), "fc1.bias": (2,)})
FLAT = np.arange(8, dtype=np.float32) - 3


def written(path: Path, **metadata: str) -> bytes:
    write_model(path, LAYOUT, [FLAT[:3], FLAT[3:]], {"run_id": "run-1", **metadata})
    return path.read_bytes()


def test_a_model_comes_back_as_it_was_written(tmp_path: Path) -> None:
    written(tmp_path / "m.safetensors")
    model = ModelFile(tmp_path / "m.safetensors", LAYOUT)
    model.verify()
    assert model.read_all().tobytes() == FLAT.tobytes()
    assert model.metadata == {"run_id": "run-1"}
    model.close()


def test_other_programs_read_it_as_safetensors(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    written(tmp_path / "m.safetensors")
    tensors = load_file(tmp_path / "m.safetensors")
    assert tensors["fc1.weight"].tolist() == FLAT[:6].reshape(3, 2).tolist()
    assert tensors["fc1.bias"].tolist() == FLAT[6:].tolist()


def test_the_same_model_gives_the_same_bytes(tmp_path: Path) -> None:
    assert written(tmp_path / "a") == written(tmp_path / "b")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_model_file_with_any_bit_flipped_is_refused_by_name(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "m.safetensors"
    content = bytearray(written(path))
    place = data.draw(st.integers(0, 8 * len(content) - 1))
    content[place // 8] ^= 1 << place % 8
    path.write_bytes(content)
    with pytest.raises(StateError, match=r"m\.safetensors"):
        ModelFile(path, LAYOUT).verify()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_model_file_cut_anywhere_or_made_longer_is_refused_by_name(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "m.safetensors"
    content = written(path)
    length = data.draw(st.integers(0, len(content) + 9).filter(lambda n: n != len(content)))
    path.write_bytes((content + bytes(9))[:length])
    with pytest.raises(StateError, match=r"m\.safetensors"):
        ModelFile(path, LAYOUT)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 8,
        (1 << 40).to_bytes(8, "little"),
        (4).to_bytes(8, "little") + b"[[[[",
        b"\x02" + bytes(7) + b"{}",
    ],
)
def test_what_is_no_model_file_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    with pytest.raises(StateError, match=r"m\.safetensors"):
        ModelFile(path, LAYOUT)


def test_a_header_nested_without_end_is_refused_by_name(tmp_path: Path) -> None:
    path, text = tmp_path / "m.safetensors", b"[" * 200_000
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(StateError, match=r"m\.safetensors"):
        ModelFile(path, LAYOUT)


def test_the_file_of_another_model_is_refused_by_name(tmp_path: Path) -> None:
    written(tmp_path / "m.safetensors")
    with pytest.raises(StateError, match="has other tensors than this model"):
        ModelFile(tmp_path / "m.safetensors", Layout.of({"fc1.weight": (2, 3), "fc1.bias": (2,)}))


def test_a_reader_that_comes_after_the_round_is_told_so(tmp_path: Path) -> None:
    written(tmp_path / "m.safetensors")
    model = ModelFile(tmp_path / "m.safetensors", LAYOUT)
    model.close()
    with pytest.raises(SupersededError, match="over"):
        model.read(0, 2)


def test_a_write_that_fails_half_way_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"before")
    with pytest.raises(ValueError, match="half-way"), write_aside(path) as file:
        file.write(b"after")
        raise ValueError("half-way")
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_what_killed_writers_left_is_cleared(tmp_path: Path) -> None:
    (tmp_path / ".m.safetensors.aside").write_bytes(b"half")
    (tmp_path / "m.safetensors").write_bytes(b"whole")
    clear_asides(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["m.safetensors"]


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Make every write beyond `size` bytes of a file fail, as a full disk does."""
    import signal

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_is_an_error_that_names_the_file_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    before = written(path)
    with largest_file(100), pytest.raises(StateError, match=r"cannot write .*m\.safetensors: File too large"):
        written(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@given(st.binary(max_size=40), st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_sealed_file_is_read_back_or_refused(tmp_path: Path, content: bytes, data: st.DataObject) -> None:
    path = tmp_path / "report.pb"
    write_sealed(path, content)
    assert read_sealed(path) == content
    damaged = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, 8 * len(damaged) - 1))
    damaged[place // 8] ^= 1 << place % 8
    cut = data.draw(st.booleans())
    path.write_bytes(damaged[: place // 8] if cut else damaged)
    with pytest.raises(StateError, match=r"report\.pb"):
        read_sealed(path)


def test_the_checksum_stands_in_the_metadata(tmp_path: Path) -> None:
    content = written(tmp_path / "m.safetensors")
    length = int.from_bytes(content[:8], "little")
    assert len(json.loads(content[8 : 8 + length])["__metadata__"]["sha256"]) == 64


def digest_by_hand(path: Path) -> str:
    """As docs/reference/record.md says to compute it, from the file alone."""
    from safetensors.numpy import load_file

    digest = hashlib.sha256()
    for name, array in sorted(load_file(path).items()):
        digest.update(json.dumps([name, array.dtype.name, list(array.shape)]).encode() + b"\n" + array.tobytes())
    return digest.hexdigest()


def test_the_digest_of_values_is_that_of_weights_and_not_of_the_file(tmp_path: Path) -> None:
    digests = set()
    for run_id in ("run-1", "run-2"):
        written(tmp_path / run_id, run_id=run_id)
        model = ModelFile(tmp_path / run_id, LAYOUT)
        assert model.values_digest() == digest_by_hand(tmp_path / run_id)
        digests.add(model.values_digest())
    assert len(digests) == 1
    assert (tmp_path / "run-1").read_bytes() != (tmp_path / "run-2").read_bytes()


@pytest.mark.parametrize(
    ("shapes", "flat"),
    [
        ({"fc1.weight": (2, 3), "fc1.bias": (2,)}, FLAT),
        ({"fc2.weight": (3, 2), "fc1.bias": (2,)}, FLAT),
        ({"fc1.weight": (3, 2), "fc1.bias": (2,)}, np.where(FLAT == 0, np.float32(-0.0), FLAT)),
    ],
    ids=["shape", "name", "sign of zero"],
)
def test_another_shape_name_or_bit_is_another_digest(shapes: dict[str, tuple[int, ...]], flat: Flat) -> None:
    other = ModelInMemory(Layout.of(shapes), flat).values_digest()
    assert other != ModelInMemory(LAYOUT, FLAT).values_digest()


def test_the_digest_does_not_depend_on_the_order_in_which_tensors_lie() -> None:
    turned = ModelInMemory(Layout.of({"fc1.bias": (2,), "fc1.weight": (3, 2)}), np.roll(FLAT, 2))
    assert turned.values_digest() == ModelInMemory(LAYOUT, FLAT).values_digest()
