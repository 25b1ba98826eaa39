"""Devices with masks, without a network: their keys, their rosters and their updates; and the ciphers by hand."""

import hmac
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from struct import pack, unpack

import numpy as np

from device.masking.masks import Masks
from fedstrata.experiment import Experiment
from fedstrata.experiment_file import parse_experiment
from fedstrata.rounds import Update
from fedstrata.tensors import ExactSum, Flat, Layout, PayloadCodec
from fedstrata.trust.authority import Authority
from fedstrata.trust.mask_proofs import Proofs
from fedstrata.trust.names import Name, device_names
from fedstrata.trust.tls_files import TlsFiles
from fedstrata.v1 import rounds_pb2 as pb

LAYOUT = Layout.of({"fc1.weight": (3, 2), "fc1.bias": (2,)})
MOST_EXAMPLES = 512  # of a device
MAX_EXAMPLES = 8 * MOST_EXAMPLES
PRIME, BASE = 2**255 - 19, 9  # of Curve25519


def masked_experiment(
    devices: int, min_devices: int = 3, *, quorum_ratio: float = 0.5, rounds_per_global: int = 2
) -> Experiment:
    return parse_experiment(
        f"{{name: masked, partition: {{kind: iid, devices: {devices}, examples_per_device: {MOST_EXAMPLES}}}, "
        f"training: {{lps_rounds_per_global_round: {rounds_per_global}}}, method: fedavg, "
        f"secure_aggregation: {{min_devices: {min_devices}}}, "
        f"deadlines: {{lps: {{quorum_ratio: {quorum_ratio}}}}}}}"
    )


def issued(authority: Authority, folder: Path, *device_ids: str) -> TlsFiles:
    authority.issue(device_names(device_ids) if device_ids else [Name("gps")], folder)
    return TlsFiles.load(folder)


def masks_of(experiment: Experiment, tls: TlsFiles | None = None) -> dict[str, Masks]:
    """The masks of all devices of an experiment, in one process."""
    proofs = Proofs(experiment.run_id, tls)
    return {device_id: Masks(experiment, device_id, proofs) for device_id in experiment.device_ids()}


def roster_of(masks: Sequence[tuple[str, pb.MaskKey]], max_examples: int | None = None) -> pb.Roster:
    """A roster as a parent would make it, with a certificate a member."""
    most = len(masks) * MOST_EXAMPLES if max_examples is None else max_examples
    roster = pb.Roster(max_examples=most, certificates=[key.certificate for _, key in masks])
    for place, (device_id, key) in enumerate(masks):
        roster.members.add(device_id=device_id, public_key=key.public_key, signature=key.signature, certificate=place)
    return roster


def update_of(flat: Flat, num_examples: int = 2, *, round_number: int = 0, layout: Layout = LAYOUT) -> Update:
    codec = PayloadCodec(layout, "float32")
    return Update(
        round=round_number, num_examples=num_examples, codec=codec, read=lambda a, b: flat[a:b], base_digest=b"model",
        trained_from=b"what was received",
    )  # fmt: skip


def grid(flat: Flat, num_examples: int) -> np.ndarray:
    """What an update comes to on the grid of exact sums, unmasked."""
    total = ExactSum(len(flat), MAX_EXAMPLES)
    total.add(flat, num_examples)
    return total.sums()


def x25519(scalar: bytes, point: bytes) -> bytes:
    """RFC 7748, section 5, with integers."""
    k = int.from_bytes(scalar, "little") & ~7 & (2**255 - 1) | 2**254
    u = int.from_bytes(point, "little") & (2**255 - 1)
    x2, z2, x3, z3, swap = 1, 0, u, 1, 0
    for bit in range(254, -1, -1):
        if swap != (swap := k >> bit & 1):
            x2, z2, x3, z3 = x3, z3, x2, z2
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        aa, bb, da, cb = a * a, b * b, d * a, c * b
        x3, z3 = (da + cb) ** 2 % PRIME, u * (da - cb) ** 2 % PRIME
        x2, z2 = aa * bb % PRIME, (aa - bb) * (aa + 121665 * (aa - bb)) % PRIME
    if swap:
        x2, z2 = x3, z3
    return (x2 * pow(z2, PRIME - 2, PRIME) % PRIME).to_bytes(32, "little")


def hkdf_sha256(secret: bytes, salt: bytes, info: bytes) -> bytes:
    """RFC 5869, one block of output."""
    return hmac.digest(hmac.digest(salt, secret, sha256), info + b"\1", sha256)


def chacha20(key: bytes, length: int, first: int = 0, nonce: bytes = bytes(12)) -> bytes:
    """RFC 8439, section 2.4: so many bytes of the key stream from a block on."""
    blocks = (_chacha20_block(key, first + number, nonce) for number in range(-(-length // 64)))
    return b"".join(blocks)[:length]


def _chacha20_block(key: bytes, counter: int, nonce: bytes) -> bytes:
    start = [*unpack("<4I", b"expand 32-byte k"), *unpack("<8I", key), counter, *unpack("<3I", nonce)]
    s = list(start)
    columns = [(0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)]
    diagonals = [(0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)]
    for a, b, c, d in (columns + diagonals) * 10:
        for into, of, by, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            s[into] = (s[into] + s[of]) % 2**32
            mixed = s[by] ^ s[into]
            s[by] = (mixed << turn | mixed >> (32 - turn)) % 2**32
    return pack("<16I", *((x + y) % 2**32 for x, y in zip(s, start, strict=True)))
