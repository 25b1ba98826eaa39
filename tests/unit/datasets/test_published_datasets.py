"""EMNIST, CIFAR and SVHN: small files made in the published formats, found, downloaded, or refused."""

import gzip
import hashlib
import io
import struct
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.io import savemat

from emulator.commands import main as cli
from emulator.shipped.data import fetch
from fedstrata.datasets import Dataset, dataset_info, load_dataset
from fedstrata.datasets.archives import unpack
from fedstrata.datasets.cifar import CIFAR_10, CIFAR_100, Version
from fedstrata.datasets.emnist import FILES as EMNIST_FILES
from fedstrata.datasets.loading import BUILT_IN, PUBLISHED
from fedstrata.errors import DataError
from fedstrata.experiment import DataSettings

VERSIONS = {"cifar-10": CIFAR_10, "cifar-100": CIFAR_100}


@pytest.fixture(autouse=True)
def _no_data_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDSTRATA_DATA", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))


def load(name: str, folder: Path | None, **keys: Any) -> Dataset:
    return load_dataset(DataSettings(name=name, folder=folder, **keys), 0)


def pixels(part: object) -> NDArray[np.uint8]:
    assert part.scale == 255
    return part.stored


# --- CIFAR -------------------------------------------------------------------------------------------------


def record(*labels: int, brightness: int = 0) -> bytes:
    """An image whose red, green and blue are its brightness, that plus 1 and plus 2, but for one red pixel."""
    image = bytearray(b"".join(bytes([brightness + colour]) * 1024 for colour in range(3)))
    image[1 * 32 + 5] = 200  # red, row 1, column 5
    return bytes(labels) + bytes(image)


def cifar_files(version: Version) -> dict[str, bytes]:
    """Training file i holds label i, the test file label 9; the coarse label of CIFAR-100 is always 7."""
    coarse = [7] * (version.label_bytes - 1)
    files = {name: record(*coarse, number, brightness=10 * number) for number, name in enumerate(version.train)}
    return {**files, version.test: record(*coarse, 9, brightness=90) * 2}


def write_files(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("name", VERSIONS)
@pytest.mark.parametrize("is_as_unpacked", [False, True])
def test_cifar_gives_its_images_channel_by_channel(tmp_path: Path, name: str, is_as_unpacked: bool) -> None:
    version = VERSIONS[name]
    write_files(tmp_path / version.subfolder if is_as_unpacked else tmp_path, cifar_files(version))
    dataset = load(name, tmp_path)
    last = len(version.train) - 1
    assert dataset.train.labels.tolist() == list(range(len(version.train)))
    assert dataset.test.labels.tolist() == [9, 9]
    assert pixels(dataset.train)[last, :, 0, 0].tolist() == [10 * last, 10 * last + 1, 10 * last + 2]
    assert pixels(dataset.train)[last, :, 1, 5].tolist() == [200, 10 * last + 1, 10 * last + 2]
    assert dataset.info == dataset_info(DataSettings(name=name))


@pytest.mark.parametrize("content", [b"", record(3)[:-1], record(3) + b"x"], ids=["empty", "short", "long"])
def test_a_cifar_file_that_is_not_whole_records_is_refused(tmp_path: Path, content: bytes) -> None:
    write_files(tmp_path, {**cifar_files(CIFAR_10), "data_batch_3.bin": content})
    with pytest.raises(DataError, match=rf"data_batch_3\.bin: its {len(content)} bytes are not whole records of 3073"):
        load("cifar-10", tmp_path)


def test_a_label_that_cifar_does_not_have_is_refused(tmp_path: Path) -> None:
    write_files(tmp_path, {**cifar_files(CIFAR_10), "test_batch.bin": record(10)})
    with pytest.raises(
        DataError, match="the test data holds label 10; with num_classes 10, labels must be from 0 to 9"
    ):
        load("cifar-10", tmp_path)


# --- EMNIST ------------------------------------------------------------------------------------------------


def idx(values: NDArray[np.uint8]) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def emnist_files() -> dict[str, bytes]:
    """Three images with a stroke in stored row 2, columns 4 to 9; labels 0, 46, 7."""
    images = np.zeros((3, 28, 28), np.uint8)
    images[:, 2, 4:10] = 255
    labels = np.array([0, 46, 7], np.uint8)
    return {f"{name}.gz": gzip.compress(idx(images if "images" in name else labels)) for name in EMNIST_FILES}


def test_emnist_images_are_turned_the_right_way_round(tmp_path: Path) -> None:
    write_files(tmp_path / "gzip", emnist_files())
    dataset = load("emnist", tmp_path)
    assert dataset.train.labels.tolist() == [0, 46, 7]
    stroke = np.argwhere(pixels(dataset.train)[1, 0])
    assert stroke.tolist() == [[row, 2] for row in range(4, 10)]
    assert dataset.num_classes == 47


def test_emnist_without_one_of_its_files_is_not_there(tmp_path: Path) -> None:
    write_files(tmp_path, dict(list(emnist_files().items())[:3]))
    with pytest.raises(DataError, match=r"EMNIST is not in .*; fedstrata data emnist fetches it, or set data.folder"):
        load("emnist", tmp_path)


# --- SVHN --------------------------------------------------------------------------------------------------


def matlab(path: Path, *, compressed: bool = True, **changes: Any) -> None:
    """Four images as the publisher has them; red at row 3, column 8 of image 2 is 250; labels 10, 1, 9, 10."""
    images = np.zeros((32, 32, 3, 4), np.uint8)
    images[3, 8, 0, 2] = 250
    arrays = {"X": images, "y": np.array([[10], [1], [9], [10]], np.uint8), **changes}
    savemat(path, {name: value for name, value in arrays.items() if value is not None}, do_compression=compressed)


@pytest.mark.parametrize("compressed", [True, False])
def test_svhn_gives_channels_first_and_nought_for_ten(tmp_path: Path, compressed: bool) -> None:
    for part in ("train", "test"):
        matlab(tmp_path / f"{part}_32x32.mat", compressed=compressed)
    dataset = load("svhn", tmp_path)
    assert dataset.train.labels.tolist() == [0, 1, 9, 0]
    assert np.argwhere(pixels(dataset.train)).tolist() == [[2, 0, 3, 8]]
    assert pixels(dataset.test).flags.c_contiguous
    assert dataset.info == dataset_info(DataSettings(name="svhn"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": None}, r"it must contain X with 32 × 32 × 3 × n bytes and y with n × 1 labels, not"),
        ({"X": np.zeros((32, 32, 3, 4))}, "it must contain X"),
        ({"X": np.zeros((32, 30, 3, 4), np.uint8)}, "it must contain X"),
        ({"y": np.ones((3, 1), np.uint8)}, "it must contain X"),
        ({"y": np.array([["a"]] * 4)}, "it must contain X"),
        ({"y": np.full((4, 1), 11, np.uint8)}, "the training data holds label 11"),
    ],
)
def test_matlab_files_of_something_else_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    for part in ("train", "test"):
        matlab(tmp_path / f"{part}_32x32.mat", **changes)
    with pytest.raises(DataError, match=message) as raised:
        load("svhn", tmp_path)
    assert "\n" not in str(raised.value)


def test_damaged_matlab_files_are_refused_in_one_line(tmp_path: Path) -> None:
    matlab(tmp_path / "test_32x32.mat")
    whole = (tmp_path / "test_32x32.mat").read_bytes()
    for damaged in (b"", b"text", whole[:100], whole[:200], whole[:150] + bytes(50) + whole[200:]):
        (tmp_path / "train_32x32.mat").write_bytes(damaged)
        with pytest.raises(DataError, match=r"cannot use .*train_32x32\.mat") as raised:
            load("svhn", tmp_path)
        assert "\n" not in str(raised.value)


def test_a_header_that_promises_more_images_than_the_file_can_hold_is_refused(tmp_path: Path) -> None:
    matlab(tmp_path / "test_32x32.mat")
    images = np.zeros((32, 32, 3, 4), np.uint8)
    labels = np.ones((4, 1), np.uint8)
    many = 2**28
    plain = io.BytesIO()
    savemat(plain, {"X": images, "y": labels})
    forged = plain.getvalue().replace(struct.pack("<4i", 32, 32, 3, 4), struct.pack("<4i", 32, 32, 3, many))
    forged = forged.replace(struct.pack("<2i", 4, 1), struct.pack("<2i", many, 1))
    (tmp_path / "train_32x32.mat").write_bytes(forged)
    with pytest.raises(DataError, match=f"its header announces {many} images, more than the file can contain"):
        load("svhn", tmp_path)


# --- found and downloaded ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["emnist", "cifar-10", "cifar-100", "svhn"])
def test_a_data_set_that_is_nowhere_says_where_it_may_be_put(tmp_path: Path, name: str) -> None:
    users = tmp_path / "share" / "fedstrata" / name
    advice = rf"fedstrata data {name} fetches it, or set data\.folder to its folder, or set data\.download: true$"
    with pytest.raises(DataError, match=f"is not in {users}; {advice}"):
        load(name, None)
    with pytest.raises(DataError, match=f"is not in {tmp_path / 'own'}, {users}; {advice}"):
        load(name, tmp_path / "own")


def test_data_are_found_under_their_name_in_the_folder_of_all_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path / "cifar-10", cifar_files(CIFAR_10))
    monkeypatch.setenv("FEDSTRATA_DATA", str(tmp_path))
    assert len(load("cifar-10", None).train) == 5


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def publish_cifar_10(site: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes]) -> None:
    archive = site[0] / CIFAR_10.archive
    with tarfile.open(archive, "w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    monkeypatch.setattr("fedstrata.datasets.cifar.URL", site[1])
    monkeypatch.setitem(vars(CIFAR_10), "archive_sha256", sha256(archive))


def test_cifars_archive_is_downloaded_and_only_its_data_unpacked(
    published: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = cifar_files(CIFAR_10)
    publish_cifar_10(published, monkeypatch, {**files, "readme.html": b"hello"})
    dataset = load("cifar-10", tmp_path / "own", download=True)
    assert dataset.train.labels.tolist() == [0, 1, 2, 3, 4]
    assert {path.name: path.read_bytes() for path in (tmp_path / "own").iterdir()} == files


def test_the_data_command_unpacks_an_archive_once_into_the_users_folder(
    published: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    publish_cifar_10(published, monkeypatch, cifar_files(CIFAR_10))
    assert cli.execute(["data", "cifar-10"]) == 0
    (published[0] / CIFAR_10.archive).unlink()  # what is here is not fetched again
    assert cli.execute(["data", "cifar-10"]) == 0
    users = tmp_path / "share" / "fedstrata" / "cifar-10"
    assert capsys.readouterr().out == f"cifar-10 is in {users}\n" * 2
    assert len(load("cifar-10", None).train) == 5


def test_the_data_command_finds_what_the_user_unpacked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_files(tmp_path / "share" / "fedstrata" / "cifar-100" / CIFAR_100.subfolder, cifar_files(CIFAR_100))
    assert cli.execute(["data"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert f"cifar-100 is in {tmp_path / 'share' / 'fedstrata' / 'cifar-100'}" in said
    assert [line for line in said if line.startswith(("emnist", "cifar-10 ", "svhn"))] == [
        f"{name} is not on this machine; fetch it with fedstrata data {name}" for name in ("emnist", "cifar-10", "svhn")
    ]


def test_the_data_command_has_every_published_data_set() -> None:
    assert set(PUBLISHED) == set(BUILT_IN) - {"digits", "fcube", "synthetic"}
    assert [published().name for published in PUBLISHED.values()] == list(PUBLISHED)


def test_an_archive_with_another_hash_leaves_nothing_behind(
    published: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_cifar_10(published, monkeypatch, cifar_files(CIFAR_10))
    with (published[0] / CIFAR_10.archive).open("ab") as archive:
        archive.write(b"more")
    with pytest.raises(DataError, match=r"cannot download http.*SHA-256 \w{64}, not the published \w{64}"):
        load("cifar-10", tmp_path / "own", download=True)
    assert list((tmp_path / "own").iterdir()) == []


def test_an_archive_without_a_file_is_refused(
    published: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = cifar_files(CIFAR_10)
    del files["data_batch_5.bin"]
    publish_cifar_10(published, monkeypatch, files)
    with pytest.raises(DataError, match=r"the archive has no file cifar-10-batches-bin/data_batch_5\.bin"):
        load("cifar-10", tmp_path / "own", download=True)


def test_emnists_archive_is_downloaded(
    published: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = published[0] / "gzip.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        for name, content in {**emnist_files(), "emnist-mnist-mapping.txt": b"0 48"}.items():
            opened.writestr(f"gzip/{name}", content)
    monkeypatch.setattr("fedstrata.datasets.emnist.URL", f"{published[1]}/gzip.zip")
    monkeypatch.setattr("fedstrata.datasets.emnist.ARCHIVE_SHA256", sha256(archive))
    assert len(load("emnist", tmp_path / "own", download=True).train) == 3
    assert sorted(path.name for path in (tmp_path / "own").iterdir()) == sorted(emnist_files())


def test_svhns_files_are_downloaded(
    published: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("train_32x32.mat", "test_32x32.mat")
    for name in names:
        matlab(published[0] / name)
    monkeypatch.setattr("fedstrata.datasets.svhn.URL", published[1])
    monkeypatch.setattr("fedstrata.datasets.svhn.FILES", {name: sha256(published[0] / name) for name in names})
    assert len(load("svhn", tmp_path / "own", download=True).test) == 4
    matlab(tmp_path / "own" / "test_32x32.mat", X=np.ones((32, 32, 3, 4), np.uint8))
    with pytest.raises(DataError, match=r"test_32x32\.mat differs from the published file; delete it"):
        fetch("svhn", tmp_path / "own")


@pytest.mark.parametrize(("name", "content"), [("a.zip", b"PK"), ("a.tar.gz", b"text"), ("b.tar.gz", b"\x1f\x8b")])
def test_a_damaged_archive_is_refused_and_nothing_is_left(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match="the archive is damaged"):
        unpack(tmp_path / name, tmp_path, {"file": "file"})
    assert [path.name for path in tmp_path.iterdir()] == [name]
