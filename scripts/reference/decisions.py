"""docs/decisions/README.md: the titles of the decisions by section, each with the date on its page."""

import re
from pathlib import Path

from scripts.reference.markdown import table

FOLDER = Path(__file__).parents[2] / "docs" / "decisions"

TOP = """<!-- Written by `make reference` from scripts/reference/decisions.py and the titles of the pages. -->
# Decisions

Each page has a decision with its reasons and alternatives. [Architecture](../architecture.md) describes the present.
"""
SECTIONS = {
    "Sums, models and methods": (
        "exact-sums",
        "updates-as-differences",
        "stacked-training",
        "method-contract",
        "newcomers",
        "lps-weights",
        "rules",
        "attacks",
        "groups-and-training",
        "kinds-of-tensors",
        "own-files",
        "measured-by-all",
        "baselines",
    ),
    "Calls, recovery, clocks and links": (
        "pull-protocol",
        "run-identity",
        "adoption",
        "updates-sent-again",
        "virtual-deadlines",
        "asynchronous",
        "forked-programs",
        "real-clock",
        "schedules",
        "real-broadcasts",
        "calibration",
        "planner",
        "spans",
    ),
    "Security and privacy": (
        "identities",
        "certificates-in-pods",
        "renewed-certificates",
        "secure-aggregation",
        "privacy",
        "private-updates",
        "removal-by-name",
    ),
    "Kubernetes, packages and pages": (
        "boards-outside",
        "package-data",
        "python-interface",
        "rooms",
        "run-as-a-job",
        "sweeps-on-kubernetes",
        "generated-data",
        "fleet",
        "sweeps-in-buckets",
    ),
}


def page() -> str:
    """Return the page."""
    sections = (f"\n## {title}\n" + table(["date", "decision"], _rows(names)) for title, names in SECTIONS.items())
    return TOP + "".join(sections)


def _rows(names: tuple[str, ...]) -> list[list[str]]:
    """Return a row per decision, sorted by date."""
    return sorted(_row(name) for name in names)


def _row(name: str) -> list[str]:
    """Return the date and the linked title of a decision. Raises ValueError if its page has no date."""
    title, _, text = (FOLDER / f"{name}.md").read_text(encoding="utf-8").partition("\n")
    found = re.search(r"decided (\d{4}-\d\d-\d\d)\.\*\*", text, re.IGNORECASE)
    if found is None:
        raise ValueError(f"docs/decisions/{name}.md: begin with **Decided YEAR-MONTH-DAY.**")
    return [found[1], f"[{title.removeprefix('# ')}]({name}.md)"]
