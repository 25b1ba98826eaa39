"""Bundles from strangers: what is opened, and what is refused in one line before anything runs."""

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from emulator.commands import main as cli
from emulator.reproduce.bundle import opened
from emulator.sweeps.sweep_folder import SWEEP
from fedstrata.errors import DataError, FedstrataError

BASE = {"name": "tiny", "partition": {"kind": "iid", "devices": 2, "examples_per_device": 20}, "method": "fedavg"}


def folder(tmp_path: Path, base: Any = BASE, **keys: Any) -> Path:
    place = tmp_path / "bundle"
    place.mkdir()
    (place / SWEEP).write_text(yaml.safe_dump({"base": base, "seeds": [3], **keys}), encoding="utf-8")
    return place


def tar_of(place: Path, more: Callable[[tarfile.TarFile], None] = lambda _: None) -> Path:
    path = place.parent / "bundle.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(place, arcname="bundle")
        more(archive)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(FedstrataError) as raised, opened(path):
        pass
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize("pack", [lambda place: place, tar_of])
def test_a_folder_and_a_tar_of_it_are_a_bundle(tmp_path: Path, pack: Callable[[Path], Path]) -> None:
    with opened(pack(folder(tmp_path))) as found:
        assert [run.label for run in found.sweep.runs] == ["base, seed 3"]


def test_the_temporary_folder_of_a_tar_is_removed(tmp_path: Path) -> None:
    with opened(tar_of(folder(tmp_path))) as found:
        unpacked = found.folder
    assert not unpacked.exists()


def test_without_a_folder_for_temporary_files_the_variable_that_names_one_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("tempfile._candidate_tempdir_list", lambda: [str(tmp_path / "nowhere")])
    assert cli.execute(["verify", str(tar_of(folder(tmp_path)))]) == 5
    said = "error: no folder for temporary files can be written; name one in TMPDIR\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    ("base", "said"),
    [
        ({**BASE, "method": "evil:Method"}, "method is 'evil:Method': a bundle must not bring own code"),
        ({**BASE, "data": {"name": "evil:load", "input_shape": [2]}}, "data.name is 'evil:load'"),
        (
            {**BASE, "model": {"name": "mlp", "weights": "/etc/passwd"}},
            "model.weights is '/etc/passwd', a file of the bundle's",
        ),
        ({**BASE, "data": {"name": "folder", "input_shape": [2]}}, "data.name is 'folder'"),
        ("digits", "base must be the experiment itself"),
    ],
)
def test_own_code_and_files_of_the_maker_are_refused(tmp_path: Path, base: Any, said: str) -> None:
    assert said in refusal(folder(tmp_path, base))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method.name=evil:Method #": 1}, "'method.name=evil:Method #' cannot be a key of an experiment"),
        ({b"data.folder": "x"}, "b'data.folder' cannot be a key of an experiment"),
        ({"model.name": b"evil:Model"}, "model.name is b'evil:Model', neither text nor a number"),
        ({"data.folder ": "x"}, "a file of the bundle's maker"),
        ({"data": "folder"}, "a file of the bundle's maker"),
    ],
)
def test_own_code_and_files_are_refused_in_every_disguise(tmp_path: Path, changes: Any, said: str) -> None:
    assert said in refusal(folder(tmp_path, cells={"a": changes}))


def test_own_code_in_a_cell_in_a_run_and_in_the_published_table_is_refused(tmp_path: Path) -> None:
    place = folder(tmp_path, cells={"a": {"method": "evil:Method"}})
    assert "cells.a.method is 'evil:Method'" in refusal(place)
    (place / SWEEP).write_text(yaml.safe_dump({"base": BASE, "seeds": [3]}), encoding="utf-8")
    run = place / "runs" / "base" / "seed-3"
    run.mkdir(parents=True)
    (run / "experiment.yaml").write_text(yaml.safe_dump({**BASE, "task": "evil:Task"}), encoding="utf-8")
    assert "experiment.yaml: task is 'evil:Task'" in refusal(place)
    (run / "experiment.yaml").unlink()
    table = {"published": {"read": ["https://x"]}, "base": {**BASE, "method": "evil:Method"}, "seeds": [3]}
    (place / "published.yaml").write_text(yaml.safe_dump(table), encoding="utf-8")
    assert "published.yaml: base.method is 'evil:Method'" in refusal(place)


def member(name: str, kind: bytes = tarfile.REGTYPE) -> Callable[[tarfile.TarFile], None]:
    def add(archive: tarfile.TarFile) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, "/etc/passwd"
        archive.addfile(info, io.BytesIO(b""))

    return add


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (member("../outside"), "'../outside' is outside of the bundle or nested too deep; nothing was unpacked"),
        (member("/etc/outside"), "'/etc/outside' is outside of the bundle"),
        (member("/".join("abcdefghijklmn")), "is outside of the bundle"),
        (member("link", tarfile.SYMTYPE), "'link' is not a file or folder"),
        (member("hard", tarfile.LNKTYPE), "'hard' is not a file or folder"),
        (member("pipe", tarfile.FIFOTYPE), "'pipe' is not a file or folder"),
    ],
)
def test_a_tar_that_leads_out_is_refused(tmp_path: Path, more: Callable[[tarfile.TarFile], None], said: str) -> None:
    assert said in refusal(tar_of(folder(tmp_path), more))


def with_keys(bytes_of_keys: int, members: int) -> Callable[[tarfile.TarFile], None]:
    """Files with keys of their own in a tar."""

    def add(archive: tarfile.TarFile) -> None:
        for number in range(members):
            info = tarfile.TarInfo(f"bundle/{number}")
            info.pax_headers = {"comment": bytes_of_keys * "a"}
            archive.addfile(info)

    return add


def for_all_members(keys: int) -> Callable[[tarfile.TarFile], None]:
    """Keys for all members that follow in a tar, in a header before one more file."""

    def add(archive: tarfile.TarFile) -> None:
        header = tarfile.TarInfo.create_pax_global_header({f"k{number}": "v" for number in range(keys)})
        archive.addfile(tarfile.TarInfo.frombuf(header[:512], "utf-8", "strict"), io.BytesIO(header[512:]))
        archive.addfile(tarfile.TarInfo("bundle/one"))

    return add


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (with_keys(1 << 17, 1), "a member has headers of more than 65536 bytes"),
        (with_keys(1 << 10, 9), "more than 8192 bytes of headers; unpack it, and give its folder"),
        (for_all_members(101), "its headers have more than 100 keys for all members"),
    ],
)
def test_a_tar_with_long_headers_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: Callable[[tarfile.TarFile], None], said: str
) -> None:
    monkeypatch.setattr("emulator.reproduce.bundle.MOST_HEADERS", 8192)
    assert said in refusal(tar_of(folder(tmp_path), more))


def test_a_tar_with_a_few_keys_is_a_bundle(tmp_path: Path) -> None:
    def more(archive: tarfile.TarFile) -> None:
        with_keys(100, 9)(archive)
        for_all_members(9)(archive)

    with opened(tar_of(folder(tmp_path), more)) as found:
        assert (found.folder / "one").exists()


@pytest.mark.parametrize("pack", [lambda place: place, tar_of])
def test_a_table_that_is_too_large_is_refused_and_a_model_may_be_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack: Callable[[Path], Path]
) -> None:
    monkeypatch.setattr("emulator.reproduce.bundle.LARGEST_TABLE", 1000)
    place = folder(tmp_path)
    (place / "lps-0.safetensors").write_bytes(bytes(2000))
    with opened(pack(place)):
        pass
    (place / "table.csv").write_bytes(bytes(2000))
    assert "table.csv has 2000 bytes, more than the limit of 1000; leave the file out" in refusal(pack(place))


def test_a_file_is_only_decompressed_as_its_beginning_says(tmp_path: Path) -> None:
    path = tmp_path / "bundle.tar"
    path.write_bytes(bytes(1 << 20))  # zeros are 80,000 empty streams to lzma
    assert "is not a bundle, because it has no sweep.yaml" in refusal(path)


def test_a_tar_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emulator.reproduce.bundle.MOST_BYTES", 10)
    assert "more than 100000 files or 0 GB" in refusal(tar_of(folder(tmp_path)))


@pytest.mark.parametrize(
    ("content", "said"), [(None, "give the folder of a sweep, or a tar of it"), (b"no tar", "cannot open the bundle")]
)
def test_what_is_no_bundle_is_named(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "bundle.tar"
    if content is not None:
        path.write_bytes(content)
    assert said in refusal(path)


def test_an_empty_folder_is_no_bundle(tmp_path: Path) -> None:
    assert "is not a bundle, because it has no sweep.yaml" in refusal(tmp_path)


def test_a_sweep_file_that_is_not_yaml_or_too_long_is_refused(tmp_path: Path) -> None:
    place = folder(tmp_path)
    (place / SWEEP).write_text("a: [", encoding="utf-8")
    assert "is not YAML" in refusal(place)
    (place / SWEEP).write_text("a" * (5 << 20), encoding="utf-8")
    with pytest.raises(DataError, match="too many for a sweep file"), opened(place):
        pass


@pytest.mark.parametrize("target", [None, "/dev/zero"])
def test_a_pipe_and_a_device_are_no_bundles(tmp_path: Path, target: str | None) -> None:
    path = tmp_path / "bundle.tar"
    os.mkfifo(path) if target is None else path.symlink_to(target)
    assert "it is a pipe or a device, not a regular file; give the folder of a sweep" in refusal(path)
