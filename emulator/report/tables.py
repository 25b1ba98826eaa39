"""The report's tables as HTML. Every text that comes from a record is escaped here."""

from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape

from emulator.record import LINKS, RunRecord, is_number
from emulator.report.style import Look
from emulator.report.units import NO_VALUE, counted, grouped, human_bytes, human_seconds, percent

PHASES = {
    "enrol": "enrolment",
    "relevance": "questions",
    "group": "grouping",
    "train": "training",
}
CLUSTER_COLUMNS = (
    "Cluster", "Devices", "True tasks", "Accuracy", "Last loss", "In rounds", "Bytes down", "Bytes up", "Model SHA-256",
)  # fmt: skip
UNKNOWN_TASK = "unknown"


class Markup(str):
    """Text that is HTML already; every other string is escaped when it enters a page."""

    __slots__ = ()


def html(text: object) -> Markup:
    """`text` as HTML: escaped, unless it is Markup."""
    return text if isinstance(text, Markup) else Markup(escape(str(text)))


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[object]], numeric: str) -> Markup:
    """A table; `numeric` holds a character a column: `1` where it is set to the right, `.` to the left."""
    kinds = [' class="n"' if kind == "1" else "" for kind in numeric]
    top = "".join(f'<th scope="col"{kind}>{html(cell)}</th>' for cell, kind in zip(head, kinds, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{html(cell)}</td>" for cell, kind in zip(row, kinds, strict=True)) + "</tr>\n"
        for row in rows
    )
    return Markup(
        f'<div class="wide"><table><caption>{html(caption)}</caption><thead><tr>{top}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>"
    )


def cluster_table(record: RunRecord, look: Look) -> Markup:
    """A row a cluster: its devices and their true tasks, result, time, bytes and model."""
    if not record.summary.clusters:
        return Markup("<p>No clusters were formed.</p>")
    rows = []
    for lps_id, ids in record.summary.clusters.items():
        own = [row for row in record.rounds if row.lps_id == lps_id]
        losses = [row.loss for row in own if is_number(row.loss)]
        sha = record.summary.model_sha256.get(lps_id, "")
        rows.append((
            lps_id,
            grouped(len(ids)),
            _tasks_of(ids, look),
            percent(record.summary.accuracy.get(lps_id)),
            f"{losses[-1]:.3f}" if losses else NO_VALUE,
            human_seconds(sum(row.seconds for row in own)) if own else NO_VALUE,
            human_bytes(sum(row.bytes_down for row in own)) if own else NO_VALUE,
            human_bytes(sum(row.bytes_up for row in own)) if own else NO_VALUE,
            Markup(f'<code title="{escape(sha)}">{escape(sha[:12])}</code>') if sha else NO_VALUE,
        ))  # fmt: skip
    return table("Clusters", CLUSTER_COLUMNS, rows, ".1.11111.")


def _tasks_of(ids: Sequence[str], look: Look) -> Markup:
    """The true tasks of a cluster's devices with how many each has."""
    if not look.tasks:
        return Markup(NO_VALUE)
    counts = Counter(look.device_tasks.get(device, UNKNOWN_TASK) for device in ids)
    return Markup("<br>".join(f"{_swatch(task, look)}{html(task)} {grouped(n)}" for task, n in counts.most_common()))


def _swatch(task: str, look: Look) -> str:
    colour = look.tasks.get(task, ("#5b6875", ""))[0]
    return f'<i class="swatch" style="background:{escape(colour)}"></i>'


def task_table(record: RunRecord, look: Look) -> Markup:
    """A row a true task: its devices, their clusters and accuracy; empty where no task is known."""
    if not look.tasks:
        return Markup("")
    accuracy = record.summary.task_accuracy or {}
    cluster_of = record.summary.cluster_of_device
    rows = []
    for task in look.tasks:
        ids = [device for device, name in look.device_tasks.items() if name == task]
        where = Counter(cluster_of.get(device, "none") for device in ids)
        rows.append((
            Markup(f"{_swatch(task, look)}{html(task)}"),
            grouped(len(ids)),
            ", ".join(f"{lps_id} ({grouped(n)})" for lps_id, n in where.most_common()),
            percent(accuracy.get(task)),
            _bar(accuracy.get(task)),
        ))  # fmt: skip
    return table("True tasks", ("Task", "Devices", "In clusters", "Accuracy", ""), rows, ".1.1.")


def _bar(share: float | None) -> Markup:
    """A bar as wide as a share of the whole."""
    return Markup(f'<span class="bar"><i style="width:{100 * share:.1f}%"></i></span>' if share is not None else "")


def time_table(record: RunRecord) -> Markup:
    """Wall time by phase, each with its share of the whole."""
    seconds = record.summary.wall_seconds
    if not seconds:
        return Markup("")
    total = seconds.get("total") or sum(seconds.values())
    phases = [(PHASES.get(key, key), spent) for key, spent in seconds.items() if key != "total"]
    rows = [(name, human_seconds(spent), _bar(min(1.0, spent / total) if total else None)) for name, spent in phases]
    return table("Wall time", ("Phase", "Time", ""), [*rows, ("total", human_seconds(total), "")], ".1.")


def link_table(record: RunRecord) -> Markup:
    """Bytes of each link by direction, to the byte."""
    links = [(name, record.summary.link(name)) for name in LINKS]
    rows = [(name, grouped(link.down), grouped(link.up), human_bytes(link.total)) for name, link in links]
    return table("Bytes by link", ("Link", "Down, B", "Up, B", "Together"), rows, ".111")


def exclusion_table(record: RunRecord) -> Markup:
    """Devices that took no part from some point on; a sentence where there are none."""
    excluded = record.summary.excluded
    if not excluded:
        return Markup("<p>No device was excluded.</p>")
    caption = f"{counted(len(excluded), 'device')} excluded"
    rows = [(exclusion.device, exclusion.stage, exclusion.reason) for exclusion in excluded]
    return table(caption, ("Device", "From", "Reason"), rows, "...")
