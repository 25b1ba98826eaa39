"""The image builds: what each Dockerfile takes, and which builder `scripts/images` picks."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support.charts import ROOT

SERVICES = ("gps", "lps", "device")


def dockerfile(service: str) -> str:
    return (ROOT / service / "Dockerfile").read_text()


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_runs_its_service_as_a_numbered_user(service: str) -> None:
    final = dockerfile(service).rpartition("\nFROM ")[2]
    assert re.search(r"^USER 10001:10001$", final, re.MULTILINE)
    assert re.search(rf'^ENTRYPOINT \["python3", "-m", "{service}"\]$', final, re.MULTILINE)
    assert "PYTHONDONTWRITEBYTECODE=1" in final
    assert "PYTHONPATH=/opt/fedstrata:/opt/packages" in final, "the chart starts it in another folder, with own code"
    assert "RUN" not in re.findall(r"^[A-Z]+", final, re.MULTILINE), "the last stage runs nothing: no emulator for ARM"
    assert ("OMP_NUM_THREADS=1" in final) == (service == "device")


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_is_made_of_the_shared_library_and_its_own_service(service: str) -> None:
    copied = [
        line.split()[1:-1]
        for line in dockerfile(service).splitlines()
        if line.startswith("COPY ") and "--from" not in line
    ]
    sources = {source for sources in copied for source in sources}
    assert sources == {
        "pyproject.toml",
        "constraints.txt",
        "hashes.txt",
        "LICENSE",
        "scripts/image-packages",
        "scripts/sbom.py",
        "fedstrata",
        service,
        *(["hashes-cuda.txt"] if service == "device" else []),
    }
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert sources <= kept, "what .dockerignore leaves out cannot be copied"


def locked(file: str) -> dict[str, list[str]]:
    """The hashes of each package in a lock file."""
    blocks = (ROOT / file).read_text().replace("\\\n", "").splitlines()
    return {block.split()[0].lower(): block.split()[1:] for block in blocks if not block.startswith("#")}


@pytest.mark.parametrize(
    ("file", "some"),
    [
        ("hashes.txt", {"torch", "numpy", "grpcio", "cryptography", "scipy"}),
        ("hashes-cuda.txt", {"nvidia-cublas", "nvidia-cudnn-cu13", "nvidia-nccl-cu13", "triton", "cuda-bindings"}),
    ],
)
def test_every_wheel_of_an_image_has_a_hash_and_the_version_of_the_constraints(file: str, some: set[str]) -> None:
    hashed = locked(file)
    wanted = {line.lower() for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert hashed.keys() <= wanted
    assert all(hashes for hashes in hashed.values())
    assert all(re.fullmatch("--hash=sha256:[0-9a-f]{64}", each) for hashes in hashed.values() for each in hashes)
    assert some <= {name.partition("==")[0] for name in hashed}


def test_cuda_adds_one_wheel_per_architecture_or_one_for_both() -> None:
    hashed = locked("hashes-cuda.txt")
    assert hashed.keys() & locked("hashes.txt").keys() == set()
    for_both = {name.partition("==")[0] for name, hashes in hashed.items() if len(hashes) == 1}
    assert for_both == {"cuda-pathfinder", "cuda-toolkit"}
    assert all(len(set(hashes)) <= 2 for hashes in hashed.values())


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder of commands, in place of the machine's own builders."""
    for tool in ("bash", "sed", "dirname", "uname", "git", "mkdir", "rm"):
        (tmp_path / tool).symlink_to(next(p for p in (Path("/usr/bin") / tool, Path("/bin") / tool) if p.exists()))
    return tmp_path


def install(machine: Path, name: str, *, info: int = 0) -> None:
    """A builder that writes down how it was called; `info` is what its `info` ends with."""
    script = machine / name
    script.write_text(f'#!/bin/bash\n[ "$1" = info ] && exit {info}\necho "{name} $*" >>"{machine}/calls"\n')
    script.chmod(0o755)


def images(machine: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": str(machine), "HOME": os.environ.get("HOME", "/"), **environment}
    return subprocess.run(
        [ROOT / "scripts" / "images", *arguments], env=env, capture_output=True, text=True, check=False, timeout=30
    )


def test_a_docker_client_without_its_daemon_is_passed_over(machine: Path) -> None:
    install(machine, "docker", info=1)
    install(machine, "buildah")
    result = images(
        machine,
        "--arch",
        "arm64",
        "--tag",
        "7",
        "gps",
        FEDSTRATA_BUILD_ARGS="BASE=b A=1",
        FEDSTRATA_BUILD_FLAGS="-v /x:/x",
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == "localhost/fedstrata/gps:7\n"
    (call,) = (machine / "calls").read_text().splitlines()
    assert call.startswith("buildah build --layers --platform linux/arm64 --build-arg BUILDPLATFORM=linux/")
    assert " --file gps/Dockerfile --tag localhost/fedstrata/gps:7 " in call
    assert call.endswith("--build-arg BASE=b --build-arg A=1 -v /x:/x .")


def test_all_three_are_built_with_the_first_builder_that_works_and_saved(machine: Path, tmp_path: Path) -> None:
    install(machine, "docker")
    install(machine, "podman")
    result = images(machine, "--arch", "amd64", "--save", str(tmp_path / "out"))
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [f"localhost/fedstrata/{service}:0.2.0" for service in SERVICES]
    calls = (machine / "calls").read_text().splitlines()
    assert [call.split()[:3] for call in calls[::2]] == [["docker", "buildx", "build"]] * 3
    assert calls[5] == f"docker save --output {tmp_path}/out/device-amd64.tar localhost/fedstrata/device:0.2.0"


def test_the_emulator_image_is_made_from_the_device_image_of_the_same_name(machine: Path) -> None:
    install(machine, "podman")
    result = images(machine, "--registry", "r.example/lab", "--tag", "7", "emulator")
    assert result.returncode == 0, result.stderr
    device, emulator = (machine / "calls").read_text().splitlines()
    assert " --file device/Dockerfile --tag r.example/lab/fedstrata/device:7 " in device
    assert " --build-arg DEVICE=r.example/lab/fedstrata/device:7 --file emulator/Dockerfile " in emulator
    assert "DEVICE=" not in device


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--arch", "riscv64"], "images are built for amd64 or arm64, not 'riscv64'"),
        (["--tag"], "--tag needs a value"),
        (["server"], "no option or service is called 'server'"),
    ],
)
def test_wrong_use_ends_with_a_reason(machine: Path, arguments: list[str], message: str) -> None:
    result = images(machine, *arguments)
    assert result.returncode == 2
    assert message in result.stderr


def test_no_builder_has_an_exit_code_that_no_failed_build_has(machine: Path) -> None:
    result = images(machine)
    assert result.returncode == 3
    assert "none of docker, podman and buildah is here and working" in result.stderr
    (machine / "podman").write_text('#!/bin/bash\n[ "$1" = info ] || exit 3\n')
    (machine / "podman").chmod(0o755)
    assert images(machine, "gps").returncode == 1


def test_kind_up_makes_a_cluster_once_and_loads_every_image_each_time(machine: Path) -> None:
    for tool in ("grep", "mktemp", "cat"):
        (machine / tool).symlink_to(Path("/usr/bin") / tool)
    install(machine, "docker")
    kind = machine / "kind"
    kind.write_text(
        f'#!/bin/bash\ncase "$1 $2" in "get clusters") cat "{machine}/clusters" ;; '
        f'"create cluster") cat >"{machine}/config"; echo "$4" >>"{machine}/clusters" ;; '
        f'*) echo "kind $*" >>"{machine}/loads" ;; esac\n'
    )
    kind.chmod(0o755)
    (machine / "clusters").write_text("another\n")
    docker = machine / "docker"  # what `docker save` leaves
    docker.write_text(docker.read_text() + '[ "$1" = save ] && : >"$3"\nexit 0\n')
    for _ in range(2):
        done = subprocess.run(
            [ROOT / "scripts" / "kind-up", "lab"], env={"PATH": str(machine), "TMPDIR": str(machine)},
            capture_output=True, text=True, check=False, timeout=30,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    assert (machine / "clusters").read_text() == "another\nlab\n"
    nodes = yaml.safe_load((machine / "config").read_text())["nodes"]
    tiers = [(node["role"], node.get("labels", {}).get("tier")) for node in nodes]
    workers = [("worker", "cloud"), ("worker", "edge"), ("worker", "edge")]
    assert tiers == [("control-plane", None), *workers]  # kind taints its control plane
    loads = (machine / "loads").read_text().splitlines()
    assert len(loads) == 6
    assert all(load.startswith("kind load image-archive --name lab ") for load in loads)


def test_kind_up_says_what_it_needs(machine: Path) -> None:
    done = subprocess.run(
        [ROOT / "scripts" / "kind-up"],
        env={"PATH": str(machine)},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 2
    assert "kind is not on the PATH" in done.stderr
