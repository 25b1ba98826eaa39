"""Boards reach the GPS and two LPSs in pods at one address: HAProxy reads the names of servers, and decrypts nothing.

FEDSTRATA_ON_NODE runs a command in the network of a node, which reaches Services: `ip netns exec k8s-cloud`.
"""

import os
import shlex
import socket
from pathlib import Path

import pytest

from tests.cluster.conftest import Lab
from tests.cluster.test_boards import EXPERIMENT, assert_boards_train_the_same
from tests.support import haproxy

pytestmark = [
    pytest.mark.skipif(haproxy.BINARY is None, reason=haproxy.REASON),
    pytest.mark.skipif("FEDSTRATA_ON_NODE" not in os.environ, reason="FEDSTRATA_ON_NODE says how to be on a node"),
]


def test_boards_with_one_open_port_train_the_same_models(lab: Lab, tmp_path: Path) -> None:
    file = tmp_path / "boards.yaml"
    file.write_text(EXPERIMENT)
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
        outside = {"type": "ClusterIP", "gps": f"127.0.0.1:{port}", "serverDomain": haproxy.DOMAIN}
        outside |= {"from": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}
        lab.up(file, {"device": {"external": 4}, "outside": outside}, release="boards")
        servers = {}
        for who, pod in (("gps", "gps-0"), ("lps-0", "lps-0"), ("lps-1", "lps-1")):
            service = lab.core.read_namespaced_service(f"boards-fedstrata-{pod}-outside", lab.namespace)
            servers[who] = f"{service.spec.cluster_ip}:{port}"
        with haproxy.proxied(door, servers, tmp_path, shlex.split(os.environ["FEDSTRATA_ON_NODE"])):
            way = ("--gps", f"127.0.0.1:{port}", "--server-domain", haproxy.DOMAIN)
            assert_boards_train_the_same(lab, file, tmp_path, *way)
    lab.here("down", "--delete-records", "--yes", release="boards")
