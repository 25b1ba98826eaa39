"""Make all files of a release, from the last commit and nothing else: `make release`.

Source archive, wheel, packed chart and site have the same bytes each time they are made from a commit. Images are
built if docker, podman or buildah works. SHA256SUMS lists them all, with a bill of materials and the provenance. If
FEDSTRATA_SIGNING_KEY names a key, SHA256SUMS.sig is its signature.
"""

import argparse
import base64
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import yaml
from archives import pack, unpack, zipped
from chart_readme import write_readme
from oci import write_chart
from provenance import digest_of, sign, signing_key, statement, written
from sbom import locked_bill

ROOT = Path(__file__).resolve().parents[1]
HOOK = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"
NOT_PACKED = shutil.ignore_patterns("ci", ".*", "*.tgz")  # as the chart's .helmignore says


def main() -> None:
    """Run the command. An error is one line, with exit code 1."""
    parser = argparse.ArgumentParser(prog="release", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "dist",
        help="the folder for releases; a subfolder for this version is replaced",
    )
    parser.add_argument("--home", metavar="URL", help="the project's address, for the chart's metadata")
    parser.add_argument(
        "--arch", action="append", default=[], help="an architecture for images, repeatable; default: this machine's"
    )
    parser.add_argument("--without-images", action="store_true", help="leave the images out")
    parser.add_argument("--without-site", action="store_true", help="leave the documentation site out")
    asked = parser.parse_args()
    try:
        images = None if asked.without_images else [["--arch", each] for each in asked.arch] or [[]]
        print(release(asked.out.resolve(), home=asked.home, images=images, has_site=not asked.without_site))
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        sys.exit(f"release: {' '.join(str(said).split())[-600:]}")


def release(out: Path, *, home: str | None, images: list[list[str]] | None, has_site: bool) -> Path:
    """Make all files of a release, and return their folder. `images` has the options of each call of scripts/images."""
    os.umask(0o022)
    named = os.environ.get("FEDSTRATA_SIGNING_KEY")
    key = signing_key(Path(named)) if named else None
    commit = _output("git", "rev-parse", "HEAD")  # read once, because a later commit does not belong to this release
    time = int(_output("git", "log", "-1", "--format=%ct", commit))
    if _output("git", "status", "--porcelain"):
        _say("the folder has uncommitted changes, which are not in the release")
    with tempfile.TemporaryDirectory() as scratch:
        tree = _exported(Path(scratch), commit)
        target = out / f"fedstrata-{_version(tree)}"
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        _python_archives(tree, target, time)
        _chart(tree, target, time, home)
        if has_site:
            _site(tree, target, time)
        for options in images or ():
            _images(tree, target, time, commit, options)
        _origin(tree, target, commit, home, has_images=images is not None)
    _checksums(target)
    if key is not None:
        sign(target / "SHA256SUMS", key)
    return target


def _exported(scratch: Path, commit: str) -> Path:
    """Write the files of a commit to a new folder, and return the folder."""
    archive = scratch / "tree.tar"
    _output("git", "-c", "tar.umask=0022", "archive", "--prefix=tree/", f"--output={archive}", commit)
    return unpack(archive, scratch / "exported")


def _version(tree: Path) -> str:
    """Return the version of pyproject.toml, which Chart.yaml and CITATION.cff repeat."""
    version = str(tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])
    chart = yaml.safe_load((tree / "helm" / "fedstrata" / "Chart.yaml").read_text(encoding="utf-8"))
    if {chart["version"], chart["appVersion"]} != {version}:
        raise OSError(
            f"pyproject.toml has version {version}, but Chart.yaml {chart['version']} with appVersion "
            f"{chart['appVersion']}; make them agree"
        )
    cited = yaml.safe_load((tree / "CITATION.cff").read_text(encoding="utf-8"))["version"]
    if cited != version:
        raise OSError(f"pyproject.toml has version {version}, but CITATION.cff {cited}; make them agree")
    return version


def _python_archives(tree: Path, target: Path, time: int) -> None:
    """Make the source archive, and from it the wheel."""
    made = tree.parent / "made"
    made.mkdir()
    _hook("build_sdist", tree, made, time)
    (archive,) = made.iterdir()
    source = unpack(archive, tree.parent / "source")
    pack(source, target / archive.name, root=source.name, time=time)
    _hook("build_wheel", source, target, time)


def _hook(name: str, tree: Path, out: Path, time: int) -> None:
    """Call one of setuptools' PEP 517 hooks in a source tree."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(time), "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-c", HOOK, name, str(out)]
    subprocess.run(command, cwd=tree, env=environment, check=True, capture_output=True, text=True)


def _chart(tree: Path, target: Path, time: int, home: str | None) -> None:
    """Pack the chart, with its README, icon and home."""
    chart = tree.parent / "chart"
    shutil.copytree(tree / "helm" / "fedstrata", chart, ignore=NOT_PACKED)
    write_readme(chart)
    icon = base64.b64encode((tree / "docs" / "icon.svg").read_bytes()).decode()
    with (chart / "Chart.yaml").open("a", encoding="utf-8") as file:
        file.write(f"icon: data:image/svg+xml;base64,{icon}\n")
        if home:
            file.write(f"home: {home}\nsources: [{home}]\n")
    packed = target / f"fedstrata-{_version(tree)}.tgz"
    pack(chart, packed, root="fedstrata", time=time)
    write_chart(packed, target / f"fedstrata-{_version(tree)}-chart.oci.tar", time=time)


def _site(tree: Path, target: Path, time: int) -> None:
    """Make the documents as a site in a zip archive, which can be read without a network."""
    site = tree.parent / "site"
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "--fail-on-warning",
        "--nitpicky",
        "--quiet",
        "-d",
        str(tree.parent / "cache"),
    ]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(time), "PYTHONHASHSEED": "0"}
    done = subprocess.run([*command, "docs", str(site)], cwd=tree, env=environment, check=False, capture_output=True)
    if done.returncode:
        raise OSError(
            f"the site cannot be built ({done.stderr.decode()[-300:]}); install the extra docs, or give --without-site"
        )
    zipped(site, target / f"fedstrata-{_version(tree)}-docs.zip", root=f"fedstrata-{_version(tree)}-docs", time=time)


def _images(tree: Path, target: Path, time: int, commit: str, options: list[str]) -> None:
    """Make an archive for each image, if a program that builds images is installed."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(time), "FEDSTRATA_REVISION": commit[:12]}
    done = subprocess.run([tree / "scripts" / "images", "--save", target, *options], env=environment, check=False)
    if done.returncode == 3:
        _say("no images were built: the output of scripts/images says why")
    elif done.returncode:
        raise OSError(f"scripts/images failed with exit code {done.returncode}")


def _origin(tree: Path, target: Path, commit: str, home: str | None, *, has_images: bool) -> None:
    """Write the bill of materials and the provenance."""
    version = _version(tree)
    hashes = (tree / "hashes.txt").read_text(encoding="utf-8")
    written(locked_bill(hashes, version), target / f"fedstrata-{version}.cdx.json")
    provenance = statement(sorted(target.iterdir()), commit=commit, home=home, has_images=has_images)
    written(provenance, target / f"fedstrata-{version}.intoto.json")


def _checksums(target: Path) -> None:
    """Write SHA256SUMS in the form that `sha256sum --check` reads."""
    files = sorted(path for path in target.iterdir() if path.is_file())
    lines = [f"{digest_of(path)}  {path.name}\n" for path in files]
    (target / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")


def _output(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def _say(line: str) -> None:
    print(f"release: {line}", file=sys.stderr)


if __name__ == "__main__":
    main()
