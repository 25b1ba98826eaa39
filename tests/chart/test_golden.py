"""Three releases in full, so that a change of the chart shows what it changes: the defaults, everything, production.

After an intended change run `FEDSTRATA_UPDATE_GOLDEN=1 python -m pytest tests/chart/test_golden.py` and read the diff.
"""

import os
from pathlib import Path

import pytest
import yaml

from tests.support.charts import CHART, identity, render, values_of

GOLDEN = Path(__file__).parent / "golden"
RELEASES = ("plain", "everything", "production")


@pytest.mark.parametrize("name", RELEASES)
def test_a_release_is_what_it_was(name: str) -> None:
    objects = sorted(render(values_of(CHART / "ci" / f"{name}.yaml")), key=identity)
    text = yaml.safe_dump_all(objects, sort_keys=True, width=120)
    golden = GOLDEN / f"{name}.yaml"
    if os.environ.get("FEDSTRATA_UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text(), f"{golden.name}: if meant, run again with FEDSTRATA_UPDATE_GOLDEN=1"


def test_every_golden_file_is_compared() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == {*RELEASES}
