"""Find the folders that are installed together with Fedstrata's modules: example experiments, chart and protocol."""

from pathlib import Path

_PACKAGED = Path(__file__).resolve().parents[1] / "share"  # in an installed wheel, where setup.py puts the files
SHARE = _PACKAGED if _PACKAGED.is_dir() else Path(__file__).resolve().parents[2]  # in a checkout of the repository
EXPERIMENTS = SHARE / "experiments"
CHART = SHARE / "helm" / "fedstrata"
