"""`report.html`: one self-contained page that works offline, on a screen and on paper."""

import os
from importlib.resources import files
from pathlib import Path
from string import Template

from emulator.record import RunRecord, load_record
from emulator.report import curves, heat_map, topology
from emulator.report.style import Look, inline_svg, look_of
from emulator.report.tables import (
    Markup,
    cluster_table,
    exclusion_table,
    html,
    link_table,
    task_table,
    time_table,
)
from emulator.report.units import NO_VALUE, decimal, grouped, human_bytes, human_seconds, percent
from emulator.report.virtual_time import virtual_section
from fedstrata.errors import OutputError


def write_report(folder: Path) -> Path:
    """Draw the record in `folder` and write it there as `report.html`, whose path it gives.

    Raises:
        DataError: the record is missing or malformed.
        OutputError: the page cannot be written.
    """
    path = folder / "report.html"
    write_page(path, render_page(load_record(folder)))
    return path


def render_page(record: RunRecord) -> str:
    """The page as text; the same record gives the same bytes."""
    look = look_of(record.summary)
    return fill_template(
        "template.html",
        name=html(record.name),
        run_id=html(record.summary.run_id),
        status=html(record.summary.status),
        failure=_failure(record),
        facts=_facts(record),
        topology=_topology(record, look),
        relevance=_relevance(record, look),
        training=_training(record, look),
        traffic=_traffic(record),
        results=cluster_table(record, look) + task_table(record, look),
        course=f'<div class="pair">{time_table(record)}{link_table(record)}</div>{exclusion_table(record)}'
        + virtual_section(record),
        experiment=html(record.experiment_yaml),
        experiment_sha256=html(record.summary.experiment_sha256 or NO_VALUE),
    )


def fill_template(template: str, /, **parts: str) -> str:
    """A page of this folder's template, with the style of all pages."""
    here = files("emulator.report")
    page = Template(here.joinpath(template).read_text(encoding="utf-8"))
    return page.substitute(parts, style=here.joinpath("style.css").read_text(encoding="utf-8"))


def write_page(path: Path, page: str) -> None:
    """Write a page aside, then put it in its place. Raises OutputError where it cannot be written."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_text(page, encoding="utf-8")
        aside.replace(path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise OutputError(f"cannot write {path}: {error.strerror}") from None


def _failure(record: RunRecord) -> Markup:
    if record.summary.status == "completed":
        return Markup("")
    reason = html(record.summary.reason or "no reason was recorded")
    return Markup(f'<p class="failure" role="alert"><strong>This run failed:</strong> {reason}</p>')


def _facts(record: RunRecord) -> Markup:
    """The numbers to see first, as a description list."""
    summary = record.summary
    facts = (
        ("Mean accuracy", percent(summary.mean_accuracy)),
        ("Adjusted Rand index", decimal(summary.adjusted_rand_index)),
        ("Total time", human_seconds(summary.total_seconds)),
        ("Total bytes", human_bytes(summary.total_bytes) if summary.bytes else NO_VALUE),
        ("Method", summary.method),
        ("Devices", grouped(summary.devices)),
        ("Clusters", grouped(len(summary.clusters))),
        ("Global rounds", grouped(summary.rounds)),
        ("Seed", str(summary.seed)),
    )
    return Markup("".join(f"<div><dt>{html(name)}</dt><dd>{html(value)}</dd></div>" for name, value in facts))


def _figure(svg: str, caption: str) -> Markup:
    return Markup(f"<figure>{svg}<figcaption>{html(caption)}</figcaption></figure>")


def _topology(record: RunRecord, look: Look) -> Markup:
    if not record.summary.clusters:
        return Markup("<p>The run ended before its devices were grouped.</p>")
    svg = inline_svg(
        "topology",
        "The three tiers",
        topology.SIZE,
        lambda figure: topology.draw_topology(figure, record, look),
    )
    rule = (record.summary.clusters_rule or "").strip().rstrip(".")
    caption = "Bytes are those measured on the wire: ↓ towards the devices, ↑ towards the GPS."
    return _figure(svg, f"{caption} Number of clusters: {rule}." if rule else caption)


def _relevance(record: RunRecord, look: Look) -> Markup:
    relevance = record.relevance
    if relevance is None:
        is_done = record.summary.status == "completed"
        why = "method groups devices by no such matrix" if is_done else "run ended before one was made"
        return Markup(f"<p>There is no relevance matrix: the {why}.</p>")
    svg = inline_svg(
        "relevance",
        "Relevance matrix and dendrogram",
        heat_map.SIZE,
        lambda figure: heat_map.draw_heat_map(figure, record, relevance, look),
    )
    within, between = heat_map.mean_relevance(relevance, record.summary.cluster_of_device)
    caption = "Framed: the clusters of the run; dashed: where the dendrogram is cut into as many."
    if within is not None and between is not None:
        caption += f" Mean relevance is {within:.2f} within clusters and {between:.2f} between them."
    return _figure(svg, caption)


def _training(record: RunRecord, look: Look) -> Markup:
    if not record.rounds:
        return Markup("<p>No LPS round was completed.</p>")
    svg = inline_svg(
        "training",
        "Accuracy and loss",
        curves.CURVES_SIZE,
        lambda figure: curves.draw_curves(figure, record, look),
    )
    return _figure(svg, "Of the model that each LPS round produced; bands and G1, G2, … are the global rounds.")


def _traffic(record: RunRecord) -> Markup:
    if not record.rounds and not record.summary.total_bytes:
        return Markup("<p>No bytes were counted.</p>")
    svg = inline_svg("traffic", "Bytes by link", curves.BYTES_SIZE, lambda figure: curves.draw_bytes(figure, record))
    return _figure(
        svg,
        "Measured from what was serialised. Left: between devices and LPSs, all clusters. Right: whole run.",
    )
