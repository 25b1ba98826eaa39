"""What TLS costs: the same work with certificates and without, in turn, seconds and CPU.

    python -m benchmarks.tls --pairs 5

`hundred` is benchmarks/hundred.yaml by `fedstrata run`; `echo` is twenty processes that return what they get
(`benchmarks/echo.py`). A ratio is that of one pair; the line has the median and the range over pairs.
"""

import argparse
import os
import resource
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.echo import TLS, measure
from benchmarks.suite.observed import observe
from fedstrata.trust.authority import Authority
from fedstrata.trust.names import Name

HERE = Path(__file__).parent
Measured = dict[str, float]  # by what was measured, in seconds
Work = Callable[[Path, bool], Measured]


def trained(name: str) -> Work:
    """A global round of an experiment: wall time, and the CPU of all processes."""

    def work(folder: Path, has_tls: bool) -> Measured:
        seen = observe(HERE / f"{name}.yaml", folder, timeout_s=600, has_tls=has_tls)
        return {f"{name}, s a round": seen.round_s, f"{name}, CPU s a round": sum(seen.cpu_s.values())}

    return work


def echo(mb: float, rounds: int, devices: int = 20) -> Work:
    """A round of echo: wall time, and the CPU of the server and all devices, their start included."""

    def work(folder: Path, has_tls: bool) -> Measured:
        os.environ.pop(TLS, None)
        if has_tls:
            authority = Authority.new("echo")
            authority.issue([Name("lps", "lps-0")], folder / "server")
            authority.issue([Name("device", "device-000", f"device-{devices - 1:03d}")], folder / "device")
            os.environ[TLS] = str(folder)
        before = _cpu_of_children()
        seconds, _ = measure("echo", devices, int(mb * 1e6) // 40 * 40, rounds)
        return {f"echo {mb:g} MB, s a round": seconds, f"echo {mb:g} MB, CPU s in all": _cpu_of_children() - before}

    return work


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Print a line a measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--only", choices=["hundred", "echo"])
    parser.add_argument("--quick", action="store_true", help="ten devices, and small echoes: whether it works")
    options = parser.parse_args()
    works: dict[str, list[Work]] = {"hundred": [trained("hundred")], "echo": [echo(0.1, 100), echo(10, 10)]}
    if options.quick:
        works = {"hundred": [trained("ten")], "echo": [echo(0.1, 5, devices=3)]}
    for work in [one for name, group in works.items() for one in group if options.only in (None, name)]:
        load, pairs = os.getloadavg()[0], []
        for _ in range(options.pairs):
            with tempfile.TemporaryDirectory() as with_tls, tempfile.TemporaryDirectory() as without:
                pairs.append((work(Path(with_tls), True), work(Path(without), False)))
        for name in pairs[0][0]:
            ratios = [one[name] / other[name] for one, other in pairs]
            sides = [statistics.median(pair[side][name] for pair in pairs) for side in (0, 1)]
            print(
                f"{name}: {sides[0]:.4f} with TLS, {sides[1]:.4f} without, ratio {statistics.median(ratios):.2f} "
                f"({min(ratios):.2f} to {max(ratios):.2f}), load {load:.1f} to {os.getloadavg()[0]:.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
