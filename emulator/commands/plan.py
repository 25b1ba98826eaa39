"""Define the command `plan`, which chooses a topology."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from emulator.commands.options import Jobs, Output, with_groups

if TYPE_CHECKING:
    from rich.console import Console


@with_groups
def plan(
    *,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A search file, as docs/tutorial/choose-a-topology.md describes it.")
    ],
    out: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help="Write the plan to this folder: a new folder, or this search's, to continue the search."
        ),
    ],
    jobs: Jobs = None,
    output: Output,
) -> None:
    """Choose the cheapest of many experiments that reach a target. Most are predicted, and only some are trained."""
    from emulator.commands.sweep import print_table
    from emulator.console.console_tables import make_console
    from emulator.console.json_lines import print_json
    from emulator.planner.output import LEAVES_OUT, PAGE, best_table, summary, write_plan
    from emulator.planner.plan import plan as planned
    from emulator.sweeps.sweep_progress import make_display

    console = make_console()
    found = planned(file, out, jobs, make_display(console, is_json=output.is_json, is_quiet=output.is_quiet))
    write_plan(found, out)
    rounds = found.state.rounds[found.best.models].number
    if output.is_json:
        needs = {name.value: amount for name, amount in found.best.needs(rounds).items()}
        print_json({
            "event": "plan", "folder": str(out), "choices": dict(found.best.choices), "global_rounds": rounds,
            "needs": needs, "candidates": len(found.state.candidates), "trained": len(found.trained),
        })  # fmt: skip
        return
    for line in summary(found):
        console.print(line, soft_wrap=True, markup=False)
    is_text = {"", *found.best.choices}
    print_table(console, lambda name: name not in is_text, "The best candidates", best_table(found))
    console.print(
        f"{LEAVES_OUT}\nexperiment  {out / 'experiment.yaml'}\npage        {out / PAGE}", soft_wrap=True, markup=False
    )


def compare_with_run(folders: Sequence[Path], out: Path | None, console: "Console") -> None:
    """Print what a plan predicts, and what a run of it has measured. The first folder has the plan. `out` must be None,
    because there is no figure.
    """
    from emulator.commands.sweep import print_table
    from emulator.planner.against import against

    if len(folders) != 2:
        raise typer.BadParameter(f"{folders[0]} is a plan; give one run after it")
    if out is not None:
        raise typer.BadParameter(f"{folders[0]} is a plan, which has no figure to compare; leave --out out")
    found = against(*folders)
    head = [f"until {found.target:g}", "plan", "run", "run / plan"]
    print_table(
        console, lambda name: name in head[1:], "What a plan predicts, and a run has used", (head, found.rows())
    )
    for said in found.others:
        console.print(said, soft_wrap=True, markup=False)
