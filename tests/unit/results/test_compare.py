"""Runs side by side: numbers as in the records, means and deviations that a reader can redo."""

import csv
import io
import math
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import yaml
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console

from emulator.results.compare import compare, show
from emulator.results.over_seeds import MEAN, Comparison, Form, Spread, headlines_of
from emulator.results.report import comparison_figure as report_comparison
from emulator.results.report.comparison_figure import draw_comparison
from fedstrata.errors import DataError, OutputError
from fedstrata.experiment_file import parse_experiment
from tests.support.record_files import write_record


def sweep(folder: Path, method: str, clothes: tuple[float, ...]) -> list[Path]:
    """A run a seed, with the given accuracies of the task `clothes`; its bags are always at 0.5."""
    return [
        write_record(
            folder / f"{method}-{seed}", method=method, seed=seed, task_accuracy={"clothes": accuracy, "bags": 0.5}
        )
        for seed, accuracy in enumerate(clothes)
    ]


def rendered(comparison: Comparison, width: int = 200) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    show(comparison, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def row_of(text: str, start: str) -> list[str]:
    """The cells of the last line that begins with `start`."""
    line = [line for line in text.splitlines() if line.strip().startswith(start)][-1]
    return [cell for cell in line.split("  ") if cell.strip()]


def test_mean_and_sample_deviation_over_seeds() -> None:
    spread = Spread.over([0.8, 0.9, None, 1.0])
    assert spread.mean == pytest.approx(0.9)
    assert spread.deviation == pytest.approx(0.1)  # sqrt((0.01 + 0 + 0.01) / (3 − 1))
    assert spread.count == 3
    assert spread.said(Form(factor=100, digits=1)) == "90.0 ± 10.0 (3 of 4)"
    assert Spread.over([0.8, 0.9, 1.0]).said(Form(factor=100, digits=1)) == "90.0 ± 10.0"


def test_one_seed_has_a_mean_and_no_deviation() -> None:
    assert Spread.over([0.8]) == Spread(mean=0.8, deviation=None, count=1, of=1)
    assert Spread.over([None]).said(Form()) == "–"


def test_runs_of_a_method_make_a_group_over_seeds(tmp_path: Path) -> None:
    folders = sweep(tmp_path, "one_shot", (0.9, 0.8)) + sweep(tmp_path, "random", (0.5,))
    comparison = compare(folders)
    assert comparison.tasks == ("clothes", "bags")
    assert [(group.method, group.seeds, group.variant) for group in comparison.groups] == [
        ("one_shot", (0, 1), ""),
        ("random", (0,), ""),
    ]
    clothes = comparison.groups[0].measured("clothes")
    assert clothes.mean == pytest.approx(0.85)
    assert clothes.deviation == pytest.approx(math.sqrt(0.005))
    assert comparison.groups[0].measured(MEAN).mean == pytest.approx(0.86)


def test_the_tables_say_the_numbers(tmp_path: Path) -> None:
    text = rendered(compare(sweep(tmp_path, "one_shot", (0.9, 0.8)))).replace("\u00a0", " ")
    first = next(line for line in text.splitlines() if line.split()[:2] == ["one_shot", "0"])
    # seed, clusters, ARI, mean, clothes, bags, bytes of three links, time
    assert first.split()[1:7] == ["0", "2", "1.000", "86.0", "90.0", "50.0"]
    assert " ".join(first.split()[7:]) == "6.00 kB 2.10 kB 1.00 kB 1 min 02 s"
    assert "85.0 ± 7.1" in text
    assert "86.0 ± 0.0" in text


@pytest.mark.parametrize("width", [30, 80, 110, 200])
def test_no_column_is_cut_off_on_a_narrow_terminal(tmp_path: Path, width: int) -> None:
    text = rendered(compare(sweep(tmp_path, "one_shot", (0.9, 0.8))), width)
    for heading in ("clothes %", "bags %", "device-gps", "device-lps", "lps-gps", "time"):
        assert heading in text


def test_runs_with_other_settings_are_another_group_that_says_which(tmp_path: Path) -> None:
    folders = [
        write_record(tmp_path / f"{rounds}-{seed}", seed=seed, settings={"training": {"global_rounds": rounds}})
        for rounds in (3, 5)
        for seed in (0, 1)
    ]
    groups = compare(folders).groups
    assert [(group.variant, group.seeds) for group in groups] == [
        ("training.global_rounds=3", (0, 1)),
        ("training.global_rounds=5", (0, 1)),
    ]
    assert "training.global_rounds=5" in rendered(compare(folders))


OPTIMISERS = (
    {"name": "none"},
    {"name": "momentum", "learning_rate": 1.0, "momentum": 0.7},
    {"name": "adam", "learning_rate": 0.01, "beta_1": 0.9},
    {"name": "adam", "learning_rate": 0.1, "beta_1": 0.9},
)


@pytest.mark.parametrize("number", [2, 3, 4])
def test_the_legend_names_the_servers_optimiser_and_is_within_the_figure(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr(report_comparison, "save", lambda figure, *_: drawn.append(figure))
    settings = [{"training": {"gps_optimiser": optimiser}} for optimiser in OPTIMISERS[-number:]]
    folders = [write_record(tmp_path / str(i), settings=each) for i, each in enumerate(settings)]
    comparison = compare(folders)
    draw_comparison(comparison, tmp_path)
    (figure,) = drawn
    legend = figure.axes[0].get_legend()
    labels = [text.get_text() for text in legend.get_texts()]
    assert len(set(labels)) == number
    said = ["gps_optimiser=" if number > 2 else "gps_optimiser.learning_rate="] * number
    assert [text.partition("[")[2][: len(each)] for text, each in zip(labels, said, strict=True)] == said
    inside = legend.get_window_extent(FigureCanvasAgg(figure).get_renderer())
    whole = figure.bbox
    assert whole.x0 <= inside.x0 and inside.x1 <= whole.x1 and whole.y0 <= inside.y0, (labels, inside, whole)


def test_where_data_and_weights_lie_does_not_set_runs_apart(tmp_path: Path) -> None:
    models = [{"name": "a:b", "weights": f"/{user}/w"} for user in ("ann", "bob")]
    settings = [
        {
            "data": {"name": "digits", "folder": f"/{user}"},
            "model": model,
            "architectures": [{"devices": [0], "model": model}],
            "partition": {"kind": "given", "file": f"/{user}/owners", "file_sha256": "0" * 64, "devices": 4},
        }
        for user, model in zip(("ann", "bob"), models, strict=True)
    ]
    folders = [write_record(tmp_path / str(seed), seed=seed, settings=settings[seed]) for seed in (0, 1)]
    (group,) = compare(folders).groups
    assert group.seeds == (0, 1)


def test_other_words_about_the_main_metric_do_not_set_runs_apart(tmp_path: Path) -> None:
    metrics = [[{"name": "accuracy", "unit": "percent", "about": words}] for words in ("share of hits", "hits")]
    comparison = compare([write_record(tmp_path / str(seed), seed=seed, metrics=metrics[seed]) for seed in (0, 1)])
    assert [metric.name for metric in headlines_of(comparison.runs)] == ["accuracy"]


def test_data_drawn_by_the_seed_do_not_set_runs_apart_and_another_draw_does(tmp_path: Path) -> None:
    text = "name: a\ndata: {name: synthetic, synthetic: {seed: %s}}\npartition: {kind: natural, devices: 30}\n"
    folders = [
        write_record(
            tmp_path / f"{draw}-{seed}",
            seed=seed,
            settings={"data": yaml.safe_load(parse_experiment(text % draw, seed=seed).to_yaml())["data"]},
        )
        for draw in ("null", 4)
        for seed in (3, 4, 5)
    ]
    assert [(group.seeds, group.variant) for group in compare(folders).groups] == [
        ((3, 4, 5), "data.synthetic.seed=None"),
        ((3, 4, 5), "data.synthetic.seed=4"),
    ]


def test_a_seed_that_was_run_twice_counts_once(tmp_path: Path) -> None:
    folders = [write_record(tmp_path / name) for name in ("laptop", "kubernetes")]
    comparison = compare([*folders, folders[0]])
    assert len(comparison.runs) == 2
    assert comparison.groups[0].seeds == (0,)


def test_a_failed_run_is_shown_and_not_averaged(tmp_path: Path) -> None:
    folders = sweep(tmp_path, "one_shot", (0.9,))
    folders.append(write_record(tmp_path / "failed", seed=1, status="failed", accuracy={}, task_accuracy=None))
    comparison = compare(folders)
    assert comparison.groups[0].seeds == (0,)
    assert row_of(rendered(comparison, 80), "failed")[0].strip() == "failed"


def test_runs_that_all_failed_have_no_groups(tmp_path: Path) -> None:
    folder = write_record(tmp_path / "failed", status="failed", accuracy={}, task_accuracy=None)
    comparison = compare([folder], tmp_path / "out")
    assert comparison.groups == ()
    assert "failed" in rendered(comparison)
    assert (tmp_path / "out" / "compare.png").stat().st_size > 1000


def test_the_csv_has_runs_then_means_and_deviations(tmp_path: Path) -> None:
    compare(sweep(tmp_path / "runs", "one_shot", (0.9, 0.8)), tmp_path / "out")
    with (tmp_path / "out" / "compare.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["row"], row["seed"], row["runs"]) for row in rows] == [
        ("run", "0", "1"), ("run", "1", "1"), ("mean", "", "2"), ("std", "", "2"),
    ]  # fmt: skip
    assert [float(row["accuracy_clothes"]) for row in rows] == pytest.approx([0.9, 0.8, 0.85, math.sqrt(0.005)])
    assert rows[0]["device-gps_down_bytes"] == "4500"
    assert rows[0]["lps-gps_up_bytes"] == "400"
    assert rows[0]["seconds"] == "62.0"


def test_the_figure_is_written_in_both_formats_and_alike_each_time(tmp_path: Path) -> None:
    folders = sweep(tmp_path / "runs", "one_shot", (0.9, 0.8)) + sweep(tmp_path / "runs", "random", (0.5, 0.7))
    for name in ("first", "second"):
        compare(folders, tmp_path / name)
    files = sorted(path.name for path in (tmp_path / "first").iterdir())
    assert files == ["compare.csv", "compare.png", "compare.svg"]
    for file in files:
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()
    svg = (tmp_path / "first" / "compare.svg").read_text(encoding="utf-8")
    words = {element.text for element in ET.fromstring(svg).iter() if element.tag.endswith("text")}
    assert {"clothes", "bags", MEAN, "one_shot (2 seeds)", "random (2 seeds)"} <= words


def test_a_name_cannot_style_or_steer_the_terminal(tmp_path: Path) -> None:
    folder = write_record(tmp_path / "run", name="[bold]x[/bold]\x1b[2J")
    text = rendered(compare([folder]))
    assert "[bold]x[/bold]" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("text", ["{", "[]"])
def test_an_unreadable_record_is_refused_in_one_line_that_names_it(tmp_path: Path, text: str) -> None:
    good, bad = (write_record(tmp_path / name) for name in ("good", "bad"))
    (bad / "summary.json").write_text(text)
    with pytest.raises(DataError, match=r"bad/summary\.json") as refused:
        compare([good, bad])
    assert "\n" not in str(refused.value)


def test_nothing_to_compare_is_refused() -> None:
    with pytest.raises(DataError, match="nothing to compare"):
        compare([])


def test_an_output_that_cannot_be_written_is_an_output_error(tmp_path: Path) -> None:
    folder = write_record(tmp_path / "run")
    (tmp_path / "out").write_text("in the way")
    with pytest.raises(OutputError, match="cannot write the comparison"):
        compare([folder], tmp_path / "out")


def test_a_run_without_tasks_is_compared_by_its_mean(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"task_accuracy": None, "device_tasks": None, "adjusted_rand_index": None}
    comparison = compare([write_record(tmp_path / "run", **changes)], tmp_path / "out")
    assert comparison.tasks == ()
    assert row_of(rendered(comparison), "one_shot")[-1].strip() == "86.0"


def test_runs_by_different_openblas_kernels_are_said_to_be_so(tmp_path: Path) -> None:
    here = [write_record(tmp_path / f"here-{seed}", seed=seed, kernels={"SkylakeX": 5}) for seed in (0, 1)]
    old = write_record(tmp_path / "old", seed=2)  # of before kernels were recorded
    assert "OpenBLAS" not in rendered(compare([*here, old]))
    there = write_record(tmp_path / "there", seed=0, kernels={"Haswell": 3, "SkylakeX": 2})
    said = rendered(compare([*here, there])).splitlines()[-1]
    assert said.startswith("Computed by different kernels")
    assert "SkylakeX: here-0, here-1; Haswell, SkylakeX: there" in said


def made_by(torch: str, commit: str) -> dict[str, Any]:
    device = {"count": 5, "versions": {"fedstrata": "0.3.0", "torch": torch}, "platform": "Linux", "processor": "A"}
    times = {"started": "2026-01-01T00:00:00Z", "ended": f"2026-01-01T00:00:0{len(torch)}Z"}
    return {"commands": [f"fedstrata run {commit}"], "commit": commit, "software": {"device": [device]}, **times}


def test_versions_that_differ_are_named_and_times_and_commands_are_not(tmp_path: Path) -> None:
    made = {"new": made_by("2.10.0", "abc"), "old": made_by("2.5.1", "abc"), "newer": made_by("2.10.0", "def")}
    folders = [write_record(tmp_path / name, made_by=value) for name, value in made.items()]
    said = rendered(compare(folders))
    assert "device torch differs. 2.10.0: new, newer; 2.5.1: old\n" in said
    assert "commit differs. abc: new, old; def: newer\n" in said
    assert said.count("differs.") == 2
    assert "differs." not in rendered(compare([*folders, write_record(tmp_path / "0.2.0")]))


def test_runs_with_equal_weights_are_named(tmp_path: Path) -> None:
    one, other = {"lps-0": "12" * 32, "lps-1": "34" * 32}, {"lps-0": "12" * 32, "lps-1": "56" * 32}
    turned = {"cluster-0": "34" * 32, "cluster-1": "12" * 32}  # clusters may be called and ordered in another way
    digests = {"none": one, "virtual": turned, "longer": other, "failed": {}, "cut": {}}
    folders = [write_record(tmp_path / name, model_sha256=sha256) for name, sha256 in digests.items()]
    assert "Equal weights, to the bit: none, virtual\n" in rendered(compare(folders))
    assert "Equal weights" not in rendered(compare(folders[1:]))


def test_settings_that_differ_between_methods_are_said(tmp_path: Path) -> None:
    short, long = (
        {"training": {"global_rounds": 3, "local_steps": 5}},
        {"training": {"global_rounds": 3}, "clock": "real"},
    )
    folders = [
        write_record(tmp_path / "a", method="one_shot", settings=short),
        write_record(tmp_path / "b", method="random", seed=1, settings=short),
    ]
    assert "differs" not in rendered(compare(folders))
    folders.append(write_record(tmp_path / "c", method="random", settings=long))
    said = rendered(compare(folders)).splitlines()
    assert "clock differs. real: c" in said
    assert "training.local_steps differs. 5: a, b" in said
    assert sum("differs" in line for line in said) == 2
