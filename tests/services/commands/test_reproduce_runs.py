"""`fedstrata reproduce` and `fedstrata verify` with real processes, on a table of digits that takes seconds."""

import json
import shutil
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from emulator.commands import main as cli
from emulator.reproduce.published import TABLES

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="starts the processes of a run"),
    pytest.mark.runs,
]

BUNDLE = Path(__file__).parents[3] / "docs" / "results" / "fedbench-fcube-first-rounds.tar.xz"
DOCUMENT: dict[str, Any] = {
    "published": {
        "title": "Tiny", "paper": "A. Author, Paper", "source": "Table 1", "read": ["page 2: left"],
        "differs": ["Everything."], "values": {"fedavg": [10, 200], "fedprox": 0},
    },
    "base": {
        "name": "tiny", "data": {"name": "digits"}, "method": "fedavg",
        "partition": {"kind": "iid", "devices": 2, "examples_per_device": 20},
        "training": {"global_rounds": 1, "lps_rounds_per_global_round": 1},
    },
    "seeds": [3, 4],
    "cells": {"local": {"method": "local"}, "fedavg": {}, "fedprox": {"method": "fedprox"}},
}  # fmt: skip


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the table after two calls: fedavg and local with seed 3, then fedavg with seed 4."""
    place = tmp_path_factory.mktemp("reproduce")
    (place / "tables").mkdir()
    (place / "tables" / "tiny.yaml").write_text(yaml.safe_dump(DOCUMENT, sort_keys=False), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("emulator.reproduce.published.TABLES", place / "tables")
        words = ["reproduce", "tiny", "--out", str(place / "out"), "--quiet"]
        assert cli.execute([*words, "--cells", "fedavg,local", "--seeds", "3"]) == 0
        first = place / "out" / "tiny" / "runs" / "fedavg" / "seed-3" / "summary.json"
        written = first.stat().st_mtime_ns
        assert cli.execute([*words, "--cells", "fedavg", "--seeds", "4"]) == 0
        assert first.stat().st_mtime_ns == written
    return place / "out" / "tiny"


@pytest.fixture(autouse=True)
def known(done: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is one of this Fedstrata's published tables."""
    monkeypatch.setattr("emulator.reproduce.published.TABLES", done.parents[1] / "tables")


def test_the_page_has_all_runs_of_both_calls(done: Path) -> None:
    page = (done / "reproduced.md").read_text(encoding="utf-8")
    assert "| fedavg | 2 | 10.00 ± 200.00 |" in page
    assert "Of 2 published values: 1 within 2 sd, 1 not run." in page
    assert "Gain over training alone" in page
    assert page in (done.parent / "reproduced.md").read_text(encoding="utf-8")
    assert (done / "index.html").exists()


def verified(bundle: Path, capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    capfd.readouterr()
    code = cli.execute(["verify", str(bundle), "--partial", "--seed", "2", "--quiet", *words])
    told = capfd.readouterr()
    assert "Traceback" not in told.err
    return code, told.out + told.err


def test_replayed_runs_of_a_tar_are_equal_to_the_bit(
    done: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bundle.tar"
    with tarfile.open(path, "w") as archive:
        archive.add(done, arcname="tiny")
    code, told = verified(path, capfd, "--cells", "1")
    assert code == 0, told
    assert "fedavg, seed 4: equal to the bit" in told
    assert "the tables follow from the records of 3 of 6" in told
    assert "without a completed record: (fedprox, seed 3), (local, seed 4), (fedprox, seed 4)" in told


@pytest.mark.timeout(600)
def test_the_bundle_on_the_page_has_the_same_bits_on_this_machine(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emulator.reproduce.published.TABLES", TABLES)
    code, told = verified(BUNDLE, capfd, "--cells", "10")
    assert "the tables follow from the records of 36" in told, told
    if "bits cannot be compared" in told or "does not name torch's kernels" in told:
        pytest.skip("the bundle is of processors with other kernels")
    assert code == 0, told
    assert told.count("equal to the bit") == 10


def changed(done: Path, tmp_path: Path, name: str, change: Callable[[str], str]) -> Path:
    """A copy of the bundle with one file changed."""
    copy = tmp_path / "falsified"
    shutil.copytree(done, copy)
    path = copy / name
    before = path.read_text(encoding="utf-8")
    path.write_text(change(before), encoding="utf-8")
    assert path.read_text(encoding="utf-8") != before
    return copy


def better(text: str) -> str:
    """A summary with a higher accuracy everywhere, also in the mean."""
    summary = json.loads(text)
    for key in ("accuracy", "device_accuracy"):
        summary[key] = dict.fromkeys(summary[key], 0.99)
    return json.dumps(summary)


def far_away(text: str) -> str:
    summary = json.loads(text)
    summary["model_sha256"]["../../elsewhere"] = "ab" * 32
    return json.dumps(summary)


def other_hash(text: str) -> str:
    summary = json.loads(text)
    summary["model_sha256"] = dict.fromkeys(summary["model_sha256"], "ab" * 32)
    return json.dumps(summary)


SUMMARY = "runs/fedavg/seed-4/summary.json"


@pytest.mark.parametrize(
    "falsified",
    [
        ("table.csv", lambda text: text.replace("fedavg,mean_accuracy,2,0", "fedavg,mean_accuracy,2,1"),
         "table.csv: fedavg: mean_accuracy is '1."),
        ("table.md", lambda text: text.replace("| fedavg | 2 |", "| fedavg | 9 |"), "table.md has the row"),
        ("table.md", lambda text: text + "| local | 9 |\n", "table.md has the row '| local | 9 |'"),
        ("reproduced.md", lambda text: text.replace("1 within", "2 within"), "records give Of 2 published values: 1"),
        ("reproduced.md", lambda text: text.replace("| 10.00 ± 200.00 |", "| 90.00 |"), "give | fedavg | 2 | 10.00"),
        ("published.yaml", lambda text: text.replace("- 200\n", "- 1\n"), "reproduced.md has the row"),
        ("published.yaml", lambda text: text.replace("Everything.", "Nothing."), "differs differs from this"),
        ("published.yaml", lambda text: text.replace("Table 1", "Table 2"), "source differs from this Fedstrata's"),
        (SUMMARY, far_away, "summary.json has a model '../../elsewhere'"),
        (SUMMARY, other_hash, "lps-0.safetensors has other weights than the model_sha256"),
    ],
)  # fmt: skip
def test_a_falsified_table_is_found_without_a_replay(
    done: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], falsified: tuple[str, Callable[[str], str], str]
) -> None:
    name, change, said = falsified
    code, told = verified(changed(done, tmp_path, name, change), capfd, "--cells", "0")
    assert (code, said in told) == (8, True), told


def made_again(bundle: Path, done: Path) -> None:
    """Write the tables and the page of a falsified bundle again, so that they agree with its records."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("emulator.reproduce.published.TABLES", done.parents[1] / "tables")
        from emulator.reproduce.reproduce import made_with, results_in, table_in
        from emulator.reproduce.table_page import section
        from emulator.results.report import write_report
        from emulator.sweeps.sweep_page import write_results

        results = results_in(bundle, table_in(bundle))
        for record in results.records.values():
            write_report(record.folder)
        write_results(results, bundle)
        (bundle / "reproduced.md").write_text(section(table_in(bundle), results, made_with()), encoding="utf-8")


def test_a_page_without_its_published_values_is_refused(
    done: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(done, tmp_path / "partial")
    (copy / "published.yaml").unlink()
    code, told = verified(copy, capfd, "--cells", "0")
    assert (code, "published.yaml, is missing" in told) == (8, True), told


def test_a_published_table_that_this_fedstrata_lacks_is_not_confirmed(
    done: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emulator.reproduce.published.TABLES", TABLES)
    code, told = verified(done, capfd, "--cells", "0")
    assert (code, "published.yaml: no published table is called 'tiny'" in told) == (8, True), told


def test_gains_that_follow_from_no_record_are_found(
    done: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(done, tmp_path / "partial")
    shutil.rmtree(copy / "runs" / "local")
    made_again(copy, done)
    assert verified(copy, capfd, "--cells", "0")[0] == 0
    (copy / "gains.csv").write_text("cell,seed,device,gain\n", encoding="utf-8")
    code, told = verified(copy, capfd, "--cells", "0")
    assert (code, "gains.csv has the row 'cell,seed,device,gain', but the records give none" in told) == (8, True), told


def agreed(text: str) -> str:
    return json.dumps({**json.loads(text), "adjusted_rand_index": 1.0})


@pytest.mark.parametrize(
    ("falsify", "message"),
    [(better, "accuracy.lps-0 is 0.99"), (agreed, "adjusted_rand_index is 1.0, but none in the replay")],
)
def test_a_falsified_cell_whose_tables_agree_is_found_by_its_replay(
    falsify: Callable[[str], str], message: str, done: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bundle = changed(done, tmp_path, SUMMARY, falsify)
    made_again(bundle, done)
    assert verified(bundle, capfd, "--cells", "0")[0] == 0
    code, told = verified(bundle, capfd, "--cells", "1")
    assert code == 8, told
    assert f"fedavg, seed 4: {message}" in told


def test_other_experiments_under_the_name_of_a_published_table_are_found(
    done: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tables").mkdir()
    own = {**DOCUMENT, "base": {**DOCUMENT["base"], "training": {"global_rounds": 2, "lps_rounds_per_global_round": 1}}}
    (tmp_path / "tables" / "tiny.yaml").write_text(yaml.safe_dump(own, sort_keys=False), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("emulator.reproduce.published.TABLES", tmp_path / "tables")
        code, told = verified(done, capfd, "--cells", "0")
    assert (code, "the experiments differ from this Fedstrata's table" in told) == (8, True), told


def test_a_run_that_names_another_processor_is_not_confirmed(
    done: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def elsewhere(text: str) -> str:
        summary = json.loads(text)
        (device,) = summary["made_by"]["software"]["device"]
        device["versions"]["torch"] = "0.0.1"
        return json.dumps({**summary, "kernels": {"Abacus": 2}})

    bundle = changed(done, tmp_path, SUMMARY, elsewhere)
    made_again(bundle, done)  # with pages that agree with the summary
    code, told = verified(bundle, capfd, "--cells", "1")
    assert code == 9, told
    assert "fedavg, seed 4: cannot be compared" in told
    assert "the record has the kernels 'Abacus'" in told
    assert "device torch was 0.0.1 for the record and " in told


def test_a_record_of_0_2_0_names_no_kernel_of_torch_and_its_bits_may_be_of_another_processor(
    done: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def older(text: str) -> str:
        summary = json.loads(text)
        kernels = {kernel.partition("-")[0]: devices for kernel, devices in summary["kernels"].items()}
        return json.dumps({**summary, "kernels": kernels})

    def elsewhere(text: str) -> str:
        return json.dumps({**json.loads(older(text)), "model_sha256": {"lps-0": 64 * "0"}})

    bundle = changed(done, tmp_path, SUMMARY, older)
    made_again(bundle, done)
    code, told = verified(bundle, capfd, "--cells", "1")
    assert code == 0, told
    shutil.rmtree(tmp_path / "falsified")
    code, told = verified(changed(done, tmp_path, SUMMARY, elsewhere), capfd, "--cells", "1")
    assert code == 8
    assert "the record does not name torch's kernels, so all this is expected on a processor of another maker" in told


def test_bad_input_is_one_line(done: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for words, code, said in (
        (["verify", str(tmp_path / "none")], 3, "give the folder of a sweep"),
        (["reproduce"], 2, "give the NAME of a published table"),
        (["reproduce", "tinny"], 2, "no published table is called 'tinny'"),
        (["reproduce", "tiny", "--seeds", "three", "--out", str(tmp_path)], 2, "--seeds three"),
        (["reproduce", "tiny", "--cells", "fedall", "--out", str(tmp_path)], 2, "--cells fedall"),
    ):
        capfd.readouterr()
        assert cli.execute(words) == code
        told = capfd.readouterr().err.strip()
        assert said in told
        assert "\n" not in told
