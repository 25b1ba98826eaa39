"""How a service process starts: what is wrong with its options is said in one line."""

from pathlib import Path

import pytest

from fedstrata.errors import OutputError
from fedstrata.process.process import folder


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_folder_that_cannot_be_one_is_an_error_of_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError, match="give another"):
        folder(str(tmp_path / name))
