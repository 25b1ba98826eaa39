"""A record as a tar archive: all of its files or none, however the archive is cut."""

import io
import tarfile
from pathlib import Path

import pytest

from emulator.runs.archive import read_archive, write_archive
from fedstrata.errors import PayloadError
from tests.support.record_files import write_record

BLOCK = tarfile.BLOCKSIZE


@pytest.fixture
def archive(tmp_path: Path) -> bytes:
    """The archive of a record with a model."""
    record = write_record(tmp_path / "record")
    (record / "models").mkdir()
    (record / "models" / "lps-0.safetensors").write_bytes(bytes(range(256)) * 8)
    content = io.BytesIO()
    write_archive(record, content)
    return content.getvalue()


def test_an_archive_arrives_as_it_was(archive: bytes, tmp_path: Path) -> None:
    read_archive(io.BytesIO(archive), tmp_path / "here")
    names = {path.relative_to(tmp_path / "here") for path in (tmp_path / "here").rglob("*") if path.is_file()}
    assert {Path("summary.json"), Path("models/lps-0.safetensors")} <= names
    for name in names:
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "record" / name).read_bytes()


def test_an_archive_that_is_cut_leaves_nothing(archive: bytes, tmp_path: Path) -> None:
    """Cut before each file, in its header, between header and content, and in the content."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as whole:
        members = whole.getmembers()
    assert members[-1].name == "summary.json"
    assert len(members) >= 4
    for member in members:
        begin, content = member.offset, member.offset_data
        for cut in (begin, begin + 1, begin + BLOCK // 2, begin + BLOCK - 1, content, content + member.size - 1):
            with pytest.raises(tarfile.TarError):
                read_archive(io.BytesIO(archive[:cut]), tmp_path / "here")
            assert [path for path in tmp_path.glob("here/**/*") if path.is_file()] == [], (member.name, cut)


def test_a_damaged_header_leaves_nothing(archive: bytes, tmp_path: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(archive)) as whole:
        last = whole.getmembers()[-1].offset
    damaged = archive[:last] + b"x" * BLOCK + archive[last + BLOCK :]
    with pytest.raises(tarfile.TarError, match=r"cut before summary\.json"):
        read_archive(io.BytesIO(damaged), tmp_path / "here")


def test_a_file_of_another_name_is_refused(tmp_path: Path) -> None:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as made:
        made.addfile(tarfile.TarInfo("../evil.json"))
    with pytest.raises(PayloadError, match="is not a file of a run record"):
        read_archive(io.BytesIO(content.getvalue()), tmp_path / "here")
