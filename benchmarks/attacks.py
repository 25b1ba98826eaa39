"""Attacks on a run of ten devices, by who has a certificate and who has none, and what the others felt of each.

    python -m benchmarks.attacks
    python -m benchmarks.attacks --only 22,h3,c15

Real processes on 127.0.0.1; each attack lasts so many seconds at most and ends by itself. Told of each are rounds a
second before it, while it lasts and in the second after, by how much the memory of GPS and LPS grew over what they
held before, and how many probes of health were answered. A quiet run is first; then attacks over gRPC and on HTTP
ports, one after the other, on one run over TLS, and those on a run in the clear, of which the last three have one each.
With --only each has a run of its own. Ends with exit code 1 where the models of the run over TLS are not those of the
quiet one.
"""

import argparse
import asyncio
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks.attack_list import ATTACKS, IN_THE_CLEAR
from benchmarks.attacked_run import SERVERS, Memory, Probes, Run, Window
from benchmarks.attackers import Attack, Attacker, Target
from benchmarks.http_attackers import HTTP_ATTACKS

LEAST_S = 1.0  # over which is counted what others felt of an attack that is over at once
BEFORE_S, AFTER_S = 1.0, 1.0
FIRST_ROUND = 5
SHORT, LONG = 90, 3000  # global rounds: of a run for one attack, and for all
Named = tuple[str, str, Attack]
Numbered = tuple[str, Named]
Models = dict[str, str] | None
NOTHING: Named = ("nobody", "nothing, to compare with", lambda attacker: asyncio.sleep(60))
HEAD = """| | who | what is tried | what is heard | rounds a second | GPS MB | LPS MB | probes |
|---:|---|---|---|---|---:|---:|---:|"""


@dataclass(frozen=True)
class Felt:
    """What was felt of one attack."""

    heard: Counter[str]
    windows: list[Window]  # before, while it lasted, and after
    growth_mb: dict[str, float]
    probes: Probes

    def row(self, number: str, who: str, what: str, rates: Sequence[float]) -> str:
        told = " → ".join(f"{rate:.0f}" for rate in rates)
        mb = " | ".join(f"{self.growth_mb[tier]:.0f}" for tier in SERVERS)
        probes = f"{self.probes.answered} of {self.probes.asked}"
        return f"| {number} | {who} | {what} | {_most(self.heard)} | {told} | {mb} | {probes} |"


async def felt_of(run: Run, named: Named, seconds: float) -> Felt:
    """Make one attack on a run that goes on."""
    who, what, attack = named
    pids = run.servers()
    attacker = Attacker(Target.of(run.folder / "run", pids), run.folder / "attacker", who)
    probes = Probes(attacker.target.http["lps" if "an LPS" in what else "gps"])
    moments = [time.time()]
    await asyncio.sleep(BEFORE_S)
    memory = Memory(pids)
    moments.append(time.time())
    asking = asyncio.ensure_future(probes.go_on())
    await attacker.make(attack, seconds)
    await asyncio.sleep(max(0.0, moments[-1] + LEAST_S - time.time()))
    moments.append(time.time())
    asking.cancel()
    await asyncio.sleep(AFTER_S)
    moments.append(time.time())
    return Felt(attacker.heard, list(pairwise(moments)), memory.growth_mb(), probes)


async def felt(run: Run, numbered: Sequence[Numbered], seconds: float) -> None:
    """Make attacks one after the other, and print what was felt of each."""
    await run.wait_round(FIRST_ROUND)
    for number, named in numbered:
        run.patience.waits_for(f"attack {number} ({named[1]}) has not come to its end", seconds)
        if not run.watcher.is_alive():
            raise SystemExit(f"the run was over before {named[1]}: {run.reason()}; give it more --rounds")
        one = await felt_of(run, named, seconds)
        print(one.row(number, named[0], named[1], run.rates(one.windows)), flush=True)


def attacked(run: Run, numbered: Sequence[Numbered], seconds: float, quiet: Models) -> bool:
    """Print what was felt of attacks on one run; gives whether its models are those of a quiet one."""
    models = watched(run, lambda: asyncio.run(felt(run, numbered, seconds)))
    ended = f"ends: {run.reason()}" if models is None else "the same models" if models == quiet else "OTHER MODELS"
    print(f"the run: {ended}; {run.told()}", flush=True)
    return models == quiet


def watched(run: Run, meanwhile: Callable[[], None]) -> Models:
    """What a run ends with, to which something is done, each within the patience there is; leaves no process."""
    run.start()
    try:
        with run.patience.over():
            meanwhile()
            return run.models()
    finally:
        run.end()


def all_attacks(folder: Path, options: argparse.Namespace, quiet: Models) -> bool:
    """Print all tables; gives whether the run over TLS has the models of a quiet one."""
    over_tls = [("", NOTHING), ("", NOTHING), *_numbered("", ATTACKS), *_numbered("h", HTTP_ATTACKS)]
    is_same = attacked(Run(folder / "tls", options.rounds), over_tls, options.seconds, quiet)
    clear = _numbered("c", IN_THE_CLEAR)
    attacked(Run(folder / "clear", SHORT * len(clear) // 2, has_tls=False), clear[:-3], options.seconds, quiet)
    for one in clear[-3:]:
        attacked(Run(folder / one[0], SHORT, has_tls=False), [one], options.seconds, quiet)
    return is_same


def some_attacks(folder: Path, options: argparse.Namespace, quiet: Models) -> bool:
    """Print what was felt of some, each on a run of its own; gives whether those over TLS left the models alone."""
    is_same, wanted = True, options.only.split(",")
    lists = ("", ATTACKS, True), ("h", HTTP_ATTACKS, True), ("c", IN_THE_CLEAR, False)
    for letter, attacks, has_tls in lists:
        for numbered in _numbered(letter, attacks):
            if numbered[0] in wanted:
                run = Run(folder / numbered[0], options.rounds, has_tls)
                is_same &= attacked(run, [numbered], options.seconds, quiet) or not has_tls
    return is_same


def _numbered(letter: str, attacks: Sequence[Named]) -> list[Numbered]:
    return [(f"{letter}{number}", named) for number, named in enumerate(attacks, 1)]


def _most(heard: Counter[str]) -> str:
    return ", ".join(f"{what} × {times}" for what, times in heard.most_common(2)) or "nothing"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="these alone, each on a run of its own: 22,h3,c1")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    options.rounds = options.rounds or (SHORT if options.only else LONG)
    with tempfile.TemporaryDirectory() as folder:
        undisturbed = Run(Path(folder) / "quiet", options.rounds)
        quiet = watched(undisturbed, lambda: None)
        if quiet is None:
            raise SystemExit(undisturbed.reason())
        print(f"quiet: {undisturbed.told()}\n{HEAD}", flush=True)
        is_same = (some_attacks if options.only else all_attacks)(Path(folder), options, quiet)
    print(f"\nload {os.getloadavg()[0]:.1f}")
    raise SystemExit(not is_same)


if __name__ == "__main__":
    main()
