"""Find the folders that are installed together with Fedstrata's modules: example experiments, chart and protocol."""

from pathlib import Path

_PACKAGED = Path(__file__).resolve().parents[1] / "share"  # in an installed wheel: setup.py puts them there
SHARE = _PACKAGED if _PACKAGED.is_dir() else Path(__file__).resolve().parents[2]  # else in the checkout
EXPERIMENTS = SHARE / "experiments"
CHART = SHARE / "helm" / "fedstrata"
