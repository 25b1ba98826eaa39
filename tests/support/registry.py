"""A registry of images and artefacts on this machine: Debian's docker-registry, on a port that the system chose."""

import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

BINARY = shutil.which("docker-registry")
IS_HERE = all(map(shutil.which, ("docker-registry", "skopeo", "openssl")))
REASON = "needs Debian's packages docker-registry, skopeo and openssl"
MANIFESTS = ", ".join(f"application/vnd.oci.image.{kind}.v1+json" for kind in ("index", "manifest"))


@contextmanager
def served_registry(folder: Path) -> Iterator[str]:
    """Yield the address of a registry that keeps its files in a folder. It speaks plain HTTP."""
    assert BINARY is not None, REASON
    storage = {"filesystem": {"rootdirectory": str(folder)}}
    file = folder / "registry.json"  # JSON is YAML, too
    file.write_text(json.dumps({"version": 0.1, "storage": storage, "http": {"addr": "127.0.0.1:0"}}))
    with subprocess.Popen(
        [BINARY, "serve", str(file)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if found := re.search(r"listening on (127\.0\.0\.1:\d+)", line):
                    threading.Thread(target=process.stderr.read, daemon=True).start()  # so that it can write on
                    yield found[1]
                    break
            else:
                raise AssertionError(f"docker-registry ended with {process.wait()}")
        finally:
            process.terminate()


def manifest(address: str, name: str, reference: str) -> bytes:
    """A manifest or index, by tag or digest."""
    url = f"http://{address}/v2/{name}/manifests/{reference}"
    with urlopen(Request(url, headers={"Accept": MANIFESTS}), timeout=10) as reply:
        return bytes(reply.read())


def get(address: str, path: str) -> bytes:
    with urlopen(f"http://{address}/v2/{path}", timeout=10) as reply:
        return bytes(reply.read())


def blob(address: str, name: str, digest: str) -> bytes:
    return get(address, f"{name}/blobs/{digest}")


def tags(address: str, name: str) -> set[str]:
    return set(json.loads(get(address, f"{name}/tags/list"))["tags"])
