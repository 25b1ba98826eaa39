"""Define the commands that repeat runs: reproduce for published tables, and verify for the results of other people."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from emulator.commands.options import Jobs, Output, with_groups

if TYPE_CHECKING:
    from rich.console import Console

    from emulator.reproduce.verify import Verdict
    from emulator.sweeps.sweep import SweepOutcome


def _complete_table(incomplete: str) -> list[str]:
    from emulator.reproduce.published import TABLES

    return sorted(path.stem for path in TABLES.glob(f"{incomplete}*.yaml"))


@with_groups
def reproduce(
    *,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", autocompletion=_complete_table, help="A published table.")
    ] = None,
    is_list: Annotated[
        bool, typer.Option("--list", help="List the tables with the size of their runs, and end.")
    ] = False,
    cells: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERNS", help="Run only these cells, such as fedavg,*/dirichlet. Separate by commas, or repeat."
        ),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="NUMBERS", help="Run only these seeds, separated by commas.")
    ] = None,
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Write to DIR/NAME and DIR/reproduced.md. Continue an earlier call."),
    ] = Path("runs/reproduced"),
    jobs: Jobs = None,
    output: Output,
) -> None:
    """Do the runs of a published table, and compare each value with the paper's value. A stopped table is continued."""
    from emulator.console.console_tables import make_console
    from emulator.reproduce.reproduce import ReproduceRequest
    from emulator.reproduce.reproduce import reproduce as do_reproduce
    from emulator.sweeps.sweep_progress import make_display

    console = make_console()
    if is_list:
        _list(console)
        return
    if name is None:
        raise typer.BadParameter("give the NAME of a published table, or --list for all names")
    if cells and not _split(cells):
        raise typer.BadParameter("--cells is empty; give patterns such as fedavg,*/dirichlet, or leave --cells out")
    request = ReproduceRequest(name=name, out=out, cells=_split(cells or []), seeds=_numbers(seeds), jobs=jobs)
    outcome = do_reproduce(request, make_display(console, is_json=output.is_json, is_quiet=output.is_quiet))
    _tell(outcome, request.out / name, console, is_json=output.is_json)
    if outcome.failure is not None:
        raise outcome.failure


@with_groups
def verify(
    *,
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="The folder of a sweep or table, or a tar of it.")],
    cells: Annotated[int, typer.Option(min=0, metavar="N", help="Replay this many runs, drawn at random.")] = 1,
    seed: Annotated[
        int | None, typer.Option(min=0, metavar="S", help="Draw by this seed.", show_default="a new one")
    ] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Accept a bundle without some runs of its sweep, such as a deleted run.")
    ] = False,
    jobs: Jobs = None,
    output: Output,
) -> None:
    """Check somebody's results: compare the tables with the records, and replay some runs. Replays must be equal to the
    bit.
    """
    import secrets

    from emulator.console.console_tables import make_console
    from emulator.reproduce.bundle import opened
    from emulator.reproduce.verify import verify as do_verify
    from emulator.sweeps.sweep_progress import make_display

    console = make_console()
    drawn_by = secrets.randbelow(1 << 31) if seed is None else seed
    with opened(bundle) as found:
        display = make_display(console, is_json=output.is_json, is_quiet=output.is_quiet)
        verdict = do_verify(found, cells=cells, seed=drawn_by, may_be_partial=partial, display=display, jobs=jobs)
    _tell_verdict(verdict, drawn_by, console, is_json=output.is_json)
    if verdict.failure is not None:
        raise verdict.failure


def _split(given: list[str]) -> tuple[str, ...]:
    return tuple(word.strip() for each in given for word in each.split(",") if word.strip())


def _numbers(given: str | None) -> tuple[int, ...]:
    words = _split([given]) if given is not None else ()
    if given is not None and not (words and all(word.isdecimal() and len(word) < 20 for word in words)):
        raise typer.BadParameter(
            f"--seeds {given:.80}: give whole numbers from 0 up, separated by commas, such as 3,4,5"
        )
    return tuple(dict.fromkeys(map(int, words)))


def _list(console: "Console") -> None:
    from emulator.console.units import counted
    from emulator.reproduce.published import tables

    for each in tables():
        runs = [run.experiment for run in each.sweep.runs]
        rounds, devices = max(run.training.lps_rounds for run in runs), max(run.device_count for run in runs)
        sizes = f"of up to {counted(rounds, 'round')} and {counted(devices, 'device')}"
        models = ", ".join(sorted({run.model.name for run in runs}))
        said = f"{counted(len(each.values), 'value')}, {counted(len(runs), 'run')} {sizes}, {models}"
        console.print(f"{each.name}: {said}\n  {each.about.paper}. {each.about.source}", soft_wrap=True, markup=False)


def _tell(outcome: "SweepOutcome", folder: Path, console: "Console", *, is_json: bool) -> None:
    from emulator.commands.sweep import print_table
    from emulator.console.json_lines import print_json
    from emulator.reproduce.reproduce import PAGE, table_in
    from emulator.reproduce.table_page import compared, comparison_rows

    table, results = table_in(folder), outcome.results
    if is_json:
        values = compared(table, results)
        print_json({
            "event": "table", "folder": str(folder), "values": len(values),
            "compared": sum(each.ours is not None for each in values), "completed": len(results.records),
            "verdicts": {each.place.label: each.verdict for each in values if each.ours is not None},
        })  # fmt: skip
        return
    right = {"seeds", "theirs", "ours", "difference"}
    print_table(console, right.__contains__, table.about.title, comparison_rows(table, results))
    console.print(f"page    {folder.parent / PAGE}\ntables  {folder / 'index.html'}", soft_wrap=True, markup=False)


def _tell_verdict(verdict: "Verdict", seed: int, console: "Console", *, is_json: bool) -> None:
    from emulator.console.json_lines import print_json
    from emulator.console.units import counted
    from fedstrata.process.quoting import printable

    failure = verdict.failure
    if is_json:
        print_json({
            "event": "verdict", "runs": verdict.complete, "incomplete": list(verdict.incomplete), "seed": seed,
            "equal": failure is None, "comparable": verdict.is_comparable,
            "replayed": [each.run.label for each in verdict.replays], "reason": str(failure) if failure else None,
        })  # fmt: skip
        return
    for each in verdict.replays:
        found = "not confirmed" if each.faults else "equal to the bit"
        found = "cannot be compared" if each.incomparable else found
        console.print(printable(f"{each.run.label}: {found}"), soft_wrap=True, markup=False)
    told = "do not follow" if verdict.faults else "follow"
    runs = counted(verdict.complete + len(verdict.incomplete), "run")
    console.print(
        f"the tables {told} from the records of {verdict.complete} of {runs}; cells drawn with --seed {seed}",
        soft_wrap=True, markup=False,
    )  # fmt: skip
    if verdict.incomplete:
        listed = ", ".join(f"({label})" for label in verdict.incomplete)
        console.print(printable(f"without a completed record: {listed}"), soft_wrap=True, markup=False)
