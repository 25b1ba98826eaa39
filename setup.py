"""What pyproject.toml cannot say: a wheel carries the chart, the example experiments and the protocol.

They stay in their top-level folders and are copied beside the emulator's modules as the wheel is built, where
`emulator.shipped.share` finds them. docs/decisions/package-data.md says what else was considered.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SHARED = ("experiments", "helm/fedstrata", "protos")
LEFT_OUT = shutil.ignore_patterns("ci", "__pycache__")  # ci/: values for tests of the chart


class BuildWithShared(build_py):
    """Copy the shared folders to `emulator/share/`. An editable installation uses the original folders."""

    def run(self) -> None:
        super().run()
        target = Path(self.build_lib, "emulator", "share")
        if self.editable_mode or not target.parent.is_dir():  # no emulator: an image's wheel
            return
        shutil.rmtree(target, ignore_errors=True)
        for folder in SHARED:
            shutil.copytree(folder, target / folder, ignore=LEFT_OUT)


setup(cmdclass={"build_py": BuildWithShared})
