"""Data sets: what is loaded, and what a user is told when a file is missing or damaged."""

import gzip
import hashlib
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

from emulator.commands import main as cli
from fedstrata.datasets import Dataset, DatasetInfo, Examples, dataset_info, load_dataset
from fedstrata.datasets.download import download
from fedstrata.datasets.fashion_mnist import DEBIAN, FILES
from fedstrata.datasets.idx import content_sha256, read_idx
from fedstrata.datasets.published import user_folder
from fedstrata.errors import DataError, PluginError
from fedstrata.experiment import DataSettings
from tests.support.splits import fashion_mnist, needs_fashion_mnist

IMAGES = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 3])  # two images of 1 × 3


def examples(number: int = 4, shape: tuple[int, ...] = (1, 2)) -> Examples:
    return Examples(inputs=np.ones((number, *shape), np.float32), labels=np.arange(number) % 2)


# --- examples ----------------------------------------------------------------------------------------------


def test_take_copies_the_examples_asked_for_in_that_order() -> None:
    all_examples = Examples(inputs=np.array([[1], [2], [3]], np.float32), labels=np.array([0, 1, 2]))
    taken = all_examples.take(np.array([2, 0]))
    taken.inputs[0] = 9
    assert taken.labels.tolist() == [2, 0]
    assert all_examples.inputs.tolist() == [[1], [2], [3]]


def test_pixels_are_scaled_to_one_when_taken() -> None:
    pixels = Examples(inputs=np.array([[0, 51], [255, 102]], np.uint8), labels=np.array([0, 1]))
    taken = pixels.take(np.array([1]))
    assert taken.inputs.dtype == np.float32
    assert taken.inputs.tolist() == [[1.0, np.float32(0.4)]]
    assert pixels.inputs[0].tolist() == [0.0, np.float32(0.2)]


@pytest.mark.parametrize(
    ("inputs", "labels", "message"),
    [
        (np.ones((2, 3)), np.array([0, 1]), "inputs must be a NumPy array of float32 or int64 or uint8, not float64;"),
        (np.ones((2, 3), np.float32), np.array([0.0, 1.0]), "labels must be a NumPy array of int64, not float64; co"),
        (
            np.ones((2, 3), np.float32),
            np.array([0]),
            r"labels must have one row for each of the 2 inputs; the shape is \(1,\)",
        ),
        (np.ones(2, np.float32), np.array([0, 1]), r"inputs must have shape \(n, ...\), not \(2,\); resh"),
        (np.array([[1, np.nan]], np.float32), np.array([0]), "NaN or Inf"),
        (np.array([[1, -np.inf]], np.float32), np.array([0]), "NaN or Inf"),
        (np.array([[1]], np.float32), np.array([-1]), "labels must have values of 0 or more, not -1"),
    ],
)
def test_examples_refuse_what_is_not_inputs_with_labels(
    inputs: NDArray[np.float32], labels: NDArray[np.int64], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        Examples(inputs=inputs, labels=labels)


@pytest.mark.parametrize(("largest", "is_refused"), [(0.99, False), (1.0, False), (248.0, True), (-1.0, True)])
def test_bytes_and_numbers_need_one_scale(largest: float, is_refused: bool) -> None:
    pixels = Examples(inputs=np.uint8([[0], [255]]), labels=np.array([0, 1]))
    numbers = Examples(inputs=np.float32([[0], [largest]]), labels=np.array([0, 1]))
    for train, test in ((pixels, numbers), (numbers, pixels)):
        if is_refused:
            with pytest.raises(DataError, match=r"are bytes \(uint8\), .* but others have values beyond 0…1"):
                Dataset(train=train, test=test, num_classes=2)
        else:
            assert Dataset(train=train, test=test, num_classes=2).train.scaled().inputs.max() <= 1


def test_the_scale_is_compared_with_inputs_that_are_not_in_memory(tmp_path: Path) -> None:
    pixels = Examples(inputs=np.uint8([[0], [255]]), labels=np.array([0, 1]))
    for largest in (1, 248):
        numbers = np.float32([[0], [largest]])
        np.save(tmp_path / "x.npy", numbers)
        mapped = Examples(inputs=np.load(tmp_path / "x.npy", mmap_mode="r"), labels=np.array([0, 1]))
        for test in (mapped, Examples.of_items([*zip(numbers, (0, 1), strict=True)])):
            with nullcontext() if largest == 1 else pytest.raises(DataError, match="others have values beyond 0…1"):
                Dataset(train=pixels, test=test, num_classes=2)


@pytest.mark.parametrize("role", ["inputs", "labels", "targets", "input mask", "column who"])
def test_masked_arrays_are_refused_if_a_value_is_hidden(role: str) -> None:
    """What lies under a mask, such as -9999, is no value to train on."""

    def made(mask: bool) -> Examples:
        def of(name: str, array: Any) -> Any:
            return np.ma.masked_array(array, mask=np.full(array.shape, mask)) if name == role else array

        targets = {"targets": of(role, np.float32([1, 2]))} if role == "targets" else {}
        return Examples(
            inputs=of("inputs", np.float32([[1], [2]])),
            **(targets or {"labels": of("labels", np.array([0, 1]))}),
            more={"mask": of("input mask", np.float32([1, 2]))},
            columns={"who": of("column who", np.array([0, 1]))},
        )

    with pytest.raises(DataError, match=f"{role}: 2 values are masked; leave out their rows, or use array"):
        made(mask=True)
    whole = made(mask=False)
    arrays = whole.inputs, whole.targets, whole.more["mask"], whole.columns["who"]
    assert [type(array) for array in arrays] == [np.ndarray] * 4


def test_examples_may_have_tokens_targets_of_any_shape_further_inputs_and_columns() -> None:
    sentences = Examples(
        inputs=np.array([[5, 7], [1, 0], [2, 2]]),
        targets=np.array([[7, 2], [-100, 4], [2, -100]]),
        more={"mask": np.array([[1, 1], [1, 0], [1, 1]], np.float32)},
        columns={"author": np.array([0, 1, 0])},
    )
    taken = sentences.take(np.array([2, 1]))
    assert taken.inputs.tolist() == [[2, 2], [1, 0]]
    assert taken.targets is not None
    assert taken.targets.tolist() == [[2, -100], [-100, 4]]
    assert taken.more["mask"].tolist() == [[1, 1], [1, 0]]
    assert taken.columns["author"].tolist() == [0, 1]
    data = Dataset(train=sentences, test=taken, num_classes=8)
    assert data.info == DatasetInfo(input_shape=(2,), num_classes=8, target_shape=(2,))
    with pytest.raises(
        DataError, match="the training data holds target 7; with num_classes 7, targets must be from 0 to 6"
    ):
        Dataset(train=sentences, test=taken, num_classes=7)
    with pytest.raises(
        DataError, match="targets are whole numbers, and num_classes is missing; give it, or make the targets float32"
    ):
        Dataset(train=sentences, test=taken)


def test_labels_are_the_targets_of_a_classification_and_nothing_else() -> None:
    assert examples().labels.tolist() == [0, 1, 0, 1]
    for targets, found in ((None, "no targets"), (np.ones((2, 3), np.float32), r"targets of float32, \(3,\)")):
        with pytest.raises(
            DataError,
            match=f"the method or the partition needs labels, and these examples have {found}; choose a method",
        ):
            _ = Examples(inputs=np.ones((2, 1), np.float32), targets=targets).labels
    with pytest.raises(DataError, match="both labels and targets are given"):
        Examples(inputs=np.ones((1, 1), np.float32), labels=np.array([0]), targets=np.array([0]))


def test_arrays_in_a_file_are_checked_when_they_are_taken(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([[1], [np.nan], [3]], np.float32))
    mapped = Examples(inputs=np.load(tmp_path / "x.npy", mmap_mode="r"))
    part = mapped.part(np.array([0, 2]))
    assert part.inputs.tolist() == [[1], [3]]
    assert not isinstance(part.stored, np.memmap)
    with pytest.raises(DataError, match="inputs contain NaN or Inf"):
        mapped.part(np.array([0, 1]))


def test_a_data_set_refuses_parts_that_do_not_belong_together() -> None:
    with pytest.raises(DataError, match="inputs, no targets, and test examples have inputs, targets of int64; make"):
        Dataset(train=Examples(inputs=np.ones((1, 1, 2), np.float32)), test=examples(), num_classes=2)
    with pytest.raises(DataError, match="make the shapes equal"):
        Dataset(train=examples(shape=(1, 2)), test=examples(shape=(2, 1)), num_classes=2)
    with pytest.raises(DataError, match="with num_classes 1, labels must be from 0 to 0"):
        Dataset(train=examples(), test=examples(), num_classes=1)
    with pytest.raises(DataError, match="the training data has no examples"):
        Dataset(train=examples(0), test=examples(), num_classes=2)
    torchs = TensorDataset(torch.ones(4, 1, 2), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(DataError, match=r"test must be Examples, not TensorDataset; put the inputs"):
        Dataset(train=examples(), test=torchs, num_classes=2)  # type: ignore[arg-type]


# --- digits and what the servers know ----------------------------------------------------------------------


def test_digits_are_split_four_to_one_for_every_digit() -> None:
    digits = load_dataset(DataSettings(name="digits"), 0)
    train, test = np.bincount(digits.train.labels), np.bincount(digits.test.labels)
    assert len(digits.train) + len(digits.test) == 1797
    assert (test == (train + test) // 5).all()
    assert digits.info == DatasetInfo(input_shape=(1, 8, 8), num_classes=10)
    assert (digits.train.inputs.min(), digits.train.inputs.max()) == (0.0, 1.0)


def test_the_fifth_image_of_a_digit_is_a_test_image() -> None:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    fifth_zero = images[np.flatnonzero(labels == 0)[4]].reshape(1, 8, 8) / 16
    digits = load_dataset(DataSettings(name="digits"), 0)
    held_out_zero = digits.test.inputs[np.flatnonzero(digits.test.labels == 0)[0]]
    assert np.array_equal(held_out_zero, fifth_zero)


def test_an_owner_of_fcube_has_five_hundred_points_in_each_of_two_opposite_octants() -> None:
    fcube = load_dataset(DataSettings(name="fcube"), 0)
    assert (len(fcube.train), len(fcube.test)) == (4000, 1000)
    for each in (fcube.train, fcube.test):
        assert np.array_equal(each.labels, each.inputs[:, 0] < 0)
        assert np.abs(each.inputs).max() <= 1
    for owner in range(4):
        is_negative = fcube.train.inputs[fcube.train.columns["owner"] == owner] < 0
        octants, counts = np.unique(is_negative, axis=0, return_counts=True)
        assert counts.tolist() == [500, 500]
        assert np.array_equal(octants[0], ~octants[1])


def test_own_data_has_the_shape_that_the_settings_declare() -> None:
    settings = DataSettings(name="own:load", input_shape=(3, 4), num_classes=7)
    assert dataset_info(settings) == DatasetInfo(input_shape=(3, 4), num_classes=7)


# --- IDX ---------------------------------------------------------------------------------------------------


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize("name", ["images", "images.gz"])
def test_an_idx_file_gives_its_values_in_its_shape(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, IMAGES + bytes([1, 2, 3, 4, 5, 255]))
    assert read_idx(path, dimensions=3).tolist() == [[[1, 2, 3]], [[4, 5, 255]]]


@pytest.mark.parametrize("name", ["images", "images.gz"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it starts with the bytes ; an IDX file of this kind starts with 00 00 08 03"),
        (
            b"\x00\x00\x08\x01" + IMAGES[4:],
            "it starts with the bytes 00 00 08 01; an IDX file of this kind starts with 00 00 08 03",
        ),
        (
            b"\x00\x00\x0d\x03" + IMAGES[4:],
            "it starts with the bytes 00 00 0d 03; an IDX file of this kind starts with 00 00 08 03",
        ),
        (IMAGES[:9], "it ends inside its header"),
        (IMAGES + bytes(5), "it ends after 5 of 6 bytes"),
        (IMAGES + bytes(7), "it has more bytes than the 6 that"),
        (IMAGES[:4] + b"\xff" * 12, "its header announces 79228162458924105385300197375 bytes"),
        (IMAGES[:4] + b"\x00\x00\xff\xff" * 2 + b"\x00\x00\x00\x01", "its header announces 4294836225 bytes"),
    ],
)
def test_an_idx_file_that_is_not_exactly_that_is_refused(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    path = write(tmp_path / name, content)
    with pytest.raises(DataError) as raised:
        read_idx(path, dimensions=3)
    assert message in str(raised.value)
    assert str(path) in str(raised.value)


def test_a_header_cannot_promise_more_than_its_gzip_file_could_hold(tmp_path: Path) -> None:
    promised = IMAGES[:4] + (100).to_bytes(4, "big") + (1000).to_bytes(4, "big") * 2  # 100 MB from some 40 bytes
    with pytest.raises(DataError, match="announces 100000000 bytes, more than the file can contain"):
        read_idx(write(tmp_path / "images.gz", promised), dimensions=3)


@pytest.mark.parametrize("name", ["images", "images.gz"])
def test_a_pipe_is_no_idx_file(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(DataError, match="it is a pipe or a device, not a regular file"):
        read_idx(tmp_path / name, dimensions=3)


def test_a_cut_or_altered_gzip_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "images.gz", IMAGES + bytes([1, 2, 3, 4, 5, 6]))
    whole = path.read_bytes()
    for damaged in (whole[:-4], whole[:-8] + bytes([whole[-8] ^ 1]) + whole[-7:], b"no gzip" + whole):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"cannot use .*images\.gz: .*; replace the file, or delete it"):
            read_idx(path, dimensions=3)


# --- Fashion-MNIST -----------------------------------------------------------------------------------------


def write_fashion_mnist(folder: Path, suffix: str = "", side: int = 28, num_labels: int = 3) -> None:
    """Three training and two test images, image i all of value i."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, number, labels in (("train", 3, num_labels), ("t10k", 2, 2)):
        values = b"".join(bytes([i]) * side * side for i in range(number))
        sizes = b"".join(size.to_bytes(4, "big") for size in (number, side, side))
        write(folder / f"{part}-images-idx3-ubyte{suffix}", b"\x00\x00\x08\x03" + sizes + values)
        header = b"\x00\x00\x08\x01" + labels.to_bytes(4, "big")
        write(folder / f"{part}-labels-idx1-ubyte{suffix}", header + bytes(range(labels)))


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_fashion_mnist_is_read_from_the_folder_first(tmp_path: Path, suffix: str) -> None:
    write_fashion_mnist(tmp_path, suffix)
    dataset = load_dataset(DataSettings(name="fashion-mnist", folder=tmp_path), 0)
    assert (len(dataset.train), len(dataset.test)) == (3, 2)
    assert dataset.info == DatasetInfo(input_shape=(1, 28, 28), num_classes=10)
    assert dataset.train.take(np.array([2])).inputs.max() == np.float32(2) / np.float32(255)


def test_fashion_mnist_is_read_from_the_data_folder_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_fashion_mnist(tmp_path / "fashion-mnist")
    monkeypatch.setenv("FEDSTRATA_DATA", str(tmp_path))
    settings = DataSettings(name="fashion-mnist", folder=tmp_path / "empty")
    assert len(load_dataset(settings, 0).train) == 3


def test_missing_fashion_mnist_says_where_it_was_looked_for_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedstrata.datasets.fashion_mnist.DEBIAN", tmp_path / "debian")
    monkeypatch.setenv("FEDSTRATA_DATA", str(tmp_path / "data"))
    with pytest.raises(DataError) as raised:
        load_dataset(DataSettings(name="fashion-mnist", folder=tmp_path / "own"), 0)
    for place in ("own", "data/fashion-mnist", "debian"):
        assert str(tmp_path / place) in str(raised.value)
    assert "apt-get install dataset-fashion-mnist" in str(raised.value)


def test_in_a_pod_missing_fashion_mnist_is_a_matter_of_the_charts_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedstrata.datasets.fashion_mnist.DEBIAN", tmp_path / "debian")
    monkeypatch.setenv("FEDSTRATA_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("FEDSTRATA_POD_NAME", "lab-fedstrata-device-0")
    with pytest.raises(DataError, match="give the pods a folder that contains fashion-mnist/") as raised:
        load_dataset(DataSettings(name="fashion-mnist"), 0)
    assert "apt-get" not in str(raised.value)
    assert "fedstrata data" not in str(raised.value)
    assert "data.download: true" in str(raised.value)


def test_without_a_folder_of_the_environment_the_users_own_is_looked_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEDSTRATA_DATA", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    write_fashion_mnist(tmp_path / "fedstrata" / "fashion-mnist")
    assert len(load_dataset(DataSettings(name="fashion-mnist"), 0).train) == 3
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_folder("fashion-mnist") == tmp_path / ".local" / "share" / "fedstrata" / "fashion-mnist"


def test_images_of_another_size_or_without_labels_are_refused(tmp_path: Path) -> None:
    settings = DataSettings(name="fashion-mnist", folder=tmp_path)
    write_fashion_mnist(tmp_path, side=27)
    with pytest.raises(DataError, match="images of 27 × 27 pixels; Fashion-MNIST has 28 × 28"):
        load_dataset(settings, 0)
    write_fashion_mnist(tmp_path, num_labels=2)
    with pytest.raises(DataError, match=r"has 3 images, but .* has 2 labels"):
        load_dataset(settings, 0)


@needs_fashion_mnist
def test_the_real_fashion_mnist_has_6000_and_1000_images_of_each_kind_kept_as_bytes() -> None:
    dataset = fashion_mnist()
    assert np.bincount(dataset.train.labels).tolist() == [6000] * 10
    assert np.bincount(dataset.test.labels).tolist() == [1000] * 10
    assert dataset.train.scale == 255
    assert dataset.train.stored.nbytes == 60_000 * 784


@needs_fashion_mnist
def test_the_content_of_debians_files_has_the_published_hashes() -> None:
    assert {name: content_sha256(DEBIAN / f"{name}.gz") for name in FILES} == FILES


# --- download ----------------------------------------------------------------------------------------------


@pytest.fixture
def publisher(published: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The publisher's folder with a small Fashion-MNIST, in place of the real one, which is nowhere on this machine."""
    write_fashion_mnist(published[0], ".gz")
    hashes = {name: content_sha256(published[0] / f"{name}.gz") for name in FILES}
    monkeypatch.setattr("fedstrata.datasets.fashion_mnist.URL", published[1])
    monkeypatch.setattr("fedstrata.datasets.fashion_mnist.FILES", hashes)
    monkeypatch.setattr("fedstrata.datasets.fashion_mnist.DEBIAN", tmp_path / "debian")
    monkeypatch.setenv("FEDSTRATA_DATA", str(tmp_path / "data"))
    return published[0]


def test_missing_files_are_downloaded_into_the_folder(publisher: Path, tmp_path: Path) -> None:
    folder = tmp_path / "own" / "data"
    dataset = load_dataset(DataSettings(name="fashion-mnist", folder=folder, download=True), 0)
    assert len(dataset.train) == 3
    assert sorted(path.name for path in folder.iterdir()) == sorted(f"{name}.gz" for name in FILES)


def test_a_download_without_a_folder_goes_to_the_users(publisher: Path, tmp_path: Path) -> None:
    assert len(load_dataset(DataSettings(name="fashion-mnist", download=True), 0).train) == 3
    assert len(list((tmp_path / "data" / "fashion-mnist").iterdir())) == 4


def test_the_data_command_fetches_once_and_then_finds(
    publisher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "data" / "fashion-mnist"
    assert cli.execute(["data"]) == 0
    assert (
        "fashion-mnist is not on this machine; fetch it with fedstrata data fashion-mnist\n" in capsys.readouterr().out
    )
    assert cli.execute(["data", "fashion-mnist"]) == 0
    for file in publisher.iterdir():
        file.unlink()  # what is here is not fetched again
    assert cli.execute(["data", "fashion-mnist"]) == 0
    line = f"fashion-mnist is in {place}, with the content that was published\n"
    assert capsys.readouterr().out == line + line
    assert cli.execute(["data"]) == 0
    assert f"fashion-mnist is in {place}\n" in capsys.readouterr().out


def test_the_data_command_says_which_file_is_damaged_and_which_package_has_it(
    publisher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_fashion_mnist(tmp_path / "own", num_labels=2)
    assert cli.execute(["data", "fashion-mnist", "--folder", str(tmp_path / "own")]) == 3
    said = capsys.readouterr().err
    assert f"{tmp_path / 'own' / 'train-labels-idx1-ubyte'} differs from the published file; delete it" in said
    assert "apt-get install dataset-fashion-mnist" in said


def test_the_data_command_without_a_publisher_says_which_package_has_it(
    publisher: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (publisher / "train-images-idx3-ubyte.gz").unlink()
    assert cli.execute(["data", "fashion-mnist"]) == 3
    said = capsys.readouterr().err
    assert "404" in said
    assert "apt-get install dataset-fashion-mnist" in said
    assert said.count("\n") == 1


def test_the_data_command_knows_its_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.execute(["data", "fashon-mnist"]) == 3
    assert "did you mean fashion-mnist?" in capsys.readouterr().err
    assert cli.execute(["data", "digits"]) == 0
    assert capsys.readouterr().out == "digits comes with scikit-learn, which is installed here\n"


def test_a_download_of_other_content_leaves_nothing_behind(published: tuple[Path, str], tmp_path: Path) -> None:
    write(published[0] / "file.gz", b"other")
    target = tmp_path / "own" / "file.gz"
    expected = hashlib.sha256(b"expected").hexdigest()
    with pytest.raises(DataError, match=f"not the published {expected}"):
        download(f"{published[1]}/file.gz", target, content_sha256=expected)
    assert list(target.parent.iterdir()) == []


def test_a_download_that_cannot_be_had_says_from_where_and_why(published: tuple[Path, str], tmp_path: Path) -> None:
    url = f"{published[1]}/absent.gz"
    with pytest.raises(DataError, match=f"cannot download {url} to .*404.*; check this machine's network"):
        download(url, tmp_path / "absent.gz", content_sha256="")


def test_a_download_into_a_file_is_an_error_of_the_data(published: tuple[Path, str], tmp_path: Path) -> None:
    write(tmp_path / "file", b"")
    with pytest.raises(DataError, match=r"cannot download .*; choose another folder$"):
        download(f"{published[1]}/x", tmp_path / "file" / "x", content_sha256="")


# --- folder and own code -----------------------------------------------------------------------------------


def folder_settings(folder: Path) -> DataSettings:
    return DataSettings(name="folder", folder=folder, input_shape=(2,), num_classes=2)


def test_a_folder_gives_its_arrays(tmp_path: Path) -> None:
    np.savez(tmp_path / "train.npz", x=np.array([[0.5, 1], [0, 0.25]]), y=np.array([1, 0], np.uint8))
    np.savez_compressed(tmp_path / "test.npz", x=np.array([[0, 255]], np.uint8), y=np.array([1]))
    dataset = load_dataset(folder_settings(tmp_path), 0)
    assert dataset.train.inputs.tolist() == [[0.5, 1], [0, 0.25]]
    assert dataset.train.labels.tolist() == [1, 0]
    assert dataset.test.inputs.tolist() == [[0.0, 1.0]]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.ones((2, 2), np.complex64), "y": np.array([0, 1])}, "column x must contain numbers, not complex64"),
        ({"x": np.array([[1e300, 1]]), "y": np.array([1])}, "NaN or Inf"),
        ({"x": np.ones((2, 2)), "y": np.array([0])}, "its arrays have different numbers of rows: {'x': 2, 'y': 1}"),
        ({"x": np.array([[{}, {}]]), "y": np.array([0])}, "arrays of Python objects; save numbers or text"),
    ],
)
def test_arrays_that_no_folder_has_are_refused(
    tmp_path: Path, arrays: dict[str, NDArray[np.float64]], message: str
) -> None:
    for part in ("train", "test"):
        np.savez(tmp_path / f"{part}.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=message):
        load_dataset(folder_settings(tmp_path), 0)


def test_a_folder_with_a_damaged_file_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "train.npz", x=np.ones((50, 2)), y=np.zeros(50, np.int64))
    whole = (tmp_path / "train.npz").read_bytes()
    with (tmp_path / "single.npy").open("wb") as file:
        np.save(file, np.ones(3))
    for damaged in (b"", b"text", whole[:200], whole.replace(bytes(64), bytes(63) + b"1"),
                    (tmp_path / "single.npy").read_bytes()):  # fmt: skip
        assert damaged != whole
        (tmp_path / "train.npz").write_bytes(damaged)
        with pytest.raises(DataError, match=r"cannot use .*train\.npz") as refused:
            load_dataset(folder_settings(tmp_path), 0)
        assert "pickle" not in str(refused.value)


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        ("return 3", PluginError, "must return a fedstrata.datasets.Dataset, not int; return Dataset.train=Examples"),
        ("return 1 / 0", PluginError, r"failed with ZeroDivisionError: .*own_data\.py, line 8\)$"),
        ("raise DataError('the sensor is off')", DataError, "the sensor is off"),
        (
            "return made(3)",
            DataError,
            r"shape \(3,\) in 2 classes, but the section data declares shape \(2,\) in 2 classes; correct data.input_",
        ),
        ("return made(2, 4)", DataError, r"shape \(2,\) in 4 classes, but .* in 2 classes; correct data.num_classes$"),
        ("return made(2, None)", DataError, "own_data:load: num_classes must be the number of labels, not None; leave"),
        ("raise SystemExit(3)", PluginError, "own_data:load failed with SystemExit: 3 "),
        (
            "part = made(2).train; return Dataset(train=part, test=part, num_classes=2, names={'site': {'a', 'b'}})",
            DataError,
            "names must have a sequence of names for each column, not {'site': {",
        ),
        (
            "part = made(2).train; part = Examples(inputs=part.inputs, targets=np.float32(part.labels)); "
            "return Dataset(train=part, test=part, num_classes=2)",
            DataError,
            "the training data has targets of float32, and num_classes is 2; make labels int64, or leave out num_cl",
        ),
        ("raise BaseException('panic')", PluginError, "own_data:load failed with BaseException: panic "),
    ],
)
def test_an_own_data_set_that_fails_or_is_another_than_declared_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, error: type[Exception], message: str
) -> None:
    settings = own_data(tmp_path, monkeypatch, body)
    with pytest.raises(error, match=message):
        load_dataset(settings, 0)


def test_an_own_data_set_is_called_with_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = own_data(tmp_path, monkeypatch, "return made(*settings.input_shape)")
    assert load_dataset(settings, 0).info == DatasetInfo(input_shape=(2,), num_classes=2)


def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> DataSettings:
    (tmp_path / "own_data.py").write_text(
        "import numpy as np\n"
        "from fedstrata.datasets import Dataset, Examples\n"
        "from fedstrata.errors import DataError\n"
        "def made(width, num_classes=2):\n"
        "    part = Examples(inputs=np.ones((2, width), np.float32), labels=np.array([0, 1]))\n"
        "    return Dataset(train=part, test=part, num_classes=num_classes)\n"
        f"def load(settings):\n    {body}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_data", raising=False)
    return DataSettings(name="own_data:load", input_shape=(2,), num_classes=2)
