"""The arithmetic of label means: the answer of a device, the similarity of two devices, and the clusters."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstrata.errors import PayloadError
from fedstrata.experiment.privacy import ProfilePrivacy
from fedstrata.methods.clustering import ONE_CLUSTER_BELOW, lower_median
from fedstrata.methods.profiles.private_profiles import check_enough
from fedstrata.methods.profiles.relevance import Matrix
from fedstrata.noise import BEFORE_TRAINING, Noise, noise_multiplier_of, on_grid

PROJECTION_ADDRESS = 0x1ABE_15  # an address that only the draw of A uses
SQUARES = 0.25  # factor of the squares in an answer; with it all numbers need less noise
NO_STRUCTURE = 0.5  # a silhouette up to this does not show groups (Kaufman & Rousseeuw 1990)
LEAST_SPREAD = 1e-6
FLOAT64 = 1e-9  # a point clipped to length one may be longer by this, because float64 rounds
GRID = 2.0**24  # before noise is added, sums are rounded to multiples of 1 / GRID
FAR = 10.0  # number of standard deviations that noise does not exceed in practice
ROUNDING = 1e-5  # relative rounding error of sums in float32
BLOCK = 512  # number of devices that are placed at once, which limits the memory


def projected(features: Matrix, rows: int, seed: int, clip: float) -> Matrix:
    """Return the points z for features (n, d), shape (n, rows). Features are scaled to length one, projected, and
    divided by `clip`. Points that are then longer than one are shortened to length one.
    """
    dim = features.shape[1]
    drawn = np.random.default_rng([seed, PROJECTION_ADDRESS]).standard_normal((dim, rows))
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    points = (features / np.where(lengths > 0, lengths, 1.0)) @ np.linalg.qr(drawn)[0] * (math.sqrt(dim / rows) / clip)
    shortened: Matrix = points / np.maximum(np.linalg.norm(points, axis=1, keepdims=True), 1.0)
    return shortened


def label_sums(points: Matrix, labels: NDArray[np.int64], classes: int) -> Matrix:
    """Return, for each label, the sum of its points, their count, and a quarter of the sum of their squared lengths.
    `points` has shape (n, m), and the result has shape (classes, m + 2).
    """
    squares = SQUARES * (points**2).sum(axis=1, keepdims=True)
    found: Matrix = np.eye(classes)[:, labels] @ np.hstack([points, np.ones_like(squares), squares])
    return found


def noise_deviation(settings: ProfilePrivacy, shape: tuple[int, ...]) -> float:
    """Return the standard deviation of the noise on each number of an answer of this shape.

    The noise must cover the replacement of one example by any other. An example adds to its label's sum of points a
    vector of length one or less. It also adds 1 to the label's count, and at most S = `SQUARES` to its squares. If both
    examples have the same label, the sum changes by at most 2, the squares by at most S, and the count not at all. The
    total change is then at most √(4 + S²). If they have different labels, the sum, count and squares of each label
    change by at most 1, 1 and S. The total change is then at most √(4 + 2 S²). The noise covers this larger change, and
    the rounding of the sums.
    """
    sensitivity = (1 + FLOAT64) * math.sqrt(4 + 2 * SQUARES**2) + math.sqrt(math.prod(shape)) / GRID
    return noise_multiplier_of(settings.epsilon, settings.delta) * sensitivity


def noised(sums: Matrix, examples: int, settings: ProfilePrivacy, noise: Noise) -> Matrix:
    """Return the sums with added noise. Raises ExperimentError if there are fewer examples than `min_examples`."""
    check_enough(examples, settings, "this device has")
    whole = np.rint(sums * GRID).astype(np.int64)
    added = on_grid(
        noise.key(BEFORE_TRAINING, whole.tobytes()), whole.size, noise_deviation(settings, whole.shape), GRID
    )
    found: Matrix = (whole + added.reshape(whole.shape)) / GRID
    return found


def check_sums(sums: NDArray[Any], examples: int, deviation: float) -> None:
    """Raise PayloadError for sums that a device with this many examples cannot have. `deviation` is the standard
    deviation of the noise in the sums; 0 without noise.
    """
    most, wide = examples + FAR * deviation, sums.astype(np.float64)
    if np.abs(wide).max() > most * (1 + ROUNDING):
        raise PayloadError(f"the answer has a label sum beyond ±{most:g}, the limit for {examples} examples")
    if deviation:
        return
    counts, squares, lengths = wide[:, -2], wide[:, -1] / SQUARES, (wide[:, :-2] ** 2).sum(axis=1)
    if (counts < 0).any() or (counts != np.rint(counts)).any() or counts.sum() != examples:
        raise PayloadError(f"the answer counts labels of {counts.sum():g} examples; the device has {examples}")
    if (lengths > (1 + ROUNDING) * counts * squares + ROUNDING).any() or (squares > (1 + ROUNDING) * counts).any():
        raise PayloadError("the answer has a label sum that points of length one or less cannot have")


@dataclass(frozen=True, kw_only=True)
class Means:
    """Hold the label means of N devices, and the numbers with which `likeness` compares them."""

    centres: NDArray[np.float64]  # mean of each label, shape (N, classes, m)
    shares: Matrix  # share of each label, shape (N, classes); 0 for labels that are left out
    errors: Matrix  # error of a squared distance by sampling and noise, shape (N, classes)
    spread: float  # v, see `spread_of`


def means_of(answers: Sequence[NDArray[Any]], deviation: float, spread: float) -> Means:
    """Compute the label means from the answers of devices, and return them. Each answer has shape (classes, m + 2), and
    `deviation` is the standard deviation of its noise. `spread` is v, see `spread_of`.
    """
    counts, centres, noise, _ = _parts(answers, deviation)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1.0)
    return Means(centres=centres, shares=shares, errors=spread / np.maximum(counts, 1.0) + noise, spread=spread)


def spread_of(answers: Sequence[NDArray[Any]], deviation: float) -> float:
    """Return the spread v. The spread of one device is the variance of its points within labels. It is the sum of
    squared distances from label means, divided by the number of points minus the number of labels. v is the lower
    median over the devices that have a spread. `answers` has the answer of each device.
    """
    blocks = (_parts(answers[start : start + BLOCK], deviation) for start in range(0, len(answers), BLOCK))
    spreads = np.concatenate([spreads for *_, spreads in blocks])
    known = spreads[~np.isnan(spreads)]
    return max(lower_median(known), LEAST_SPREAD) if len(known) else LEAST_SPREAD


def _parts(answers: Sequence[NDArray[Any]], deviation: float) -> tuple[Matrix, NDArray[np.float64], Matrix, Matrix]:
    """Return for each device and label: the number of examples, the mean of their points, and the squared error that
    noise causes in this mean. If a device has too few examples of a label, the label is left out, and the returned
    number of examples is 0. The fourth array has the spread of each device, see `spread_of`. The spread is NaN if all
    labels of the device are left out.
    """
    sums = np.stack(answers).astype(np.float64)
    counts = np.where(sums[..., -2] >= max(2.0, 3 * deviation), sums[..., -2], 0.0)
    has, safe = counts > 0, np.maximum(counts, 1.0)
    centres = sums[..., :-2] * (has / safe)[..., None]
    noise = (sums.shape[2] - 2) * deviation**2 / safe**2
    within = np.where(has, sums[..., -1] / SQUARES - counts * ((centres**2).sum(axis=2) - noise), 0.0).sum(axis=1)
    further = (counts - has).sum(axis=1)
    return counts, centres, noise, np.clip(within / np.where(further > 0, further, np.nan), 0.0, 1.0)


def likeness(one: Means, other: Means) -> dict[str, Matrix]:
    """Return two kinds of similarity (views) between N devices and M other devices: `mass` and `meaning`. Each has
    shape (N, M) and values from 0 to 1.
    """
    mass, meaning, weights = (np.zeros((len(one.shares), len(other.shares))) for _ in range(3))
    for label in range(one.shares.shape[1]):
        these, those = one.centres[:, label], other.centres[:, label]
        squares = (these**2).sum(axis=1)[:, None] + (those**2).sum(axis=1) - 2 * these @ those.T
        bias = one.errors[:, label][:, None] + other.errors[:, label]
        alike = np.exp(-2 * np.maximum(squares - bias, 0.0) / one.spread)
        common = np.minimum(one.shares[:, label][:, None], other.shares[:, label])
        mass += common * alike
        meaning += (common > 0) * alike / bias
        weights += (common > 0) / bias
    return {"mass": mass, "meaning": meaning / np.where(weights > 0, weights, 1.0)}


@dataclass(frozen=True, kw_only=True)
class Grouped:
    """Hold the result of clustering N devices: their cluster numbers from 0, and the similarities that led to these
    clusters.
    """

    labels: NDArray[np.int64]  # shape (N,)
    affinity: Matrix  # similarities of the drawn devices, each compared with all others
    view: str
    rule: str


def grouped(
    answers: Sequence[NDArray[Any]], deviation: float, drawn: Sequence[int], views: Sequence[str], count: int | None
) -> Grouped:
    """Divide the drawn devices into `count` groups, by the clearest of the similarities `views`, see `clearest`.
    `drawn` has the positions of these devices in `answers`. If `count` is None, the silhouette decides the number of
    groups. Each other device then joins the group that resembles it most.
    """
    spread = spread_of(answers, deviation)
    marks = means_of([answers[place] for place in drawn], deviation, spread)
    found = likeness(marks, marks)
    clusters, view, rule = clearest(found, views, count)
    np.fill_diagonal(found[view], 1.0)  # also for a device of which all labels are left out
    # Shape (drawn, T); each column has the sum 1.
    share_of = np.eye(clusters.max() + 1)[clusters] / np.bincount(clusters)
    labels = np.empty(len(answers), np.int64)
    labels[list(drawn)] = clusters
    others = sorted(set(range(len(labels))) - set(drawn))
    for start in range(0, len(others), BLOCK):
        block = others[start : start + BLOCK]
        means = means_of([answers[place] for place in block], deviation, spread)
        labels[block] = (likeness(means, marks)[view] @ share_of).argmax(axis=1)
    if others:
        rule += f"; among {len(drawn)} devices, {len(others)} placed by likeness"
    return Grouped(labels=labels, affinity=found[view], view=view, rule=rule)


def clearest(
    found: Mapping[str, Matrix], views: Sequence[str], count: int | None
) -> tuple[NDArray[np.int64], str, str]:
    """Cluster the devices by the clearest of the similarities that `views` names. `found` has the similarities by name.
    Return each device's cluster number, shape (N,), the name of the clearest view, and a text that says how the number
    of clusters was found.

    The clearest view has the highest silhouette with `count` clusters or, if `count` is None, with any number from 2 to
    N / 2. If `count` is None and the silhouette shows no groups, all devices are in one cluster.
    """
    from scipy.cluster.hierarchy import cut_tree, linkage
    from scipy.spatial.distance import squareform
    from sklearn.metrics import silhouette_score

    devices = len(found[views[0]])
    if devices == 1 or count == 1:
        return np.zeros(devices, np.int64), views[0], "one cluster"
    counts = [min(count, devices)] if count is not None else range(2, max(devices // 2, 2) + 1)
    scored = []
    for view in views:
        distances = np.clip(1.0 - (found[view] + found[view].T) / 2, 0.0, 1.0)
        np.fill_diagonal(distances, 0.0)
        tree = linkage(squareform(distances, checks=False), "average")
        for labels in cut_tree(tree, n_clusters=list(counts)).T:
            is_between = labels.max() + 1 < devices
            score = float(silhouette_score(distances, labels, metric="precomputed")) if is_between else 0.0
            scored.append((score, view, labels, float(tree[-1, 2])))
    score, view, labels, farthest = max(scored, key=lambda each: each[0])  # of several, the first
    if count is not None:
        return labels, view, f"{count} as given, by {view}, silhouette {score:.2f}"
    if farthest < ONE_CLUSTER_BELOW or score <= NO_STRUCTURE:
        return (
            np.zeros(devices, np.int64),
            view,
            f"auto: silhouette {score:.2f}, last merge {farthest:.2f}, one cluster",
        )
    return labels, view, f"auto: {labels.max() + 1} by {view}, silhouette {score:.2f}"
