"""LPSs that are revoked in a run of `fedstrata run`: they are replaced, and no bit changes."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from emulator.commands.main import execute
from emulator.runs.progress import restart_line
from fedstrata.process.child_processes import Restart
from tests.support.programs import Program
from tests.support.records import summary_of
from tests.support.slowed import ROUNDS, SLOWED, WHO, has_begun, wait_for
from tests.support.tiers import SMALL, run_in_process, small


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return summary_of(run_in_process(small(*ROUNDS), tmp_path_factory.mktemp("plain") / "run").folder)


def revoking(folder: Path, *words: Sequence[str]) -> Iterator[dict[str, Any]]:
    """What `fedstrata run` says once `certs revoke` was given these words, its training under way."""
    (folder / "small.yaml").write_text(SMALL)
    run, changes = folder / "run", [word for change in SLOWED for word in ("--set", change)]
    given = ("run", str(folder / "small.yaml"), "--out", str(run), "--json", "--device-processes", "2", *changes)
    with Program("emulator", *given, log=folder / "log") as program:
        lines = program.lines()
        wait_for(lines, lambda: all(has_begun(run, who) for who in WHO))
        for each in words:
            assert execute(["certs", "revoke", *each, "--folder", str(run / "state" / "tls")]) == 0
        yield from lines
        assert program.end() == 0, program.log_path.read_text()


def restarts(said: Iterator[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(line["process"], line["cause"]) for line in said if line.get("event") == "restart"]


@pytest.mark.runs
def test_another_serves_for_one_that_is_revoked(tmp_path: Path, plain: Any) -> None:
    assert restarts(revoking(tmp_path, ("lps", "lps-0"))) == []
    summary = summary_of(tmp_path / "run")
    assert [(told["cluster"], told["by"]) for told in summary["adoptions"]] == [("lps-0", "lps-1")]
    assert summary["model_sha256"] == plain["model_sha256"]


@pytest.mark.runs
def test_where_none_is_left_one_more_is_started(tmp_path: Path, plain: Any) -> None:
    said = restarts(revoking(tmp_path, ("lps", "lps-0"), ("lps", "lps-1")))
    assert [(process, cause in {"lps-0 is revoked", "lps-1 is revoked"}) for process, cause in said] == [
        ("lps-2", True)
    ]
    summary = summary_of(tmp_path / "run")
    assert {told["cluster"]: told["by"] for told in summary["adoptions"]} == {"lps-0": "lps-2", "lps-1": "lps-2"}
    assert summary["model_sha256"] == plain["model_sha256"]


def test_who_is_started_in_place_of_another_is_not_said_to_have_died() -> None:
    said = restart_line(Restart(process="lps-2", cause="lps-0 is revoked", count=1, instead_of="lps-0"))
    assert said == "lps-0 is revoked; lps-2 is started instead"
