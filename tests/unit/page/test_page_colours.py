"""The page's colours, light and dark: marks stand out from what is behind them, and from each other to every eye."""

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from emulator.results.report.style import COLOURS
from fedstrata import page

STYLE = (Path(page.__file__).parent / "static" / "style.css").read_text(encoding="utf-8")
THEMES = dict(
    zip(
        ("light", "dark"),
        (
            dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
            for block in re.findall(r"\{([^{}]*--ink:[^{}]*)\}", STYLE)
        ),
        strict=True,
    )
)
# How linear RGB is seen without one kind of cone: Machado, Oliveira and Fernandes, IEEE TVCG 2009, severity 1.
EYES = {
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
    "all cones": np.eye(3),
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = np.array([0.9505, 1.0, 1.089])

Colour = NDArray[np.float64]


def linear(name: str) -> Colour:
    """#rrggbb as linear RGB in [0, 1]."""
    value = np.array([int(name[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """WCAG 2's ratio, from 1 to 21."""
    low, high = sorted(float(TO_XYZ[1] @ linear(name)) for name in (one, other))
    return (high + 0.05) / (low + 0.05)


def lab(colour: Colour) -> Colour:
    """CIE L*a*b*, in which a distance of 2.3 is just seen."""
    share = TO_XYZ @ colour / WHITE
    root = np.where(share > 0.008856, np.cbrt(share), 7.787 * share + 16 / 116)
    return np.array([116 * root[1] - 16, 500 * (root[0] - root[1]), 200 * (root[1] - root[2])])


def marks(theme: str) -> dict[str, str]:
    return {name: colour for name, colour in THEMES[theme].items() if re.fullmatch(r"[ck]\d|up|down|accent|edge", name)}


@pytest.mark.parametrize("theme", THEMES)
def test_every_mark_has_a_contrast_of_three_on_its_card(theme: str) -> None:
    found = {name: contrast(colour, THEMES[theme]["card"]) for name, colour in marks(theme).items()}
    assert len(found) == 20
    assert {name: round(ratio, 2) for name, ratio in found.items() if ratio < 3} == {}


@pytest.mark.parametrize("theme", THEMES)
def test_every_text_has_a_contrast_of_four_and_a_half_wherever_it_stands(theme: str) -> None:
    colours = THEMES[theme]
    pairs = [(text, back) for text in ("ink", "muted", "accent", "good", "warn") for back in ("page", "card")]
    found = {pair: contrast(colours[pair[0]], colours[pair[1]]) for pair in [*pairs, ("warn", "warn-back")]}
    assert {pair: round(ratio, 2) for pair, ratio in found.items() if ratio < 4.5} == {}


@pytest.mark.parametrize("eyes", EYES)
@pytest.mark.parametrize("palette", ["c", "k"])
@pytest.mark.parametrize("theme", THEMES)
def test_colours_of_one_figure_are_told_apart_with_any_eyes(theme: str, palette: str, eyes: str) -> None:
    own = {name: colour for name, colour in marks(theme).items() if re.fullmatch(palette + r"\d", name)}
    seen = {name: lab(np.clip(np.array(EYES[eyes]) @ linear(colour), 0, 1)) for name, colour in own.items()}
    near = {pair: float(np.linalg.norm(seen[pair[0]] - seen[pair[1]])) for pair in combinations(seen, 2)}
    assert {pair: round(distance, 1) for pair, distance in near.items() if distance < 8} == {}


def test_figures_of_comparisons_have_the_pages_colours() -> None:
    assert list(COLOURS) == [THEMES["light"][f"c{number}"] for number in range(8)]
