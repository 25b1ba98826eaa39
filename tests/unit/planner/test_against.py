"""Plans that cannot be compared with a run."""

from pathlib import Path

import pytest

from emulator.planner.against import against
from fedstrata.errors import DataError

TABLE = "site,rounds,models_trained,plan,seconds,device_bytes,lps_gps_bytes,joules\nfast,2.0,1,1,3.0,10,,\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plan.csv", TABLE.replace("fast", "f" * 200_000)),
        ("plan.csv", TABLE.replace(",1,1,", ",1,0,")),
        ("plan.csv", TABLE.replace("rounds", "wounds")),
        ("search.yaml", "- 3\n"),
        ("experiment.yaml", "3\n"),
    ],
)
def test_a_plan_that_is_damaged_is_one_line(tmp_path: Path, name: str, text: str) -> None:
    files = {"plan.csv": TABLE, "search.yaml": "target: 0.5\n", "experiment.yaml": "name: site\n", name: text}
    for each, content in files.items():
        (tmp_path / each).write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=r"has no complete plan: .*; do the search again") as raised:
        against(tmp_path, tmp_path / "run")
    assert "\n" not in str(raised.value)
