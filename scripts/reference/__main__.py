"""Write docs/reference/, the index of decisions and the descriptions in the chart's schema: `make reference`."""

from collections.abc import Mapping
from pathlib import Path

from scripts.reference import (
    calls,
    chart,
    combinations,
    command_line,
    decisions,
    errors,
    experiment,
    log_events,
    methods,
    metrics,
    presets,
    python,
    record,
)

ROOT = Path(__file__).parents[2]


def files() -> Mapping[Path, str]:
    """Return each file that is written, with its text."""
    folder = ROOT / "docs" / "reference"
    found = {
        folder / "calls.md": calls.page(),
        folder / "chart.md": chart.page(),
        folder / "combinations.md": combinations.page(),
        folder / "command-line.md": command_line.page(),
        folder / "errors.md": errors.page(),
        folder / "experiment.md": experiment.page(),
        folder / "log-events.md": log_events.page(),
        folder / "metrics.md": metrics.page(),
        folder / "presets.md": presets.page(),
        folder / "python.md": python.page(),
        folder / "record.md": record.page(),
        decisions.FOLDER / "README.md": decisions.page(),
        chart.CHART / "values.schema.json": chart.schema(),
    }
    return found | {folder / "methods" / f"{name}.md": text for name, text in methods.pages().items()}


if __name__ == "__main__":
    for path, text in files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
