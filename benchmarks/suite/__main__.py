"""Runs the benchmark suite and prints one table with ratios.

    python -m benchmarks.suite --only hundred start --peers .venv-peers/bin/python --json runs/bench.json

Every part measures Fedstrata and its peers in turn in one run, so that ratios can be compared. --draw makes the figure
of an earlier run. Without peers, the parts measure only Fedstrata.
"""

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from benchmarks.suite import machine
from benchmarks.suite.document import print_results, write_document
from benchmarks.suite.figure import draw
from benchmarks.suite.parts import PARTS, ROW_PARTS, Setting, growth
from benchmarks.suite.programs import ProgramError
from benchmarks.suite.results import Results


def parse() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.suite", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts to measure")
    parser.add_argument(
        "--quick", action="store_true", help="one repeat and small sizes, to see whether the suite works"
    )
    parser.add_argument("--repeats", type=int, help="how often each part is measured; default: 3")
    parser.add_argument("--peers", type=Path, help="the Python interpreter of the peers' environment")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--figure", type=Path, help="draw the figure of cost by size to this file")
    parser.add_argument(
        "--document",
        type=Path,
        help="write the results into this Markdown file, between the lines that mark their place",
    )
    parser.add_argument(
        "--place", default="make bench", metavar="NAME", help="the name in the mark `<!-- results of NAME -->`"
    )
    parser.add_argument("--draw", type=Path, metavar="JSON", help="measure nothing; print and draw an earlier run")
    return parser.parse_args()


def measure(options: argparse.Namespace, folder: Path, console: Console) -> Results:
    """Run the requested parts. A part that fails is reported, and the other parts continue."""
    # not resolved, because in an environment `python` is a link
    peers = options.peers.absolute() if options.peers else None
    if peers and not machine.peer_versions(peers, folder):
        peers = None
    repeats = options.repeats or (1 if options.quick else 3)
    setting = Setting(folder=folder, peers=peers, repeats=repeats, is_quick=options.quick)
    if peers is None:
        setting.note(
            "no peers are installed, so there are no ratios to Flower; `make bench` installs them from an index"
        )
    results = Results(machine=machine.described(peers, folder), notes=setting.notes)
    for name in options.only:
        before, began = machine.one_minute_load(), time.perf_counter()
        try:
            if name == "growth":
                results.points.extend(growth(setting))
            else:
                results.rows.extend(ROW_PARTS[name](setting))
        except ProgramError as error:
            setting.note(f"{name} failed: {' '.join(str(error).split())[:500]}")
        results.loads[name] = (before, machine.one_minute_load())
        results.seconds[name] = round(time.perf_counter() - began, 1)
        console.print(f"{name}: {results.seconds[name]:.0f} s", style="dim")
        if options.json:
            results.write(options.json)
    return results


def main() -> int:
    """Measure or read the results, print them, write the document, and draw the figure."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that started programs end, too
    options, console = parse(), Console(highlight=False, width=None if sys.stdout.isatty() else 170)
    if options.draw:
        results = Results.read(options.draw)
    else:
        with tempfile.TemporaryDirectory(prefix="fedstrata-bench-") as folder:
            results = measure(options, Path(folder), console)
    print_results(results, console)
    if options.figure and results.points:
        draw(results, options.figure)
    if options.document:
        write_document(results, options.document, options.place, options.figure)
    return 0


if __name__ == "__main__":
    sys.exit(main())
