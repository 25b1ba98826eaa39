"""Masks: they cancel in the sum of all, and in no less; keys are vouched for where there are certificates."""

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from device.masking.masks import PIECE, Masks, stream
from fedstrata.errors import CertificateError, ExperimentError, OutdatedError, PayloadError, RosterError
from fedstrata.experiment_file import parse_experiment
from fedstrata.rounds import ReceivedModel
from fedstrata.rounds.mask_roster import roster_digest
from fedstrata.tensors import Flat, Layout, PayloadCodec
from fedstrata.trust.authority import Authority
from fedstrata.trust.mask_proofs import KeyCheck, Proofs
from fedstrata.trust.names import Name
from fedstrata.v1 import answers_pb2
from fedstrata.v1 import rounds_pb2 as pb
from tests.support.gatherings import MASKED, one_stream, sums_in
from tests.support.made_certificates import Made, made, unchecked
from tests.support.masks_setting import (
    BASE,
    LAYOUT,
    MOST_EXAMPLES,
    chacha20,
    grid,
    hkdf_sha256,
    issued,
    masked_experiment,
    masks_of,
    roster_of,
    update_of,
    x25519,
)

EXPERIMENT = masked_experiment(8)
SIZE = LAYOUT.size
EXAMPLE_KEY = X25519PrivateKey.generate().public_key().public_bytes_raw()


def with_roster(devices: list[str], masks: dict[str, Masks]) -> pb.Roster:
    """Have these devices mask for each other; gives the roster."""
    roster = roster_of([(device_id, masks[device_id].key) for device_id in sorted(devices)])
    for device_id in devices:
        masks[device_id].take(roster)
    return roster


def masking(count: int) -> tuple[list[str], dict[str, Masks]]:
    """The first devices, which mask for each other, and the masks of all."""
    names, masks = EXPERIMENT.device_ids()[:count], masks_of(EXPERIMENT)
    with_roster(names, masks)
    return names, masks


@st.composite
def rounds(draw: st.DrawFn) -> tuple[list[str], list[tuple[Flat, int]], list[int]]:
    """Some of the devices, in any order, with their updates and weights; and another order to report in."""
    devices = draw(st.permutations(EXPERIMENT.device_ids()))[: draw(st.integers(3, 8))]
    values = hnp.arrays(np.float32, SIZE, elements=st.floats(-250, 250, width=32))
    updates = draw(st.lists(st.tuples(values, st.integers(1, 500)), min_size=len(devices), max_size=len(devices)))
    return devices, updates, draw(st.permutations(range(len(devices))))


@given(rounds())
def test_masks_cancel_to_the_bit_in_the_sum_of_all_in_any_order_and_in_no_less(
    case: tuple[list[str], list[tuple[Flat, int]], list[int]],
) -> None:
    devices, updates, order = case
    masks = masks_of(EXPERIMENT)
    with_roster(devices, masks)
    sent = {index: masks[devices[index]].masked(update_of(*updates[index])).read(0, SIZE) for index in order}
    short = order[1:]
    assert not np.any(sum(sent[index] for index in short) == sum(grid(*updates[index]) for index in short))
    most = dict.fromkeys(devices, 512)
    masked, plain = one_stream(SIZE, most, MASKED), one_stream(SIZE, most)
    for index in order:
        masked.take(devices[index], 0, sent[index], [updates[index][1]])
        masked.accept(devices[index], [updates[index][1]])
    for (flat, examples), device_id in zip(updates, devices, strict=True):
        plain.take(device_id, 0, flat, [examples])
        plain.accept(device_id, [examples])
    masked.totals[0].settle()
    assert sums_in(masked)[0].mean().tobytes() == sums_in(plain)[0].mean().tobytes()


def test_the_ciphers_of_the_test_are_those_of_the_standards() -> None:
    key = bytes(range(32))
    nonce = bytes.fromhex("000000090000004a00000000")
    assert chacha20(key, 64, first=1, nonce=nonce).hex().startswith("10f1e7e4d13b5915500fdd1fa32071c4")  # RFC 8439
    alice = bytes.fromhex("77076d0a7318a57d3c16c17251b26645da4ce2e91d5de1d0b3b4b0ab1e3a2c2a".replace(" ", ""))
    one = x25519(alice, BASE.to_bytes(32, "little"))
    bob = bytes(range(1, 33))
    assert x25519(bob, one) == x25519(alice, x25519(bob, BASE.to_bytes(32, "little")))
    okm = hkdf_sha256(b"\x0b" * 22, bytes(range(13)), bytes(range(0xF0, 0xFA)))
    assert okm.hex() == "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"  # RFC 5869, A.1


def test_a_mask_is_what_x25519_hkdf_and_chacha20_say() -> None:
    masks = masks_of(EXPERIMENT)
    names = EXPERIMENT.device_ids()[:3]
    roster = with_roster(names, masks)
    flat, me = np.linspace(-1, 1, SIZE, dtype=np.float32), masks[names[1]]
    own = me.key.public_key
    about = f"{EXPERIMENT.run_id}\x007\0".encode() + b"what was received"
    mask = np.zeros(SIZE, np.uint64)
    for name, sign in ((names[0], -1), (names[2], 1)):
        shared = x25519(me._secrets[own].private_bytes_raw(), masks[name].key.public_key)
        pair = "\0".join(sorted((name, names[1])))
        info = f"fedstrata masks\0{pair}\0".encode() + about
        drawn = chacha20(hkdf_sha256(shared, roster_digest(roster), info), 8 * SIZE)
        mask += np.uint64(sign % 2**64) * np.frombuffer(drawn, "<u8")
    sent = me.masked(update_of(flat, 3, round_number=7)).read(0, SIZE)
    assert np.array_equal(sent.view(np.uint64), grid(flat, 3).view(np.uint64) + mask)


def test_a_stream_goes_on_over_its_pieces() -> None:
    length = PIECE + 3
    drawn = np.concatenate([piece.copy() for _, piece in stream(bytes(32), length)])
    assert [at for at, _ in stream(bytes(32), length)] == [0, PIECE]
    assert drawn[PIECE:].tobytes() == chacha20(bytes(32), 24, first=8 * PIECE // 64)


def test_another_round_model_or_roster_has_other_masks_and_the_same_the_same() -> None:
    names = EXPERIMENT.device_ids()
    masks = masks_of(EXPERIMENT)
    with_roster(names[:4], masks)
    flat, me = np.zeros(SIZE, np.float32), masks[names[0]]
    update = update_of(flat)
    first = me.masked(update).read(0, SIZE)
    assert np.array_equal(me.masked(update).read(0, SIZE), first)
    others = [replace(update, round=1), replace(update, trained_from=b"another")]
    assert not any(np.any(me.masked(other).read(0, SIZE) == first) for other in others)
    with_roster(names[:3], masks)
    assert not np.any(me.masked(update).read(0, SIZE) == first)


def test_no_mask_hides_two_updates_whatever_model_they_are_of() -> None:
    """An LPS that offers another model under the same digest would have the difference of both."""
    names, masks = masking(3)
    flat = np.linspace(-1, 1, SIZE, dtype=np.float32)
    masks[names[0]].masked(update_of(flat))
    with pytest.raises(PayloadError, match="another update with the same masks"):
        masks[names[0]].masked(update_of(0 * flat))


def test_a_restarted_device_masks_the_same_update_with_other_masks_for_the_same_devices(tmp_path: Path) -> None:
    """So an LPS that says that a device has dropped out has no sum without that device."""
    experiment = masked_experiment(8, quorum_ratio=1.0)
    names, masks = experiment.device_ids(), masks_of(experiment)
    masks[names[0]] = Masks(experiment, names[0], Proofs(experiment.run_id, None), tmp_path)
    with_roster(names[:4], masks)
    update = update_of(np.ones(SIZE, np.float32))
    first = masks[names[0]].masked(update).read(0, SIZE)
    masks[names[0]] = Masks(experiment, names[0], Proofs(experiment.run_id, None), tmp_path)
    fewer = roster_of([(name, masks[name].key) for name in names[:3]])
    with pytest.raises(RosterError, match="without 'device-003', unlike before"):
        masks[names[0]].take(fewer)
    with_roster(names[:4], masks)
    assert not np.any(masks[names[0]].masked(update).read(0, SIZE) == first)


def test_a_key_masks_one_global_round_and_an_earlier_roster_is_refused() -> None:
    """Whoever takes a key out of a device's memory can unmask no earlier global round, and a replay has no effect."""
    experiment = EXPERIMENT.model_copy(
        update={"training": EXPERIMENT.training.model_copy(update={"lps_rounds_per_global_round": 2})}
    )
    names, masks = experiment.device_ids()[:3], masks_of(experiment)
    me, flat = masks[names[0]], np.ones(SIZE, np.float32)
    rosters, keys = [], []
    for number in range(6):
        rosters.append(with_roster(names, masks))
        keys.append(me.key.public_key)
        sums = [masks[name].masked(update_of(flat, round_number=number)).read(0, SIZE) for name in names]
        assert np.array_equal(sum(sums), 3 * grid(flat, 2))
        me.masked(update_of(flat, round_number=number))  # sent again, which makes no other key
    assert [keys.index(key) for key in keys] == [0, 0, 2, 2, 4, 4]
    with_roster(names, masks)
    assert list(me._secrets) == [me.key.public_key]
    with pytest.raises(PayloadError, match="without this one's key"):
        me.take(rosters[3])


def test_an_lps_that_offers_the_keys_of_an_earlier_global_round_for_ever_gets_no_update(tmp_path: Path) -> None:
    """The key would never be deleted, and with it all rounds could be unmasked later."""
    names, masks = masking(3)
    me, flat = masks[names[0]], np.ones(SIZE, np.float32)
    old = roster_of([(name, masks[name].key) for name in names])
    for number in (0, 1, 1):  # the last again, as after a restart of the LPS
        me.masked(update_of(flat, round_number=number))
        me.take(old)
    for number in (2, 3, 9):
        with pytest.raises(RosterError, match=f"global round {number // 2 + 1} with an old key of this device"):
            me.masked(update_of(flat, round_number=number))
    with_roster(names, masks)
    me.masked(update_of(flat, round_number=2))
    with pytest.raises(PayloadError, match="without this one's key"):
        me.take(old)


@pytest.mark.parametrize("rounds", [range(0, 10, 2), range(8, -1, -2), (9, 0, 2, 4, 6), (1, 9, 3, 7, 5)])
def test_an_lps_that_never_comes_to_the_end_of_a_global_round_or_goes_back_gets_no_key_for_ever(
    rounds: Sequence[int],
) -> None:
    names, masks = masking(3)
    flat, used = np.ones(SIZE, np.float32), dict[bytes, list[int]]()
    for number in rounds:
        with_roster(names, masks)
        used.setdefault(masks[names[0]]._public_key, []).append(number)
        for name in names:
            masks[name].masked(update_of(flat, round_number=number))
    assert max(map(len, used.values())) <= 2


def test_an_lps_that_gives_one_device_another_roster_recovers_nothing() -> None:
    names, masks = masking(6)
    fewer = roster_of([(name, masks[name].key) for name in names[:5]])
    masks[names[0]].take(fewer)
    updates = {name: np.linspace(1, 2, SIZE, dtype=np.float32) * (1 + index) for index, name in enumerate(names)}
    sent = {name: masks[name].masked(update_of(flat)).read(0, SIZE) for name, flat in updates.items()}
    for of_whom in (names, names[:5]):
        recovered = sum(sent[name] for name in of_whom) - sum(grid(updates[name], 2) for name in of_whom[1:])
        assert not np.any(recovered == grid(updates[names[0]], 2))


def test_a_device_that_shows_anothers_key_as_its_own_takes_no_mask_away(tmp_path: Path) -> None:
    thief, victim, owner = EXPERIMENT.device_ids()[:3]
    authority = Authority.new("run-1")
    proofs = {
        name: Proofs(EXPERIMENT.run_id, issued(authority, tmp_path / name, name)) for name in (thief, victim, owner)
    }
    masks = {name: Masks(EXPERIMENT, name, each) for name, each in proofs.items()}
    stolen = proofs[thief].key_of(thief, masks[owner].key.public_key)
    masks[victim].take(roster_of([(thief, stolen), *((name, masks[name].key) for name in (victim, owner))]))
    flat = np.linspace(-1, 1, SIZE, dtype=np.float32)
    assert not np.any(masks[victim].masked(update_of(flat)).read(0, SIZE) == grid(flat, 2))


@pytest.mark.parametrize("encoding", ["float16", "bfloat16", "int8"])
def test_values_are_rounded_as_the_link_would_have_rounded_them(encoding: str) -> None:
    names, masks = masking(3)
    flat = np.random.default_rng(5).normal(size=SIZE).astype(np.float32)
    codec = PayloadCodec.for_vector(LAYOUT, encoding, flat)  # type: ignore[arg-type]
    (chunk,) = codec.chunks(lambda a, b: flat[a:b])
    wanted = 3 * grid(codec.decode(chunk, 0), 2)
    sums = sum(masks[name].masked(replace(update_of(flat), codec=codec)).read(0, SIZE) for name in names)
    assert np.array_equal(sums, wanted)


def test_an_update_beyond_the_grid_says_why_it_cannot_go_up() -> None:
    names, masks = masking(3)
    sent = masks[names[0]].masked(update_of(np.full(SIZE, np.inf, np.float32)))
    assert "not finite" in sent.note.unfit
    large = masks[names[0]].masked(update_of(np.full(SIZE, 2.0**30 / (3 * MOST_EXAMPLES) * 1.01, np.float32)))
    assert large.note.unfit == sent.note.unfit  # which values they are is not said: that would tell of the update


def test_a_large_update_is_masked_piece_by_piece() -> None:
    layout = Layout.of({"w": (PIECE + 5,)})
    names, masks = masking(3)
    flat = np.random.default_rng(1).normal(size=layout.size).astype(np.float32)
    sums = sum(masks[name].masked(update_of(flat, layout=layout)).read(0, layout.size) for name in names)
    assert np.array_equal(sums, 3 * grid(flat, 2))


def test_an_lps_that_gives_one_device_another_model_under_the_same_digest_recovers_nothing() -> None:
    names, masks = masking(6)
    models = {name: received(np.full(SIZE, 1.0 if name == names[0] else 0.0, np.float32)) for name in names}
    updates = {name: np.linspace(1, 2, SIZE, dtype=np.float32) * (1 + index) for index, name in enumerate(names)}
    sums = np.zeros(SIZE, np.int64)
    for name, flat in updates.items():
        trained_from = models[name].trained_from("lps-0", 0)
        sums += masks[name].masked(replace(update_of(flat), trained_from=trained_from)).read(0, SIZE)
    of_others = sum(grid(updates[name], 2) for name in names[1:])
    assert not np.any(sums - of_others == grid(updates[names[0]], 2))


def received(flat: Flat) -> ReceivedModel:
    """A model with a digest that its parent claims for it."""
    numbers = {"round": 3, "global_round": 1, "plan_version": 0}
    return ReceivedModel(evaluate_only=False, flat=flat, digest=b"the true model", **numbers)


def test_masks_depend_on_all_that_was_received_and_changes_training() -> None:
    flat = np.linspace(-1, 1, SIZE, dtype=np.float32)
    changes: list[dict[str, Any]] = [
        {"flat": np.nextafter(flat, np.float32(2))},
        {"round": 4},
        {"global_round": 2},
        {"plan_version": 1},
        {"cluster": 1},
        {"clusters": 2},
        {"offered": (0,)},
        {"offers": ((0,),)},
        {"withdrawn": ("fc1.bias",)},
        {"told": answers_pb2.Answer(question="told", data=b"x")},
        {"begins_ns": 1},
    ]
    digests = [replace(received(flat), **changed).trained_from("lps-0", 0) for changed in changes]
    digests += [received(flat).trained_from(*of_whom) for of_whom in (("lps-0", 0), ("lps-1", 0), ("lps-0", 1))]
    assert len(set(digests)) == len(changes) + 3
    claimed = replace(received(flat.copy()), digest=b"another name for it", whole_bytes=7)
    assert claimed.trained_from("lps-0", 0) == received(flat).trained_from("lps-0", 0)


# --- what a device does not mask for ----------------------------------------------------------


def test_a_roster_that_nobody_can_hide_in_is_refused() -> None:
    names = EXPERIMENT.device_ids()
    masks = masks_of(EXPERIMENT)
    keys = [(name, masks[name].key) for name in names[:4]]
    me = masks[names[0]]
    for roster, says in (
        (roster_of(keys[:2]), "among 2 devices"),
        (roster_of([*keys, keys[1]]), "each once"),
        (roster_of(keys[1:]), "without this one's key"),
        (roster_of([(names[0], masks[names[5]].key), *keys[1:]]), "without this one's key"),
        (roster_of([*keys, ("a-stranger", masks[names[5]].key)]), "not in this experiment"),
        (roster_of([*keys, (names[5], pb.MaskKey(public_key=b"short"))]), "is not valid"),
        (roster_of(keys, max_examples=0), "over 0 examples"),
        (roster_of(keys, max_examples=8 * MOST_EXAMPLES + 1), "have at most 4096"),
    ):
        with pytest.raises(PayloadError, match=says):
            me.take(roster)
    assert me.digest == b""


def test_a_roster_with_a_key_of_low_order_is_not_masked_for() -> None:
    masks = masks_of(EXPERIMENT)
    names = EXPERIMENT.device_ids()[:3]
    keys = [(name, masks[name].key) for name in names[:2]]
    with pytest.raises(RosterError, match=r"device-002.*low order"):
        masks[names[0]].take(roster_of([*keys, (names[2], pb.MaskKey(public_key=bytes(32)))]))


def test_with_certificates_a_key_counts_that_its_device_has_signed(tmp_path: Path) -> None:
    ids, authority = EXPERIMENT.device_ids(), Authority.new("run-1")
    board = Masks(EXPERIMENT, ids[0], Proofs(EXPERIMENT.run_id, issued(authority, tmp_path / "one", ids[0])))
    host = Proofs(EXPERIMENT.run_id, issued(authority, tmp_path / "rest", *ids[1:]))
    others = {name: Masks(EXPERIMENT, name, host) for name in ids[1:4]}
    honest = [(ids[0], board.key), *((name, each.key) for name, each in others.items())]
    for each in (board, *others.values()):
        each.take(roster_of(honest))
    total = sum(each.masked(update_of(np.ones(SIZE, np.float32))).read(0, SIZE) for each in (board, *others.values()))
    assert np.array_equal(total, 4 * grid(np.ones(SIZE, np.float32), 2))


def test_a_renewed_certificate_that_cannot_sign_is_passed_over_with_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    authority, name = Authority.new("run-1"), EXPERIMENT.device_ids()[0]
    tls = issued(authority, tmp_path, name)
    proofs = Proofs(EXPERIMENT.run_id, tls)
    key = proofs.key_of(name, bytes(32))
    with monkeypatch.context() as patched:
        patched.setattr(ec, "SECP256R1", ec.SECP384R1)
        issued(authority, tmp_path, name)
    assert tls.newest(at_once=True) is not tls
    assert proofs.key_of(name, bytes(32)) == proofs.key_of(name, bytes(32)) == key
    (record,) = [record for record in caplog.records if record.message == "certificate_signs_nothing"]
    assert "not on P-256" in record.fields["reason"]  # type: ignore[attr-defined]


def test_a_certificate_by_an_intermediate_authority_is_told_at_the_start(tmp_path: Path) -> None:
    root = made("root")
    between = made("between", root)
    name = Name("device", "device-000")
    one = made("one", between, names=[name])
    with pytest.raises(CertificateError, match=r"comes from an intermediate authority.* add the intermediate"):
        Proofs("run-1", unchecked(tmp_path / "root", one, name, ca=root.pem))
    proofs = Proofs("run-1", unchecked(tmp_path / "both", one, name, ca=root.pem + between.pem))
    assert proofs.key_of("device-000", bytes(32)).signature


def test_before_a_device_refuses_a_roster_it_looks_whether_there_is_another_authority(tmp_path: Path) -> None:
    ids, authority = EXPERIMENT.device_ids(), Authority.new("run-1")
    me = Masks(EXPERIMENT, ids[0], Proofs(EXPERIMENT.run_id, issued(authority, tmp_path / "mine", ids[0])))
    successor = authority.succeeded()
    others = Proofs(EXPERIMENT.run_id, issued(successor, tmp_path / "others", *ids[1:4]))
    shown = [(name, Masks(EXPERIMENT, name, others).key) for name in ids[1:4]]
    with pytest.raises(RosterError, match=r"device-001.*has an unknown issuer"):
        me.take(roster_of([(ids[0], me.key), *shown]))
    (tmp_path / "mine" / "ca.pem").write_bytes(successor.trusted())
    me.take(roster_of([(ids[0], me.key), *shown]))


def test_with_certificates_a_key_that_an_lps_made_up_is_refused(tmp_path: Path) -> None:
    ids, authority = EXPERIMENT.device_ids(), Authority.new("run-1")
    mine = Proofs(EXPERIMENT.run_id, issued(authority, tmp_path / "mine", ids[0], ids[1]))
    me, beside = Masks(EXPERIMENT, ids[0], mine), Masks(EXPERIMENT, ids[1], mine)
    another_run = masked_experiment(9)
    for name, proofs, says in (
        ("unsigned", Proofs(EXPERIMENT.run_id, None), "has no certificate"),
        (
            "stranger",
            Proofs(EXPERIMENT.run_id, issued(Authority.new("run-1"), tmp_path / "s", ids[2])),
            "unknown issuer",
        ),
        ("lps", Proofs(EXPERIMENT.run_id, issued(authority, tmp_path / "gps")), "has the certificate of gps"),
        ("another device", mine, "has the certificate of"),
        ("another run", Proofs(another_run.run_id, issued(authority, tmp_path / "r", ids[2])), "is not signed"),
    ):
        made_up = Masks(EXPERIMENT, ids[2], proofs)
        with pytest.raises(RosterError, match=f"device-002.*{says}"):
            me.take(roster_of([(ids[0], me.key), (ids[1], beside.key), (ids[2], made_up.key)]))
        assert me.digest == b"", name


def test_a_certificate_that_is_revoked_or_has_run_out_vouches_for_nothing(tmp_path: Path) -> None:
    ids, authority, now = EXPERIMENT.device_ids(), Authority.new("run-1"), time.time()
    key = Masks(EXPERIMENT, ids[2], Proofs(EXPERIMENT.run_id, issued(authority, tmp_path / "theirs", ids[2]))).key
    lps = issued(authority, tmp_path / "lps")
    check = KeyCheck(EXPERIMENT.run_id, lps, clock=lambda: now).check
    check(ids[2], key)
    (tmp_path / "lps" / "revoked.txt").write_text(f"device/{ids[2]}\n")
    lps.revoked(at_once=True)
    with pytest.raises(OutdatedError, match=r"device-002. is revoked"):
        check(ids[2], key)
    (tmp_path / "lps" / "revoked.txt").write_text("# nobody\n")
    lps.revoked(at_once=True)
    check(ids[2], key)
    now += 100 * 365 * 86400
    with pytest.raises(OutdatedError, match=r"device-002. has expired"):
        check(ids[2], key)


@pytest.mark.parametrize(
    ("days", "days_above", "says"),
    [
        ((50, 60), (-1, 90), "is not valid yet"),
        ((0.01, 60), (-1, 90), "is not valid yet"),
        ((-9, -1), (-9, 90), "has expired"),
        ((-9, 9), (-9, -1), "has expired"),
        ((-9, 9), (2, 9), "is not valid yet"),
        ((-9, 2), (4, 9), "is not valid yet"),
        ((-9, 9), (-1, 9), ""),
    ],
)
def test_a_certificate_vouches_for_a_key_while_it_and_its_authority_are_valid(
    tmp_path: Path, days: tuple[float, float], days_above: tuple[float, float], says: str
) -> None:
    root, name = made("root", days=days_above), Name("device", "device-000")
    key = Proofs("run-1", unchecked(tmp_path / "own", made("own", root, names=[name], days=days), name, ca=root.pem))
    other = unchecked(tmp_path / "other", made("other", root, names=[Name("lps", "lps-0")]), ca=root.pem)
    check, shown = KeyCheck("run-1", other).check, key.key_of("device-000", EXAMPLE_KEY)
    if says:
        with pytest.raises(OutdatedError, match=f"device-000. {says}"):
            check("device-000", shown)
    else:
        check("device-000", shown)


def test_a_certificate_counts_by_the_authority_with_its_key_that_is_valid(tmp_path: Path) -> None:
    """An authority that was renewed with the same key is in the file twice."""
    old, name = made("root", days=(-9, -1)), Name("device", "device-000")
    new = Made(_issued_anew(old), old.key)
    own = made("own", old, names=[name])
    for number, (ca, is_good) in enumerate(((old.pem, False), (old.pem + new.pem, True), (new.pem + old.pem, True))):
        proofs = Proofs("run-1", unchecked(tmp_path / str(number), own, name, ca=ca))
        shown = proofs.key_of("device-000", EXAMPLE_KEY)
        if is_good:
            proofs.check("device-000", shown)
        else:
            with pytest.raises(OutdatedError, match="has expired"):
                proofs.check("device-000", shown)


def _issued_anew(old: Made) -> x509.Certificate:
    now, subject = datetime.now(UTC), old.certificate.subject
    builder = x509.CertificateBuilder(subject, subject, old.key.public_key(), x509.random_serial_number())
    valid = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=9))
    return valid.sign(old.key, SHA256())


@pytest.mark.parametrize(
    ("part", "other"),
    [  # an extension twice; an X.400 name; version 17
        (b"\x55\x1d\x23", b"\x55\x1d\x25"),
        (b"\x86\x20spiffe", b"\xa3\x20spiffe"),
        (b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x10"),
    ],
)
def test_an_unreadable_certificate_is_refused(tmp_path: Path, part: bytes, other: bytes) -> None:
    ids, authority = EXPERIMENT.device_ids(), Authority.new("run-1")
    key = Masks(EXPERIMENT, ids[2], Proofs(EXPERIMENT.run_id, issued(authority, tmp_path / "theirs", ids[2]))).key
    key.certificate = key.certificate.replace(part, other)
    with pytest.raises(PayloadError, match=r"device-002. does not have the certificate of a device: "):
        KeyCheck(EXPERIMENT.run_id, issued(authority, tmp_path / "lps")).check(ids[2], key)


# --- where it cannot be ------------------------------------------------------------------------

BASE_FILE = "name: x\nseed: 1\npartition: {kind: iid, devices: 8, examples_per_device: 8}\n"
ONE = "training: {lps_rounds_per_global_round: 1}"


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ("method: fedavg\ntraining: {participation: 4}", "a round asks 4 devices"),
        ("method: fedavg\ntraining: {participation: 0.5}", "a round asks 4 devices"),
        ("method: {name: one_shot, clusters: 2}", "a round of one of the 2 clusters asks at most 4 devices"),
        ("method: fedavg\ntopology: {lps: 3}", "one of the 3 LPSs asks 2 devices"),
    ],
)
def test_what_masks_cannot_go_with_is_refused_by_name(says: str, why: str) -> None:
    plain = parse_experiment(BASE_FILE + says)
    assert plain.secure_aggregation is None
    with pytest.raises(ExperimentError, match=why):
        parse_experiment(f"{BASE_FILE}{says}\nsecure_aggregation: {{}}")


def test_masks_are_part_of_a_runs_id_where_they_change_its_timeline_alone() -> None:
    file = BASE_FILE + "method: fedavg\n"
    plain, masked = parse_experiment(file), parse_experiment(file + "secure_aggregation: {}")
    assert plain.run_id == masked.run_id
    timed = file + "clock: virtual\nlinks: {device-lps: {preset: lte}}\n"
    assert parse_experiment(timed).run_id != parse_experiment(timed + "secure_aggregation: {}").run_id
