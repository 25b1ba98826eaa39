"""Print which files outside a feature's own home name the feature: python -m scripts.feature_rooms [--files FEATURE].

The home of a feature is its room, its section of the experiment file, its table of the record, its estimates, its
command and its figure.
A file names a feature if `git grep -iE PATTERN` finds the pattern in code, docstrings or comments. Words of general
use, such as "schedule a pod", are not distinguished.
"""

import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass

PRODUCT = ("fedstrata", "gps", "lps", "device", "fleet", "emulator")


@dataclass(frozen=True, kw_only=True)
class Feature:
    """Define a feature by the pattern of its words, and by the files and folders that are its home."""

    pattern: str
    home: tuple[str, ...]
    most: int  # files outside the home, as the architecture allows


CLOCK = ("fedstrata/clock/", "fedstrata/experiment/links.py", "fedstrata/experiment/traces.py")
FEATURES = {
    "virtual clock": Feature(
        pattern=r"\bvirtual",
        home=(
            *CLOCK, "fedstrata/record/timeline.py", "emulator/estimates/check_times.py", "emulator/estimates/retime.py",
            "emulator/commands/retime.py", "emulator/results/report/virtual_time.py",
        ),
        most=15,
    ),
    "real clock": Feature(
        pattern=r"real[-_ ]clock|RealClock|\"real\"|clock: real", home=(*CLOCK, "fedstrata/record/links.py"), most=12
    ),
    "schedule": Feature(pattern=r"\bschedules?\b", home=(*CLOCK, "fedstrata/experiment/schedule.py"), most=12),
    "questions in rounds": Feature(
        pattern=r"RoundQuestion|RoundAnswer|answered_round|answered_ns|SubmitAnswers|submit_answers|(?-i:\bAsking\b|\bGoOn\b)",
        home=("lps/question.py", "gps/plans/bundles.py", "fedstrata/rounds/parent/stages.py"),
        most=12,
    ),
    "secure aggregation": Feature(
        pattern=r"secure[-_ ]?aggregation|mask_?keys?\b|\bmask(s|ed|ing|er)\b|MaskedUpdates|roster_digest",
        home=(
            "device/masking/", "fedstrata/rounds/parent/mask_keys.py", "fedstrata/trust/mask_proofs.py",
            "fedstrata/experiment/privacy.py",
        ),
        most=12,
    ),
    "certificates": Feature(
        pattern=r"certificate|TlsFiles|revoked",
        home=(
            "fedstrata/trust/", "emulator/certs.py", "emulator/commands/certs.py",
            "emulator/cluster/release_certificates.py", "emulator/cluster/secrets.py",
            "emulator/local/run_certificates.py",
        ),
        most=15,
    ),
    "energy": Feature(
        pattern=r"energy|joules",
        home=(
            "fedstrata/clock/energy.py", "fedstrata/experiment/energy.py", "fedstrata/record/energy.py",
            "emulator/console/energy_text.py",
        ),
        most=6,
    ),
}  # fmt: skip


def files_outside(feature: Feature) -> list[str]:
    """Return the files of the product outside a feature's home that name it."""
    command = ["git", "grep", "-liP", feature.pattern, "--", *(f"{folder}/*.py" for folder in PRODUCT)]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    return [path for path in found if not path.startswith(("fedstrata/v1/", *feature.home))]


def room_of(path: str) -> str:
    """Return the room of a file: `lps` for lps/session.py, `lps/kept` for lps/kept/kept_model.py."""
    return "/".join(re.sub(r"/[^/]+$", "", path).split("/")[:2])


def main() -> None:
    if sys.argv[1:2] == ["--files"]:
        print("\n".join(files_outside(FEATURES[" ".join(sys.argv[2:])])))
        return
    print("| feature | files outside its home | at most | rooms |\n|---|---|---|---|")
    for name, feature in FEATURES.items():
        found = files_outside(feature)
        rooms = ", ".join(f"{room} {count}" for room, count in sorted(Counter(map(room_of, found)).items()))
        print(f"| {name} | {len(found)} | {feature.most} | {rooms} |")


if __name__ == "__main__":
    main()
