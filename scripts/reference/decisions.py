"""docs/decisions/README.md: the titles of the decisions by section, each with its date.

The date and the section of a decision are here, its title on its own page.
"""

from pathlib import Path

from scripts.reference.markdown import table

FOLDER = Path(__file__).parents[2] / "docs" / "decisions"

TOP = """<!-- Written by `make reference` from scripts/reference/decisions.py and the titles of the pages. -->
# Decisions

Each page has a decision with its reasons and alternatives. [Architecture](../architecture.md) describes the present.
"""
DATES = {
    "Sums, models and methods": {
        "exact-sums": "2026-11-21",
        "updates-as-differences": "2026-11-21",
        "stacked-training": "2026-11-21",
        "method-contract": "2026-11-22",
        "tables": "2026-11-22",
        "newcomers": "2026-11-22",
        "lps-weights": "2026-11-23",
        "groups-and-training": "2026-11-23",
        "kinds-of-tensors": "2026-11-25",
        "own-files": "2026-11-25",
    },
    "Calls, recovery, clocks and links": {
        "pull-protocol": "2026-11-21",
        "run-identity": "2026-11-21",
        "adoption": "2026-11-21",
        "virtual-deadlines": "2026-11-22",
        "real-clock": "2026-11-22",
        "schedules": "2026-11-22",
        "real-broadcasts": "2026-11-23",
        "spans": "2026-11-26",
    },
    "Security and privacy": {
        "identities": "2026-11-22",
        "certificates-in-pods": "2026-11-22",
        "renewed-certificates": "2026-11-22",
        "secure-aggregation": "2026-11-22",
        "privacy": "2026-11-22",
        "private-updates": "2026-11-23",
        "removal-by-name": "2026-11-23",
    },
    "Kubernetes, packages and pages": {
        "boards-outside": "2026-11-22",
        "package-data": "2026-11-22",
        "python-interface": "2026-11-22",
        "rooms": "2026-11-23",
        "run-as-a-job": "2026-11-25",
        "sweeps-on-kubernetes": "2026-11-25",
        "http": "2026-11-25",
        "generated-data": "2026-11-26",
        "fleet": "2026-11-26",
        "sweeps-in-buckets": "2026-11-26",
    },
}


def page() -> str:
    """Return the page."""
    sections = (f"\n## {title}\n" + table(["date", "decision"], _rows(dates)) for title, dates in DATES.items())
    return TOP + "".join(sections)


def _rows(dates: dict[str, str]) -> list[list[str]]:
    """Return a row per decision, sorted by date."""
    return [
        [date, f"[{_title(FOLDER / f'{name}.md')}]({name}.md)"]
        for name, date in sorted(dates.items(), key=lambda item: item[1])
    ]


def _title(path: Path) -> str:
    """Return the title of a page, which is its first line."""
    return path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
