"""The results as Markdown: in a terminal, and in the place that a document keeps for them."""

from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown

from benchmarks.suite.results import Point, Results, number, spread

VERDICTS = {None: "", True: "met", False: "missed"}
BEGIN, END = "<!-- results of {} -->", "<!-- end of results -->"


def print_results(results: Results, console: Console) -> None:
    """Print all results."""
    console.print(Markdown("\n".join(lines_of(results, None))))


def write_document(results: Results, path: Path, name: str, figure: Path | None) -> None:
    """Put the results between the two marks of a document that have this name. The rest of the document stays."""
    mark = BEGIN.format(name)
    before, begin, rest = path.read_text(encoding="utf-8").partition(mark)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path} has no place for the results: a line {mark} and a line {END} after it")
    path.write_text("\n".join([before + mark, "", *lines_of(results, figure), "", END + after]), encoding="utf-8")


def lines_of(results: Results, figure: Path | None) -> list[str]:
    """Return the machine, a table of the rows, the cost by size, and the notes on missing measurements."""
    lines = [*described(results), "", *rows(results), "", *points(results)]
    if figure and results.points:
        lines += ["", f"![Cost and memory of a global round by devices, model size and LPSs]({figure.name})"]
    return [*lines, *(line for note in results.notes for line in ("", f"Note: {note}"))]


def described(results: Results) -> list[str]:
    """Return a paragraph with machine, versions and date."""
    machine = results.machine
    told = [", ".join(f"{name} {version}" for name, version in machine[key].items()) for key in ("versions", "peers")]
    return [
        f"{machine['date']}, commit {machine['commit']}. {machine['cores']} cores of {machine['processor']}, "
        f"{machine['memory_gb']} GB, {machine['system']}.",
        f"Python {machine['python']}, {told[0]}. Peers: {told[1] or 'none installed'}.",
    ]


def rows(results: Results) -> list[str]:
    """Return a table with one row per comparison."""
    lines = [
        "| work | unit | Fedstrata | beside us | | ratio | aim | | load |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in results.rows:
        load = " to ".join(f"{value:.1f}" for value in results.loads.get(row.part, ()))
        cells = [
            row.measured, row.unit, spread(row.ours), row.other, spread(row.theirs) if row.theirs else "",
            spread(row.ratios) if row.ratios else "", str(row.aim or ""), VERDICTS[row.is_met], load,
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def points(results: Results) -> list[str]:
    """Return a table with one row per size: the cost of a global round."""
    if not results.points:
        return []
    load = " to ".join(f"{value:.1f}" for value in results.loads.get("growth", ()))
    return [
        f"Cost of a global round by size, load {load}:",
        "",
        "| devices | model, MB | LPSs | s a round | CPU s: devices | LPSs | GPS | peak MB: an LPS | GPS |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
        *dict.fromkeys(_line(point) for point in results.points),
    ]


def _line(point: Point) -> str:
    cpu = [number(point.cpu_s[tier]) for tier in ("device", "lps", "gps")]
    peaks = [number(point.peak_mb.get(tier, 0.0)) for tier in ("lps", "gps")]
    sizes = [str(point.devices), number(point.model_mb), str(point.lps)]
    return f"| {' | '.join([*sizes, number(point.wall_s), *cpu, *peaks])} |"
