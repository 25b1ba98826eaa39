"""Own code by reference: what is loaded, and what a user is told when it is not."""

import os
import re
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedstrata.errors import PayloadError, PluginError
from fedstrata.methods import Facts, Method, places_late
from fedstrata.methods.profiles.features import FeatureOptions, feature_map
from fedstrata.methods.registry import method_of, method_settings
from fedstrata.plugins import PART_OF_RUN, check_may_start, load_plugin, look_also_in, or_failed


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current directory, whose modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_function_of_a_file_in_the_current_directory_is_found(workdir: Path) -> None:
    (workdir / "own_code.py").write_text("def twice(x):\n    return 2 * x\n")
    assert load_plugin("own_code:twice", "model")(21) == 42


@pytest.mark.usefixtures("workdir")
def test_a_function_of_a_file_in_another_folder_is_found_if_the_folder_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "far_code.py").write_text("def thrice(x):\n    return 3 * x\n")
    with pytest.raises(PluginError, match="there is no module far_code"):
        load_plugin("far_code:thrice", "model")
    look_also_in([folder])
    assert load_plugin("far_code:thrice", "model")(7) == 21


def test_own_code_that_changes_the_current_folder_leaves_it_as_it_was(workdir: Path) -> None:
    (workdir / "moves.py").write_text(
        "import os\nos.chdir('/')\ndef load():\n    os.chdir('/')\n    return os.getcwd()\n"
    )
    load = load_plugin("moves:load", "data set")
    assert Path.cwd() == workdir
    with or_failed("data set failed with"):
        with or_failed("reading failed with"):
            assert load() == "/"
        assert Path.cwd() == Path("/")  # own code goes on
    assert Path.cwd() == workdir
    with pytest.raises(PluginError, match="failed with ZeroDivisionError"), or_failed("data set failed with"):
        os.chdir("/")
        raise ZeroDivisionError
    assert Path.cwd() == workdir


def test_of_two_threads_in_own_code_the_last_returns_to_the_folder(workdir: Path) -> None:
    moved, left = threading.Event(), threading.Event()

    def moves() -> None:
        with or_failed("data set failed with"):
            os.chdir("/")
            moved.set()
            left.wait(20)

    thread = threading.Thread(target=moves)
    thread.start()
    assert moved.wait(20)
    with or_failed("model failed with"):
        pass
    left.set()
    thread.join()
    assert Path.cwd() == workdir


@pytest.mark.parametrize("call", ["run({}, out='x')", "sweep({}, out='x')"])
def test_a_module_that_starts_a_run_when_it_is_imported_is_refused(workdir: Path, call: str) -> None:
    (workdir / "starts.py").write_text(f"import fedstrata\ndef load(): ...\nfedstrata.{call}\n")
    (workdir / "outer.py").write_text("from starts import load\n")
    for name in ("starts", "outer"):
        said = f"importing {name} failed: fedstrata.[a-z]+ is called while Fedstrata imports {name}; call it below `if"
        with pytest.raises(PluginError, match=said):
            load_plugin(f"{name}:load", "data set")
    assert not (workdir / "x").exists()


def test_own_code_in_a_process_of_a_run_starts_no_other_run(monkeypatch: pytest.MonkeyPatch) -> None:
    check_may_start("fedstrata run")
    monkeypatch.setenv(PART_OF_RUN, "gps")
    with pytest.raises(PluginError, match="fedstrata run is called by own code in the gps of a run; call it below"):
        check_may_start("fedstrata run")


def test_threads_forget_the_known_folders_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    both, met = threading.Barrier(2), []

    def forget() -> None:
        with suppress(threading.BrokenBarrierError):  # one thread alone waits for nobody for long
            both.wait(timeout=0.1)
            met.append(threading.current_thread())

    monkeypatch.setattr("importlib.invalidate_caches", forget)
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(load_plugin, ["os.path:join"] * 2, ["model"] * 2))
    assert not met


def test_a_function_of_an_installed_package_is_found() -> None:
    assert load_plugin("os.path:join", "model")("a", "b") == str(Path("a") / "b")


@pytest.mark.parametrize(
    ("reference", "source", "message"),
    [
        ("absent_module:f", "", "there is no module absent_module in "),
        ("own_code.py:f", "", "among the installed packages; leave out .py"),
        ("own_code:missing", "", "module own_code ("),
        ("own_code:missing", "", "own_code.py): it does not exist"),
        ("own_code:number", "number = 3", "it is a int, not a function"),
        ("own_code:f", "import absent_dependency", "No module named 'absent_dependency'"),
        ("own_code:f", "def f(:", "importing own_code failed with SyntaxError"),
        ("own_code:f", "import no_such", "No module named 'no_such'; install the missing package for this service"),
        ("own_code:f", "raise ValueError('two\\nlines')", "importing own_code failed with ValueError: two lines"),
        ("own_code:f", "import sys; sys.exit(3)", "importing own_code failed with SystemExit: 3"),
        ("own_code:f", "raise BaseException('panic')", "importing own_code failed with BaseException: panic"),
        ("__main__:Net", "", "cannot import __main__; move Net into a file, such as own.py, and name it own:Net"),
        ("own_code", "", "name own code as module:function"),
        ("own_code:", "", "name own code as module:function"),
    ],
)
def test_what_cannot_be_loaded_is_told_in_one_line(workdir: Path, reference: str, source: str, message: str) -> None:
    (workdir / "own_code.py").write_text(source)
    with pytest.raises(PluginError) as raised:
        load_plugin(reference, "feature map")
    assert message in str(raised.value)
    assert str(raised.value).startswith("feature map ")
    assert "\n" not in str(raised.value)


OWN = """
from fedstrata.errors import PayloadError
from fedstrata.methods import Method
class Mine(Method):
    def sponsors(self, plan):
        return self.options.nu
    async def measure(self, work):
        return self.sponsors(None)
    @property
    def clusters_known(self):
        return 1 / 0
    def check_answer(self, question, arrays, relayed_by):
        raise PayloadError("as it was")
    @property
    def most_offered(self):
        return self.most
    @most_offered.setter
    def most_offered(self, most):
        self.most = most
    def answer(self, question, work, heard):
        async def given():
            raise ValueError("no answer")
        return given()
    def local(self, work):
        return None
    def place(self, late, answers, plan):
        return super().place(late, answers, plan) + self.facts.device_count
"""


@pytest.fixture
def own(workdir: Path) -> Method:
    """A method of the user, of which most functions fail."""
    (workdir / "own_method.py").write_text(OWN)
    return method_of(method_settings({"name": "own_method:Mine"}), Facts(device_count=2))


async def test_a_function_of_an_own_method_that_fails_is_told_with_its_line(own: Any, workdir: Path) -> None:
    file = workdir / "own_method.py"
    fault = rf"AttributeError: .* \({file}, line 6\)$"
    with pytest.raises(PluginError, match=f"^method own_method:Mine failed in sponsors: {fault}"):
        own.sponsors(None)
    with pytest.raises(PluginError, match=f"failed in sponsors: {fault}"):
        await own.measure(None)
    with pytest.raises(PluginError, match="failed in answer: ValueError: no answer"):
        await own.answer(None, None, {})
    with pytest.raises(PluginError, match=r"^method own_method:Mine: local must be async; write async def local$"):
        await own.local(None)
    with pytest.raises(PluginError, match=rf"failed in clusters_known: ZeroDivisionError: .* \({file}, line 11\)$"):
        _ = own.clusters_known


def test_what_an_own_method_says_of_a_device_and_what_it_does_right_stay_as_they_are(own: Any) -> None:
    with pytest.raises(PayloadError, match=r"^as it was$"):
        own.check_answer(None, {}, ())
    assert own.place(None, None, None) == 2
    assert places_late(type(own))
    own.most_offered = 3
    assert own.most_offered == 3
    assert type(own).plan is Method.plan


def test_raw_features_are_the_inputs_as_rows() -> None:
    inputs = np.arange(12, dtype=np.float32).reshape(2, 1, 2, 3)
    features = feature_map(FeatureOptions(name="tried"))(inputs)
    assert features.dtype == np.float64
    assert features.tolist() == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]


def test_no_inputs_have_raw_features_of_the_same_width() -> None:
    assert feature_map(FeatureOptions(name="tried"))(np.empty((0, 1, 2, 3), dtype=np.float32)).shape == (0, 6)


def test_an_own_feature_map_is_called_with_the_inputs(workdir: Path) -> None:
    (workdir / "own_phi.py").write_text("def phi(x):\n    return x.sum(axis=(1, 2))[:, None]\n")
    features = feature_map(FeatureOptions(name="tried", features="own_phi:phi", feature_dim=1))(
        np.ones((3, 2, 2), dtype=np.float32)
    )
    assert features.tolist() == [[4.0], [4.0], [4.0]]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("x.sum(axis=(1, 2))", "method.feature_dim columns, not (3,)"),
        ("x[:2, 0, :1]", "method.feature_dim columns, not (2, 1)"),
        ("x[:, 0]", "method.feature_dim columns, not (3, 2)"),
        ("x[:, 0, :1] / 0", "returned NaN or Inf"),
        ("x @ x[0, :1]", "failed with ValueError"),
        ("'words'", "failed with ValueError"),
    ],
)
def test_an_own_feature_map_that_gives_something_else_is_refused(workdir: Path, body: str, message: str) -> None:
    (workdir / "own_phi.py").write_text(
        f"import numpy\n\ndef phi(x):\n    with numpy.errstate(all='ignore'):\n        return {body}\n"
    )
    own = feature_map(FeatureOptions(name="tried", features="own_phi:phi", feature_dim=1))
    with pytest.raises(PluginError) as raised:
        own(np.ones((3, 2, 2), dtype=np.float32))
    assert message in str(raised.value)
    if "columns" in message:
        assert "must return an array of shape (3, 1), with one row per example" in str(raised.value)
    if body.startswith("x @"):
        assert str(raised.value).endswith(f"({workdir / 'own_phi.py'}, line 5)")


def test_a_missing_feature_map_is_told_before_it_is_called() -> None:
    with pytest.raises(PluginError, match="there is no module absent_phi"):
        feature_map(FeatureOptions(name="tried", features="absent_phi:phi", feature_dim=1))


def test_a_file_in_the_current_directory_hides_no_module_of_python(workdir: Path) -> None:
    (workdir / "own_code.py").write_text("def text(x):\n    import json\n    return json.dumps(x)\n")
    (workdir / "decimal.py").write_text("raise SystemExit('executed')\n")
    assert load_plugin("own_code:text", "model")([1]) == "[1]"
    assert sys.path[-1] == str(workdir)


@pytest.mark.parametrize(
    ("hidden", "source", "owner"),
    [
        ("colorsys.py", "import colorsys", "Python; rename colorsys.py"),
        ("device.py", "from device import f", "Fedstrata; rename device.py"),
        ("yaml.py", "def f():\n    import yaml.nodes", "/"),
        ("gps/__init__.py", "import gps", "Fedstrata; rename gps"),
    ],
)
def test_an_own_file_that_another_module_hides_is_named(workdir: Path, hidden: str, source: str, owner: str) -> None:
    (workdir / hidden).parent.mkdir(exist_ok=True)
    (workdir / hidden).write_text("f = int\n")
    (workdir / "own_code.py").write_text(source)
    own = hidden.removesuffix("/__init__.py")
    said = f"{own}, which own_code.py imports, is hidden by the module {own.removesuffix('.py')} of {owner}"
    with pytest.raises(PluginError, match=re.escape(said)):
        load_plugin("own_code:f", "model")


def test_own_code_cannot_have_the_name_of_a_module_of_python_or_fedstrata(workdir: Path) -> None:
    for name, owner in {"wave": "Python", "lps": "Fedstrata"}.items():
        (workdir / f"{name}.py").write_text("f = int\n")
        with pytest.raises(PluginError, match=f"{name}.py is hidden by the module {name} of {owner}; rename {name}.py"):
            load_plugin(f"{name}:f", "model")
