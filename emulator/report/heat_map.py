"""The heat map of the relevance matrix in the order of its dendrogram, with the clusters marked."""

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from emulator.record import Relevance, RunRecord
from emulator.report.style import INK, MUTED, Look, labels_of, shorten, spread
from emulator.report.units import NO_VALUE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_NUMBERED, MAX_LABELLED = 12, 40
MAX_CELLS = 600  # along a side; above it neighbouring cells are drawn as their mean
MAX_FRAMED = 40
SIZE = (10.0, 6.1)
LEFT, BOTTOM, HEIGHT = 0.345, 0.16, 0.80  # of the matrix, in the figure
Segment = tuple[tuple[float, float], tuple[float, float]]


class Tree(NamedTuple):
    """Average linkage of 1 − R: leaves from top to bottom, branches as line segments, merge heights."""

    order: list[int]
    branches: list[Segment]
    heights: list[float]


class Stretch(NamedTuple):
    """Neighbouring rows of one cluster, from `start` up to and without `end`."""

    lps_id: str
    start: int
    end: int


def tree_of(relevance: Relevance) -> Tree:
    """The dendrogram of a matrix; its leaf `order[i]` stands at height i + 0.5."""
    count = len(relevance.ids)
    if count < 2:
        return Tree(list(range(count)), [], [])
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    distance = np.clip(1 - (relevance.matrix + relevance.matrix.T) / 2, 0, None)
    np.fill_diagonal(distance, 0)
    merges = linkage(squareform(distance, checks=False), method="average")
    order = _leaves([(int(a), int(b)) for a, b in merges[:, :2]])
    place = {leaf: (0.0, row + 0.5) for row, leaf in enumerate(order)}
    branches: list[Segment] = []
    for node, (a, b, height, _) in enumerate(merges, start=count):
        (x_a, y_a), (x_b, y_b) = place[int(a)], place[int(b)]
        branches += [((x_a, y_a), (height, y_a)), ((x_b, y_b), (height, y_b)), ((height, y_a), (height, y_b))]
        place[node] = (float(height), (y_a + y_b) / 2)
    return Tree(order, branches, [float(height) for height in merges[:, 2]])


def _leaves(merges: Sequence[tuple[int, int]]) -> list[int]:
    """The leaves from top to bottom; of two branches the one that holds the first device stands above."""
    below = [[leaf] for leaf in range(len(merges) + 1)]
    for a, b in merges:
        upper, lower = sorted((below[a], below[b]), key=min)
        below.append(upper + lower)
    return below[-1]


def stretches_of(ids: Sequence[str], cluster_of_device: dict[str, str]) -> list[Stretch]:
    """The clusters along an order of devices; one stretch each where the order keeps clusters together."""
    stretches: list[Stretch] = []
    for row, device in enumerate(ids):
        lps_id = cluster_of_device.get(device, NO_VALUE)
        if stretches and stretches[-1].lps_id == lps_id:
            stretches[-1] = stretches[-1]._replace(end=row + 1)
        else:
            stretches.append(Stretch(lps_id, row, row + 1))
    return stretches


def mean_relevance(relevance: Relevance, cluster_of_device: dict[str, str]) -> tuple[float | None, float | None]:
    """Mean relevance of pairs of devices in one cluster, and of pairs in two; None where there are none."""
    clusters = np.array([cluster_of_device.get(device, "") for device in relevance.ids])
    placed = clusters != ""
    same = clusters[:, None] == clusters[None, :]
    pairs = np.triu(placed[:, None] & placed[None, :], k=1)
    within, between = relevance.matrix[pairs & same], relevance.matrix[pairs & ~same]
    return (float(within.mean()) if within.size else None, float(between.mean()) if between.size else None)


def draw_heat_map(figure: "Figure", record: RunRecord, relevance: Relevance, look: Look) -> str:
    """Draw dendrogram, true tasks, matrix and scale from left to right, and say in words what they show."""
    tree = tree_of(relevance)
    ids = [relevance.ids[leaf] for leaf in tree.order]
    stretches = stretches_of(ids, record.summary.cluster_of_device)
    width = HEIGHT * SIZE[1] / SIZE[0]
    matrix_axes = figure.add_axes((LEFT, BOTTOM, width, HEIGHT))
    _draw_matrix(matrix_axes, relevance.matrix[np.ix_(tree.order, tree.order)], ids)
    _draw_clusters(matrix_axes, stretches, len(ids))
    longest = max(map(len, labels_of(ids)[0])) if len(ids) <= MAX_LABELLED else 0
    leaves = LEFT - 0.02 - 0.0062 * longest  # where dendrogram and tasks end and the rows' labels begin
    if look.tasks:
        _draw_tasks(figure, figure.add_axes((leaves - 0.012, BOTTOM, 0.012, HEIGHT)), ids, look)
    if tree.branches:
        tree_axes = figure.add_axes((0.04, BOTTOM, leaves - 0.062, HEIGHT))
        _draw_tree(tree_axes, tree, len(record.summary.clusters), len(ids))
    _draw_scale(figure, matrix_axes)
    names = ", ".join(f"{stretch.lps_id} rows {stretch.start + 1} to {stretch.end}" for stretch in stretches)
    return f"Relevance of {len(ids)} devices, rows and columns in the order of the dendrogram. {names}."


def _draw_matrix(axes: "Axes", matrix: NDArray[np.float64], ids: Sequence[str]) -> None:
    count = len(ids)
    if count <= MAX_LABELLED:
        axes.pcolormesh(matrix, cmap="Blues", vmin=0, vmax=1, edgecolors="white", linewidth=0.6 if count <= 30 else 0.2)
    else:
        blocks, side = _in_blocks(matrix)
        extent = (0, side * len(blocks), side * len(blocks), 0)
        axes.imshow(blocks, cmap="Blues", vmin=0, vmax=1, extent=extent, interpolation="none", aspect="auto")
    axes.set(xlim=(0, count), ylim=(count, 0))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    if count <= MAX_LABELLED:
        _label_rows(axes, ids)
    else:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_xlabel(f"{count} devices, in the order of the dendrogram", labelpad=8)
    if count <= MAX_NUMBERED:
        for (row, column), value in np.ndenumerate(matrix):
            colour = "white" if value > 0.55 else INK
            axes.text(column + 0.5, row + 0.5, f"{value:.2f}", size=7.5, color=colour, ha="center", va="center")


def _in_blocks(matrix: NDArray[np.float64]) -> tuple[NDArray[np.float64], int]:
    """Means of square blocks so that at most MAX_CELLS stand along a side, and how many rows a block has."""
    count = len(matrix)
    side = -(-count // MAX_CELLS)
    edges = np.arange(0, count, side)
    sizes = np.diff([*edges, count])
    sums = np.add.reduceat(np.add.reduceat(matrix, edges, axis=0), edges, axis=1)
    return sums / np.outer(sizes, sizes), side


def _label_rows(axes: "Axes", ids: Sequence[str]) -> None:
    count = len(ids)
    labels, shared = labels_of(ids)
    size = 7.5 if count <= 30 else 6.5
    places = np.arange(count) + 0.5
    is_upright = max(map(len, labels)) > 3 or count > 18
    axes.set_xticks(places, labels, rotation=90 if is_upright else 0, size=size)
    axes.set_yticks(places, labels, size=size)
    axes.set_xlabel(f"device ({shared}…), in the order of the dendrogram" if shared else "device")


def _draw_clusters(axes: "Axes", stretches: Sequence[Stretch], count: int) -> None:
    """A frame around each stretch on the diagonal and its cluster's name at the right."""
    from matplotlib.patches import Rectangle

    wanted = [(stretch.start + stretch.end) / 2 for stretch in stretches]
    rows = spread(wanted, 0.034 * count, 0.01 * count, 0.99 * count)
    for stretch, row, middle in zip(stretches, rows, wanted, strict=True):
        size = stretch.end - stretch.start
        frame = Rectangle(
            (stretch.start, stretch.start),
            size,
            size,
            fill=False,
            edgecolor=INK,
            linewidth=1.6,
            clip_on=False,
            zorder=4,
        )
        axes.add_patch(frame)
        if len(stretches) > MAX_FRAMED:
            continue
        if stretch.end < count:
            axes.axhline(stretch.end, color=INK, linewidth=0.5, alpha=0.45)
            axes.axvline(stretch.end, color=INK, linewidth=0.5, alpha=0.45)
        axes.plot([1.006 * count, 1.022 * count], [middle, row], color=MUTED, linewidth=0.7, clip_on=False)
        axes.text(1.03 * count, row, f"{shorten(stretch.lps_id, 12)} ({size})", size=8, va="center")


def _draw_tasks(figure: "Figure", axes: "Axes", ids: Sequence[str], look: Look) -> None:
    """A strip beside the leaves in the colours of the true tasks, named below."""
    from matplotlib.lines import Line2D

    row = 0
    for colour, same in groupby(look.device(device)[0] for device in ids):
        size = len(list(same))
        axes.barh(row, 1, height=size, align="edge", color=colour, linewidth=0)
        row += size
    axes.set(xlim=(0, 1), ylim=(len(ids), 0))
    axes.set_axis_off()
    marks = [
        Line2D([], [], color=colour, marker="s", linestyle="none", markersize=6, label=shorten(task))
        for task, (colour, _) in look.tasks.items()
    ]
    figure.legend(
        handles=marks, loc="upper left", bbox_to_anchor=(0.03, 0.085), ncols=3, title="true task",
        alignment="left", handletextpad=0.1, columnspacing=0.8, title_fontsize=8, fontsize=8,
    )  # fmt: skip


def _draw_tree(axes: "Axes", tree: Tree, clusters: int, count: int) -> None:
    """The dendrogram with its root at the left, and the cut that gives as many clusters as the run had."""
    from matplotlib.collections import LineCollection

    axes.add_collection(LineCollection(tree.branches, colors=INK, linewidths=1.0 if count <= 60 else 0.6))
    highest = max(tree.heights) or 1.0
    axes.set(xlim=(1.04 * highest, 0), ylim=(count, 0))
    if 1 < clusters < count:
        cut = (tree.heights[-clusters + 1] + tree.heights[-clusters]) / 2
        axes.axvline(cut, color="#d55e00", linewidth=1.1, linestyle=(0, (4, 3)))
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.locator_params(axis="x", nbins=4)
    axes.set_xlabel("1 − relevance (average linkage)")


def _draw_scale(figure: "Figure", matrix_axes: "Axes") -> None:
    mesh = matrix_axes.collections[0] if matrix_axes.collections else matrix_axes.images[0]
    bar = figure.colorbar(mesh, cax=figure.add_axes((0.935, 0.36, 0.013, 0.4)))
    bar.outline.set_visible(False)
    bar.set_label("relevance", color=MUTED)
    bar.ax.tick_params(length=0)
