"""The whole text of a few releases, so that a change of the chart shows what it changes.

After a change that is meant: FEDSTRATA_UPDATE_GOLDEN=1 python -m pytest tests/chart, and read the difference.
"""

import os
from pathlib import Path

import pytest
import yaml
from charts import NEWEST, OLDEST, VARIANTS, identity, render, values_of

GOLDEN = Path(__file__).parent / "golden"
CASES = [
    (path, version) for path in VARIANTS for version in ((OLDEST, NEWEST) if path.stem == "volumes" else (NEWEST,))
]


@pytest.mark.parametrize(("path", "version"), CASES, ids=lambda case: getattr(case, "stem", case))
def test_a_release_is_what_it_was(path: Path, version: str) -> None:
    objects = sorted(render(values_of(path), version=version), key=identity)
    text = yaml.safe_dump_all(objects, sort_keys=True, width=120)
    golden = GOLDEN / f"{path.stem}-{version}.yaml"
    if os.environ.get("FEDSTRATA_UPDATE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text(), f"{golden.name}: if meant, run again with FEDSTRATA_UPDATE_GOLDEN=1"


def test_every_golden_file_belongs_to_a_variant() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == {f"{path.stem}-{version}.yaml" for path, version in CASES}
