"""Write the result of a search: the chosen experiment, a table of all candidates, a figure, and a page."""

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from emulator.console.units import NO_VALUE, counted, grouped
from emulator.planner.place import gains
from emulator.planner.plan import TRAININGS, Plan
from emulator.planner.resources import Resource
from emulator.planner.search import Candidate, Rounds, shortened
from emulator.results.report.framed import framed
from emulator.results.report.html_tables import Markup, html, table
from emulator.results.report.run_page import write_page
from emulator.results.report.style import COLOURS, MUTED, drawing, inline_svg, save
from fedstrata.errors import OutputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

SHOWN = 10
EXPERIMENT, TABLE, PAGE, FIGURE = "experiment.yaml", "plan.csv", "index.html", "plan"
SEARCH = "search.yaml"
LEAVES_OUT = (
    "Predictions leave out questions before training, headers of messages, measurements by all devices, repeated "
    "transfers, and processes that share cores. Costs are those of the first seed. Rounds with ≈ are estimates; the "
    "other rounds were trained."
)
Table = tuple[list[str], list[list[str]]]  # (header, rows)


def write_plan(plan: Plan, out: Path) -> None:
    """Write the chosen experiment, the search, all candidates, the figure and the page. Raises OutputError if this is
    impossible.
    """
    try:
        (out / EXPERIMENT).write_text(plan.experiment.to_yaml(), encoding="utf-8")
        (out / SEARCH).write_text(plan.search.text, encoding="utf-8")
        (out / TABLE).write_text(csv_text(plan), encoding="utf-8", newline="")
        with drawing():
            from matplotlib.figure import Figure

            figure = Figure(figsize=size_of(plan), facecolor="white")
            draw(plan, figure)
            save(figure, out, FIGURE)
        write_page(out / PAGE, _page(plan))
    except OSError as error:
        raise OutputError(f"cannot write the plan to {out}: {error.strerror}") from None


def resources_of(plan: Plan) -> list[Resource]:
    """Return the resources that every candidate uses. The aim, the resource that the plan saves, is first."""
    there = [each for each in Resource if all(candidate.costs.get(each) for candidate in plan.state.candidates)]
    return sorted(there, key=lambda each: each is not plan.state.aim)


def summary(plan: Plan) -> list[str]:
    """Return lines about the search: the choices, the trainings, and what the plan needs."""
    state, file = plan.state, plan.search.file
    others = [axis for axis in state.candidates[0].choices if axis not in state.axes]
    rounds = state.rounds[plan.best.models].number
    needs = ", ".join(f"{each.label} {each.said(plan.best.needs(rounds)[each])}" for each in resources_of(plan))
    return [
        f"{counted(len(state.candidates), 'candidate')} train {counted(len(state.by_models), 'different model')}; "
        f"{grouped(len(plan.trained))} were trained, with {counted(len(file.seeds), 'seed')} each",
        f"Models depend on {', '.join(state.axes) or 'nothing'}; only times depend on {', '.join(others) or 'nothing'}",
        f"plan: {plan.best.label}: {counted(round(rounds), 'global round')}, {needs}",
        *_why(plan),
        *([gains(plan.experiment, file.place, state.aim)] if file.place is not None else []),
    ]


def _why(plan: Plan) -> Iterator[str]:
    """Yield why the second-best candidate is not the plan."""
    others = [(each, rounds) for each, rounds in plan.state.ranking if each is not plan.best]
    if others:
        second, rounds = others[0]
        aim, best = plan.state.aim, plan.state.rounds[plan.best.models].number
        theirs, ours = second.costs[aim], plan.best.costs[aim]
        more = theirs * rounds.number / (ours * best)
        by = "" if rounds.is_trained else ", by an estimate"
        if round(more, 2) == 1:
            least, needs = plan.best.needs(best), second.needs(rounds.number)
            found = [each.label for each in resources_of(plan)[1:] if shortened(needs[each]) > shortened(least[each])]
            rest = f", and more {', '.join(found)}" if found else ""
            yield f"runner-up: {second.label} needs as much {aim.label}{rest}{by}"
            return
        said = f"{second.label} needs {more:.2f} times the {aim.label}{by}"
        of = f"{theirs / ours:.2f} times per global round, {rounds.number / best:.2f} times the rounds"
        is_open = not rounds.is_trained and round(more, 2) < 1
        yield f"not trained: {said}: {of}; more trainings would show it" if is_open else f"runner-up: {said}: {of}"


def best_table(plan: Plan) -> Table:
    """Return a table of the ten best candidates: predicted amounts and, for trained candidates, measured amounts."""
    resources, aim = resources_of(plan), plan.state.aim
    head = ["", *plan.best.choices, "rounds", *(each.label for each in resources), f"measured {aim.label}"]
    return head, [_row(plan, number, *pair) for number, pair in enumerate(_shown(plan), 1)]


def _shown(plan: Plan) -> list[tuple[Candidate, Rounds]]:
    ranking = plan.state.ranking
    chosen = next(pair for pair in ranking if pair[0] is plan.best)
    return [chosen, *(pair for pair in ranking if pair is not chosen)][:SHOWN]


def _row(plan: Plan, number: int, each: Candidate, rounds: Rounds) -> list[str]:
    needs, aim = each.needs(rounds.number), plan.state.aim
    measured = plan.measured.get(each.place)
    said = f"{rounds.number:.3g}" if rounds.is_trained else f"≈ {rounds.number:.3g}"
    return [
        str(number), *each.choices.values(), said, *(name.said(needs[name]) for name in resources_of(plan)),
        aim.said(measured[aim]) if measured else NO_VALUE,
    ]  # fmt: skip


def csv_text(plan: Plan) -> str:
    """Return all candidates as CSV, with all digits. The same search gives the same text."""
    state, resources = plan.state, list(Resource)
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    measured = [f"measured_{name.value}" for name in resources]
    writer.writerow(
        [*plan.best.choices, "rounds", "models_trained", "plan", *(name.value for name in resources), *measured]
    )
    for each in state.candidates:
        rounds, found = state.rounds[each.models], plan.measured.get(each.place, {})
        needs = each.needs(rounds.number)
        writer.writerow([
            *each.choices.values(), repr(rounds.number), int(rounds.is_trained), int(each is plan.best),
            *(needs.get(name, "") for name in resources), *(found.get(name, "") for name in resources),
        ])  # fmt: skip
    return text.getvalue()


def size_of(plan: Plan) -> tuple[float, float]:
    """Return width and height of the figure in inches."""
    return 4.4 * max(1, len(resources_of(plan)) - 1) + 0.4, 3.8


def draw(plan: Plan, figure: "Figure") -> str:
    """Draw one panel per resource other than the aim, with a point per candidate. Points of trained candidates are
    filled. Return a description of the figure.
    """
    aim, *others = resources_of(plan)
    others, ranking = others or [aim], plan.state.ranking
    for place, other in enumerate(others, 1):
        axes = figure.add_subplot(1, len(others), place)
        title = f"{other.label[0].upper()}{other.label[1:]} by {aim.label}"
        axes.set(xlabel=aim.label, ylabel=other.label, title=title)
        for is_trained in (False, True):
            points = [each.needs(rounds.number) for each, rounds in ranking if rounds.is_trained is is_trained]
            axes.plot(
                [each[aim] for each in points], [each[other] for each in points], "o", markersize=4.5, alpha=0.7,
                color=COLOURS[0] if is_trained else MUTED, fillstyle="full" if is_trained else "none",
                label="trained" if is_trained else "predicted",
            )  # fmt: skip
        front = pareto([(needs[aim], needs[other]) for each, rounds in ranking if (needs := each.needs(rounds.number))])
        axes.step(*zip(*front, strict=True), where="post", color=COLOURS[2], linewidth=1.2, label="Pareto front")
        best = plan.best.needs(plan.state.rounds[plan.best.models].number)
        axes.plot([best[aim]], [best[other]], "*", color=COLOURS[1], markersize=13, label="plan")
        axes.grid(visible=True)
        for axis, resource in (("x", aim), ("y", other)):
            _scale(axes, axis, resource)
        if place == 1:
            axes.legend()
    figure.subplots_adjust(left=0.85 / size_of(plan)[0], right=0.98, bottom=0.14, top=0.9, wspace=0.34)
    return f"{len(ranking)} candidates; the plan is {plan.best.label}"


def pareto(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points on the Pareto front by ascending x. Smaller coordinates are better."""
    found: list[tuple[float, float]] = []
    for x, y in sorted(points):
        if not found or y < found[-1][1]:
            found.append((x, y))
    return found


def _scale(axes: "Axes", name: str, resource: Resource) -> None:
    """Label the axis `x` or `y` with amounts and units. If amounts differ by a factor of 10 or more, the axis is
    logarithmic.
    """
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    axis: Axis = getattr(axes, f"{name}axis")
    least, most = axis.get_data_interval()
    is_wide = most >= 10 * least
    axes.set(**{f"{name}scale": "log" if is_wide else "linear"})
    axis.set_major_locator(LogLocator(numticks=5) if is_wide else MaxNLocator(4))
    axis.set_major_formatter(lambda amount, _: resource.said(amount))
    axis.set_minor_formatter(NullFormatter())


def _page(plan: Plan) -> str:
    """Return the plan's page as HTML."""
    head, rows = best_table(plan)
    reports = {
        each.place: quote(f"{TRAININGS}/{plan.run_of(each).path.as_posix()}/report.html") for each in plan.trained
    }
    shown = [
        [Markup(f'<a href="{reports[each.place]}">{row[0]}</a>') if each.place in reports else row[0], *row[1:]]
        for (each, _), row in zip(_shown(plan), rows, strict=True)
    ]
    numeric = "1" + "." * len(plan.best.choices) + "1" * (len(head) - 1 - len(plan.best.choices))
    title = "What candidates need until the target"
    return framed(
        "plan",
        name=plan.search.sweep.name,
        said=Markup("".join(f"<p>{html(line)}</p>" for line in summary(plan))),
        figure=Markup(
            f"<figure>{inline_svg('plan', title, size_of(plan), lambda figure: draw(plan, figure))}</figure>"
        ),
        table=table("The ten best candidates. A number links to the report of a training", head, shown, numeric),
        leaves_out=html(LEAVES_OUT),
        experiment=html(plan.experiment.to_yaml()),
        text=html(plan.search.text),
    )
