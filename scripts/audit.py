"""Look up published findings in the packages of constraints.txt, by pip-audit and osv.dev: `make check`.

Findings are an error, unless scripts/audit_allowed.txt has them with a reason. If the service cannot be asked, as
without a network, one line says so, and this is no error.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OSV = "https://api.osv.dev/v1/query"
REACHED_S = 5.0  # the longest time for each step of the first request
GIVEN_UP_S = 8.0  # the longest time for the first request, because looking up a name has no limit of its own
AUDITED_S = 60.0  # the longest time for two hundred requests, one after the other
OF_SERVICE = (
    "/_service/",
    "vulnerability feed",
)  # texts in pip-audit's error if the service does not answer, or answers unexpectedly
GREETING = "import sys, requests; requests.head(sys.argv[1], timeout=float(sys.argv[2]))"


class NotAuditedError(Exception):
    """The service could not be asked, or did not answer everything."""


@dataclass(frozen=True)
class Finding:
    """Hold one published finding about one package."""

    package: str
    version: str
    names: frozenset[str]  # the finding's names: CVE-…, GHSA-…, PYSEC-…
    fixed_in: tuple[str, ...]
    text: str

    def __str__(self) -> str:
        fix = f"fixed in {', '.join(self.fixed_in)}" if self.fixed_in else "no version has a fix"
        return f"{self.package} {self.version}: {', '.join(sorted(self.names))}, {fix}: {self.text}"


def main() -> None:
    """Run the command. The exit code is 1 if the audit finds something, and 2 if the audit cannot be done."""
    parser = argparse.ArgumentParser(prog="audit", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--constraints", type=Path, default=ROOT / "constraints.txt")
    parser.add_argument("--allowed", type=Path, default=ROOT / "scripts" / "audit_allowed.txt")
    parser.add_argument("--osv-url", default=OSV)
    asked = parser.parse_args()
    try:
        check_reached(asked.osv_url)
        findings, count = parsed(audited(asked.constraints, asked.osv_url))
        lines, is_clean = judged(findings, allowed_in(asked.allowed.read_text()))
    except NotAuditedError as error:
        print(f"audit: packages were not checked for findings: {error}")
        return
    except (OSError, ValueError) as error:
        print(f"audit: {' '.join(str(error).split())[-300:]}", file=sys.stderr)
        sys.exit(2)
    print("".join(f"audit: {line}\n" for line in lines), end="")
    print(f"audit: {count} packages looked up, {len(findings)} findings")
    sys.exit(not is_clean)


def check_reached(url: str) -> None:
    """Find out within seconds whether the service can be reached. Raises NotAuditedError if not."""
    words = [sys.executable, "-c", GREETING, url, str(REACHED_S)]
    try:
        said = subprocess.run(words, capture_output=True, text=True, timeout=GIVEN_UP_S, check=False)
    except subprocess.TimeoutExpired:
        raise NotAuditedError(f"{url} cannot be reached within {GIVEN_UP_S:g} s") from None
    if said.returncode:
        raise NotAuditedError(f"{url} cannot be reached")


def audited(constraints: Path, url: str) -> str:
    """Return the findings of pip-audit in pinned packages, as JSON.

    Raises:
        NotAuditedError: the service fails.
        ValueError: pip-audit fails for another reason.
    """
    words = [sys.executable, "-m", "pip_audit", "--requirement", str(constraints), "--no-deps", "--disable-pip"]
    words += ["--vulnerability-service", "osv", "--osv-url", url, "--timeout", str(int(REACHED_S))]
    words += ["--format", "json", "--progress-spinner", "off"]
    try:
        said = subprocess.run(words, capture_output=True, text=True, timeout=AUDITED_S, check=False)
    except subprocess.TimeoutExpired:
        raise NotAuditedError(f"{url} takes longer than {AUDITED_S:g} s") from None
    if not said.stdout.lstrip().startswith("{"):
        last = said.stderr.strip().rpartition("\n")[2]
        if any(sign in said.stderr for sign in OF_SERVICE):
            raise NotAuditedError(f"{url} fails: {last[-200:]}")
        raise ValueError(last or "pip-audit says nothing")
    return said.stdout


def parsed(said: str) -> tuple[list[Finding], int]:
    """Return the findings in pip-audit's output, and the number of packages that it looked up. Raises ValueError for
    output in another form.
    """
    looked_up = [one for one in json.loads(said)["dependencies"] if "skip_reason" not in one]
    if not looked_up:
        raise ValueError("pip-audit has looked up no package")
    return [finding for one in looked_up for finding in _findings(one)], len(looked_up)


def _findings(dependency: Mapping[str, Any]) -> Iterator[Finding]:
    for one in dependency["vulns"]:
        yield Finding(
            package=dependency["name"],
            version=dependency["version"],
            names=frozenset([one["id"], *one["aliases"]]),
            fixed_in=tuple(one["fix_versions"]),
            text=" ".join(one["description"].split())[:120],
        )


def allowed_in(text: str) -> dict[tuple[str, str], str]:
    """Return the reason for which each finding is allowed, by package and name. Raises ValueError for a wrong line."""
    reasons = {}
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            package, name, reason, *_ = *line.split(maxsplit=2), "", "", ""
            if not reason:
                raise ValueError(
                    f"audit_allowed.txt, line {number}: {line!r}; expected a package, a finding and a reason"
                )
            reasons[package, name] = reason
    return reasons


def judged(findings: Sequence[Finding], allowed: Mapping[tuple[str, str], str]) -> tuple[list[str], bool]:
    """Return a line for each finding, and for each allowed finding that no longer exists. Also return whether all
    findings are allowed.
    """
    lines, is_clean, left = [], True, dict(allowed)
    for finding in findings:
        keys = [(finding.package, name) for name in finding.names if (finding.package, name) in allowed]
        is_clean &= bool(keys)
        lines.append(f"{finding}; {f'allowed: {allowed[keys[0]]}' if keys else 'update it, or allow it with a reason'}")
        for key in keys:
            left.pop(key, None)
    lines += [f"{name} is allowed in {package}, but is not found any more; remove its line" for package, name in left]
    return lines, is_clean


if __name__ == "__main__":
    main()
