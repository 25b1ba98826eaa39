"""What the documents say is so: commands, links, keys, fields, metrics, errors, examples."""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import jsonschema
import pytest
import typer
import yaml

from emulator.commands.main import app
from emulator.results.read_record import load_record
from emulator.sweeps.file import SweepFile, load_sweep, sweep_file, sweep_of
from emulator.sweeps.tuning import candidates_of
from fedstrata.experiment import DATASETS, MODELS
from fedstrata.experiment_file import parse_experiment
from fedstrata.methods import NAMES
from fedstrata.rpc.counting import ANSWER, ATTEND
from fedstrata.rpc.counting import METHODS as CALLS
from fedstrata.v1 import gps_service_pb2, lps_service_pb2
from scripts.reference import metrics
from tests.support.gps_parts import GpsParts
from tests.support.wording import BANNED

ROOT = Path(__file__).parents[3]
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
PAGES = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in DOCUMENTS}


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    """The fenced code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def prose(text: str) -> str:
    """A document without its code blocks."""
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


# --- sentences ----------------------------------------------------------------------------------------------

RULES = "docs/contribute.md"  # it quotes some of these forms


def lengths_of_sentences(text: str) -> list[int]:
    """Words per sentence of a page, without code blocks, tables, headings, pictures and addresses."""
    text = re.sub(r"^(#|\||!\[|:).*$", "\n", prose(text), flags=re.MULTILINE)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    blocks = re.split(r"\n\s*\n|^\s*(?:-|\d+\.) ", text, flags=re.MULTILINE)
    sentences = [part for block in blocks for part in re.split(r"(?<=[.!?:;])\s+", " ".join(block.split()))]
    return [len(sentence.split()) for sentence in sentences if sentence]


def test_sentences_are_counted_without_tables_and_code() -> None:
    page = "# A title\n\nOne two three. Four five:\n\n```\nno\n```\n\n- six [seven](eight.md)\n\n| no | no |\n"
    assert lengths_of_sentences(page) == [3, 2, 2]


def test_sentences_of_a_page_are_short() -> None:
    for name, text in PAGES.items():
        lengths = lengths_of_sentences(text)
        assert sum(lengths) <= 18 * len(lengths), name
        assert max(lengths, default=0) <= 35, name


def test_a_page_has_no_form_that_needs_two_readings() -> None:
    found = {name: BANNED.findall(" ".join(prose(text).split())) for name, text in PAGES.items() if name != RULES}
    assert {name: forms for name, forms in found.items() if forms} == {}


MOST_WORDS = 47_000  # that people write; measured tables and these pages are generated
GENERATED = ROOT / "docs" / "reference", ROOT / "docs" / "decisions" / "README.md"
MEASURED = re.compile("<!-- results of .*?<!-- end of results -->", re.DOTALL)


def test_the_pages_have_at_most_47_000_words() -> None:
    written = [
        text for name, text in PAGES.items() if not any((ROOT / name).is_relative_to(each) for each in GENERATED)
    ]
    words = sum(len(MEASURED.sub("", text).split()) for text in written)
    assert words <= MOST_WORDS, f"{words} words, at most {MOST_WORDS}: say each fact on one page, and link it elsewhere"


# --- commands, links and folders ----------------------------------------------------------------------------


def test_the_targets_that_documents_name_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", text_of("Makefile"), re.MULTILINE))
    named = {name for text in PAGES.values() for name in re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE)}
    assert {"demo", "test"} <= named
    assert named <= targets


def test_the_commands_that_documents_name_exist() -> None:
    commands = set(getattr(typer.main.get_command(app), "commands", {}))
    named = {name for text in PAGES.values() for name in re.findall(r"[`/ \n]fedstrata ([a-z]+)[ `]", text)}
    assert {"run", "compare"} <= named
    assert named <= commands


def test_the_readmes_table_is_a_sweep_of_the_two_fashion_mnist_experiments_and_two_baselines() -> None:
    path = re.search(r"experiments/sweeps/\w+\.yaml", text_of("README.md"))
    assert path
    sweep = load_sweep(ROOT / path[0])
    assert (len(sweep.runs), sweep.baseline) == (24, "random")
    methods = {run.experiment.method.name for run in sweep.runs}
    assert methods == {"one_shot", "random", "fedavg", "local"}
    other = parse_experiment(text_of("experiments/fmnist_random.yaml"), overrides=["name=fmnist-three-tasks"])
    assert sweep.runs[1].experiment == other


@pytest.mark.parametrize("block", blocks(text_of("docs/sweep.md"), "yaml"))
def test_the_documents_sweeps_are_valid(block: str) -> None:
    document = yaml.safe_load(block)
    file = sweep_file(document, "docs/sweep.md")
    found = document if file.tune is None else candidates_of(document, file, file.tune)
    sweep_of(found, name="block", where="docs/sweep.md", beside=ROOT)


def test_every_key_of_a_sweep_is_documented() -> None:
    table = text_of("docs/sweep.md").partition("## The file")[2].partition("\n\nAn axis")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(SweepFile.model_fields)


def test_the_two_fashion_mnist_experiments_differ_in_method_and_name_only() -> None:
    one, other = (
        parse_experiment(text_of(f"experiments/fmnist_{name}.yaml")).model_dump() for name in ("three_tasks", "random")
    )
    assert {key for key in one if one[key] != other[key]} == {"name", "method"}
    common = one["method"].keys() & other["method"].keys()
    assert {key for key in common if one["method"][key] != other["method"][key]} == {"name"}


@cache
def anchors(path: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(path.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_within_the_project_resolve() -> None:
    for name, text in PAGES.items():
        for target in re.findall(r"\]\(([^)\s]+)\)", prose(text)):
            if "://" in target:
                continue
            place, _, anchor = target.partition("#")
            linked = ((ROOT / name).parent / place).resolve() if place else ROOT / name
            assert linked.exists(), f"{name}: {target}"
            assert not anchor or anchor in anchors(linked), f"{name}: {target}"


IMAGES = {"fedstrata/gps", "fedstrata/lps", "fedstrata/device"}  # names of images, not of folders


def test_a_document_has_one_title() -> None:
    assert [name for name, text in PAGES.items() if len(re.findall(r"^# ", prose(text), re.MULTILINE)) != 1] == []


def test_files_that_documents_name_are_there() -> None:
    folders = "fedstrata|gps|lps|device|emulator|protos|experiments|benchmarks|scripts|tests|docs|helm"
    named = {
        (page, name) for page, text in PAGES.items() for name in re.findall(rf"`((?:{folders})/[\w./-]*)`", prose(text))
    }
    assert {(page, name) for page, name in named if not (ROOT / name).exists() and name not in IMAGES} == set()


def test_the_glossary_says_each_word_in_one_short_sentence() -> None:
    glossary = text_of("docs/concepts.md").partition("## Glossary")[2]
    rows = [row for row in re.findall(r"^\| (.+?) \| (.+?) \|$", glossary, re.MULTILINE) if row[0] != "word"]
    assert 25 <= len(rows) <= 45
    assert {"device", "local parameter server (LPS)", "global parameter server (GPS)"} <= {word for word, _ in rows}
    for word, meaning in rows:
        assert len(meaning.split()) <= 25, word
        assert re.fullmatch(r"[A-Z`][^.]*\.", meaning), word


def test_the_chooser_of_methods_has_its_figures_from_the_results() -> None:
    figure = re.compile(r"−?\d+\.\d+ ± \d+\.\d+")
    results = " ".join(path.read_text("utf-8") for path in (ROOT / "docs" / "results").glob("*.md"))
    chosen = set(figure.findall(text_of("docs/choose-a-method.md")))
    assert len(chosen) > 20
    assert chosen <= set(figure.findall(results))


def test_the_folder_map_is_the_folder() -> None:
    ignored = [line.strip("/") for line in text_of(".gitignore").splitlines()]
    there = {
        path.name
        for path in ROOT.iterdir()
        if path.is_dir() and not path.name.startswith(".") and not any(fnmatch(path.name, i) for i in ignored)
    }
    table = text_of("docs/architecture.md").partition("## Folders")[2].partition("\n## ")[0]
    assert set(re.findall(r"`(\w+)/`", table)) == there


def test_the_readme_begins_with_a_promise_a_picture_reasons_a_command_and_a_result() -> None:
    text = text_of("README.md")
    assert text.count("](docs/page.png)") == text.count("](docs/report.png)") == 1
    start = "\n".join(text.splitlines()[:75])
    parts = [r"^\*\*Federated", r"^!\[.+\]\(docs/.+\)$", r"^## Why$", r"^```\nmake demo\b", r"^\| one-shot.*\d ± \d"]
    found = [re.search(part, start, re.MULTILINE) for part in parts]
    places = [match.start() for match in found if match]
    assert len(places) == len(parts)
    assert places == sorted(places)


def test_the_readme_spells_the_tiers_out_and_says_how_to_get_its_data_set() -> None:
    text = text_of("README.md")
    before_picture = " ".join(text.partition("\n![")[0].split())
    assert "local parameter servers (LPS)" in before_picture
    assert "global parameter server (GPS)" in before_picture
    data, sweep = re.findall(r"^\.venv/bin/fedstrata (data|sweep) ", text, re.MULTILINE)
    assert (data, sweep) == ("data", "sweep")


@pytest.mark.runs
def test_the_readmes_experiment_program_and_module_give_the_results_that_it_prints(tmp_path: Path) -> None:
    text = text_of("README.md")
    files = [*blocks(text, "yaml"), *blocks(text, "python")]
    for name, content in zip(["tasks.yaml", "compare.py", "net.py"], files, strict=True):
        (tmp_path / name).write_text(content, encoding="utf-8")
    (command,) = re.findall(
        r"^\.venv/bin/fedstrata (run tasks\.yaml .*?) +# mean accuracy ([\d.]+) %$", text, re.MULTILINE
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [["compare.py"], ["-m", "emulator", *shlex.split(command[0]), "--out", "net", "--quiet"]]
    compared, _ = [
        subprocess.run(
            [sys.executable, *each],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200, check=True,
        ).stdout
        for each in words
    ]  # fmt: skip
    line = re.compile(r"^(\w+) +clusters (\d) +accuracy ([\d.]+)$", re.MULTILINE)
    said, done = (line.findall(output) for output in (blocks(text, "text")[0], compared))
    assert [row[:2] for row in done] == [row[:2] for row in said]
    assert [float(row[2]) for row in done] == pytest.approx([float(row[2]) for row in said], abs=0.01)  # processors
    assert load_record(tmp_path / "net").summary.mean == pytest.approx(float(command[1]) / 100, abs=0.01)


def test_every_decision_is_in_the_index_once_with_its_date() -> None:
    index = text_of("docs/decisions/README.md")
    rows = re.findall(r"^\| (\d{4}-\d\d-\d\d) \| \[(.+)\]\((.+\.md)\) \|$", index, re.MULTILINE)
    pages = [path for path in (ROOT / "docs" / "decisions").glob("*.md") if path.name != "README.md"]
    titles = {path.name: path.read_text("utf-8").partition("\n")[0].removeprefix("# ") for path in pages}
    assert sorted((name, title) for _, title, name in rows) == sorted(titles.items()), "scripts/reference/decisions.py"
    for section in index.split("\n## ")[1:]:
        dates = re.findall(r"^\| (\d{4}-\d\d-\d\d) ", section, re.MULTILINE)
        assert dates == sorted(dates), section


# --- the experiment file ------------------------------------------------------------------------------------


def test_every_choice_is_documented() -> None:
    reference = text_of("docs/reference/experiment.md")
    assert [name for name in (*DATASETS, *MODELS) if f"`{name}`" not in reference] == []


def test_every_method_has_a_row_and_a_section() -> None:
    text = text_of("docs/methods.md")
    assert sorted(re.findall(r"^\| \[`(\w+)`\]", text, re.MULTILINE)) == sorted(NAMES)
    for name in NAMES:
        section = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        assert f"(reference/methods/{name}.md)" in section, name


@pytest.mark.parametrize("block", blocks(text_of("docs/experiment.md"), "yaml"))
def test_the_documents_experiments_are_valid(block: str) -> None:
    parse_experiment(block)


def test_the_addresses_of_draws_are_those_of_the_code() -> None:
    code = "".join(path.read_text("utf-8") for room in ("fedstrata", "device") for path in (ROOT / room).rglob("*.py"))
    purposes = re.findall(r"0x[0-9A-F]+", text_of("docs/seeds.md"))
    assert len(purposes) >= 8
    assert [purpose for purpose in purposes if purpose not in code.replace("_", "")] == []


# --- record, metrics, errors --------------------------------------------------------------------------------


def test_every_label_of_a_metric_is_documented() -> None:
    used = {label for metric in metrics.exposed() for label in metric.samples[0].labels} - {"le"}
    assert used == set(metrics.LABELS)


def row_of(name: str, table: str) -> set[str]:
    """The values that a label's row names, of those in backticks."""
    (row,) = re.findall(rf"^\| `{name}` \| (.*) \|$", table, re.MULTILINE)
    return set(re.findall(r"`(\w+)`", row))


def test_the_runbook_has_a_section_for_every_alert() -> None:
    alerts = re.findall(r"- alert: (\w+)", text_of("helm/fedstrata/templates/monitoring.yaml"))
    assert len(alerts) == 8
    assert re.findall(r"^## (\w+)$", text_of("docs/runbook.md"), re.MULTILINE) == alerts


def test_every_state_of_a_device_and_every_kind_of_bytes_is_documented(tmp_path: Path) -> None:
    labels = text_of("docs/reference/metrics.md").partition("| label | values |")[2]
    gps = GpsParts(tmp_path)
    gps.enrol(0)
    gps.roster.refuse(gps.roster.devices[0], "no reason")
    assert row_of("state", labels) == set(gps.roster.states())
    kinds = {kind for _, kind in CALLS.values()} - {ANSWER, ATTEND}
    questions = {question.name for question in gps.method.questions()}
    assert kinds | questions <= row_of("kind", labels)


def test_every_reason_of_a_refused_call_is_documented() -> None:
    sources = [path for room in ("trust", "rpc") for path in (ROOT / "fedstrata" / room).glob("*.py")]
    called = "".join(path.read_text("utf-8") for path in sources)
    reasons = set(re.findall(r'(?:refused|refusal)\("(\w+)"', called))
    assert {"role", "stalled", "share"} <= reasons
    labels = text_of("docs/reference/metrics.md").partition("| label | values |")[2]
    assert reasons <= row_of("reason", labels)


def test_every_call_is_in_the_protocols_document() -> None:
    services = [
        service for file in (gps_service_pb2, lps_service_pb2) for service in file.DESCRIPTOR.services_by_name.values()
    ]
    calls = {method.name for service in services for method in service.methods}
    assert calls <= set(re.findall(r"\w+", text_of("docs/protocol.md")))


# --- how-to guides ------------------------------------------------------------------------------------------


def test_the_values_of_the_quickstart_are_allowed_by_the_charts_schema() -> None:
    schema = json.loads(text_of("helm/fedstrata/values.schema.json"))
    (values,) = blocks(text_of("docs/cluster-quickstart.md"), "yaml")
    jsonschema.Draft202012Validator(schema).validate(yaml.safe_load(values))


def test_every_message_of_the_troubleshooting_page_is_one_of_the_code() -> None:
    folders = ("emulator", "fedstrata", "gps", "lps", "device", "fleet")
    code = "".join(path.read_text("utf-8") for folder in folders for path in ROOT.glob(f"{folder}/**/*.py"))
    messages = re.findall(r"^\| `(.+?)` \|", text_of("docs/troubleshooting.md"), re.MULTILINE)
    assert len(messages) > 15
    assert [message for message in messages if message not in code] == []


def test_install_lists_every_extra_that_a_user_may_want() -> None:
    extras = tomllib.loads(text_of("pyproject.toml"))["project"]["optional-dependencies"]
    rows = re.findall(r"^\| (`.+?`) \|", text_of("docs/install.md"), re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == extras.keys() - {"dev"}


@pytest.mark.runs
def test_the_page_about_own_models_gives_a_run_that_the_page_after_it_uses(tmp_path: Path) -> None:
    model, use = text_of("docs/own-model.md"), text_of("docs/use-the-model.md")
    (tmp_path / "my_model.py").write_text(blocks(model, "python")[0], encoding="utf-8")
    (tmp_path / "mine.yaml").write_text(blocks(model, "yaml")[0], encoding="utf-8")
    (tmp_path / "use.py").write_text("".join(blocks(use, "python")), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    said = ""
    exports = [line.split()[1:] for line in use.splitlines() if line.startswith("fedstrata export ")]
    assert [words[3] for words in exports] == ["safetensors", "onnx"]
    commands = [["run", "mine.yaml", "--out", "mine", "--quiet"], *exports]
    for command in (*(["-m", "emulator", *words] for words in commands), ["use.py"]):
        call = [sys.executable, *command]
        done = subprocess.run(
            call, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        said = done.stdout
    assert "'device-000'" in said
    first, second = re.findall(r"\[(\d)\]", said)[:2]  # of the record and of the module alone
    assert first == second


# --- generated and configured files -------------------------------------------------------------------------


def test_the_citation_names_the_version_and_the_licence_of_the_project() -> None:
    citation = yaml.safe_load(text_of("CITATION.cff"))
    project = tomllib.loads(text_of("pyproject.toml"))["project"]
    assert (citation["version"], citation["license"]) == (project["version"], project["license"])


def test_the_generated_stubs_are_up_to_date(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={ROOT / 'protos'}"]
    for kinds, files in ((("python", "pyi"), "*.proto"), (("grpc_python",), "*_service.proto")):
        words = [f"--{kind}_out={tmp_path}" for kind in kinds] + [str(path) for path in (ROOT / "protos").rglob(files)]
        done = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    for path in sorted((tmp_path / "fedstrata" / "v1").iterdir()):
        assert path.read_text() == (ROOT / "fedstrata" / "v1" / path.name).read_text(), f"make protos: {path.name}"


def test_hooks_before_a_commit_run_what_make_check_runs() -> None:
    hooks = yaml.safe_load(text_of(".pre-commit-config.yaml"))["repos"]
    assert [repository["repo"] for repository in hooks] == ["local"]
    tools = {Path(hook["entry"].split()[0]).name for hook in hooks[0]["hooks"]}
    recipe = text_of("Makefile").partition("\ncheck:")[2].partition("\n\n")[0]
    assert tools == set(re.findall(r"\$\(BIN\)/([\w-]+)", recipe))


def test_the_ci_script_is_executable_bash() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0


# --- the example of own code --------------------------------------------------------------------------------


@pytest.mark.runs
def test_the_example_of_own_code_runs_and_finds_the_tasks(tmp_path: Path) -> None:
    text = text_of("docs/own-code.md")
    (tmp_path / "own.py").write_text(blocks(text, "python")[0], encoding="utf-8")
    (tmp_path / "own.yaml").write_text(blocks(text, "yaml")[0], encoding="utf-8")
    command = [sys.executable, "-m", "emulator", "run", "own.yaml", "--out", "out", "--quiet"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = load_record(tmp_path / "out").summary
    assert found.adjusted_rand_index == 1.0
    assert found.clusters_rule == "2 by relevance above 0.5"
    assert found.mean is not None
    assert found.mean > 0.95
