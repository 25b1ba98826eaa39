"""Packages with published findings fail the check, unless they are allowed; a service that is not there does not."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "audit.py"
FINDING = {
    "id": "GHSA-1234",
    "aliases": ["CVE-2026-1"],
    "summary": "templates run what they are given",
    "published": "2026-01-01T00:00:00Z",
    "affected": [
        {
            "package": {"name": "jinja2", "ecosystem": "PyPI"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "3.1.6"}]}],
        }
    ],
}


class Service(BaseHTTPRequestHandler):
    """Answers as osv.dev does: one package has a finding."""

    def do_HEAD(self) -> None:
        self.send_response(405)
        self.end_headers()

    def do_POST(self) -> None:
        asked: Any = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        has_finding = asked == {"package": {"name": "jinja2", "ecosystem": "PyPI"}, "version": "3.0.0"}
        self.say(json.dumps({"vulns": [FINDING]} if has_finding else {}))

    def say(self, text: str) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Nothing."""


class Portal(Service):
    """Answers all that is asked with a page."""

    def do_POST(self) -> None:
        self.say("<html>Who are you?</html>")


@contextmanager
def serving(service: type[Service] = Service) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), service) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1/query"
        server.shutdown()


def audit(folder: Path, url: str, pinned: str, allowed: str = "") -> "subprocess.CompletedProcess[str]":
    (folder / "constraints.txt").write_text(pinned)
    (folder / "allowed.txt").write_text(allowed)
    words = ["--constraints", str(folder / "constraints.txt"), "--allowed", str(folder / "allowed.txt")]
    command = [sys.executable, str(SCRIPT), *words, "--osv-url", url]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


BOTH = "numpy==2.1.0\njinja2==3.0.0\n"
IN_JINJA = "jinja2 3.0.0: CVE-2026-1, GHSA-1234, fixed in 3.1.6: templates run what they are given"


def test_a_finding_fails_the_check(tmp_path: Path) -> None:
    with serving() as url:
        said = audit(tmp_path, url, BOTH, "numpy CVE-2026-1 which is of another package\n")
    assert (said.returncode, said.stderr) == (1, "")
    assert said.stdout.splitlines() == [
        f"audit: {IN_JINJA}; update it, or allow it with a reason",
        "audit: CVE-2026-1 is allowed in numpy, but is not found any more; remove its line",
        "audit: 2 packages looked up, 1 findings",
    ]


def test_where_nobody_can_be_asked_one_line_says_so_and_nothing_fails(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1/query"
        said = audit(tmp_path, url, BOTH)
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout == f"audit: packages were not checked for findings: {url} cannot be reached\n"


def test_an_answer_of_somebody_else_is_none(tmp_path: Path) -> None:
    with serving(Portal) as url:
        said = audit(tmp_path, url, BOTH)
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.startswith(f"audit: packages were not checked for findings: {url} fails: ")
    assert said.stdout.count("\n") == 1


def loaded() -> Any:
    spec = spec_from_file_location("audit", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["audit"] = module_from_spec(spec)  # where its dataclasses look for their names
    spec.loader.exec_module(module)
    return module


# As pip-audit 2.10 writes it.
SAID = json.dumps({
    "dependencies": [
        {"name": "numpy", "version": "2.1.0", "vulns": []},
        {"name": "jinja2", "version": "3.0.0", "vulns": [
            {"id": "GHSA-1234", "fix_versions": ["3.1.6"], "aliases": ["CVE-2026-1"],
             "description": "templates run what they are given"},
        ]},
        {"name": "of-our-own", "skip_reason": "not found"},
    ],
    "fixes": [],
})  # fmt: skip


@pytest.mark.parametrize("name", ["CVE-2026-1", "GHSA-1234"])
def test_a_finding_that_is_allowed_with_a_reason_is_told_and_does_not_fail(name: str) -> None:
    script = loaded()
    findings, count = script.parsed(SAID)
    allowed = script.allowed_in(f"# why not\n\njinja2 {name} only our own templates are rendered\n")
    assert count == 2
    assert script.judged(findings, allowed) == ([f"{IN_JINJA}; allowed: only our own templates are rendered"], True)
    assert script.judged(findings, {})[1] is False
    assert script.judged([], {}) == ([], True)


def test_what_is_allowed_has_a_reason() -> None:
    with pytest.raises(ValueError, match="line 1: 'jinja2 CVE-2026-1'; expected a package, a finding and a reason"):
        loaded().allowed_in("jinja2 CVE-2026-1\n")


def test_an_audit_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="has looked up no package"):
        loaded().parsed('{"dependencies": [{"name": "numpy", "skip_reason": "not found"}], "fixes": []}')


def test_what_the_project_allows_can_be_read() -> None:
    loaded().allowed_in(SCRIPT.with_name("audit_allowed.txt").read_text())
