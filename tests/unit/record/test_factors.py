"""factors.csv and the key `kept`: what rules kept of updates, worked out by hand."""

from pathlib import Path

from fedstrata.experiment_file import parse_experiment
from fedstrata.record.factors import FACTORS, Kept, RuleFactors
from fedstrata.v1 import rounds_pb2 as pb

TEXT = """
name: kept
partition: {kind: iid, devices: 4, examples_per_device: 10}
method: fedavg
topology: {lps: 2}
"""
FLIP = "attacks=[{name: sign_flip, devices: [0], from_global_round: 2}, {name: sign_flip, lps: [1]}]"


def row(global_round: int, lps_id: str, **factors: float) -> pb.LpsRound:
    children = [int(name[1:]) for name in factors]
    found = pb.Factors(children=children, factors=factors.values())
    return pb.LpsRound(home_id=lps_id, global_round=global_round, lps_round=global_round, factors=found)


ROWS = [
    row(0, "lps-0", d0=0.5, d2=0.5),
    row(0, "lps-1", d1=0.0, d3=1.0),
    row(1, "lps-0", d0=0.25, d2=0.5),
    row(1, "lps-1", d1=0.0, d3=0.25),
]
GLOBAL = {1: pb.Factors(children=[0, 1], factors=[0.9, 0.1])}


def test_a_row_says_who_attacked_and_what_the_rule_kept(tmp_path: Path) -> None:
    factors = RuleFactors(experiment=parse_experiment(TEXT, overrides=[FLIP]), rows=ROWS, global_rounds=GLOBAL)
    path = tmp_path / "factors.csv"
    path.write_text("".join(factors.tables()["factors.csv"]), encoding="utf-8")
    assert path.read_text(encoding="utf-8").splitlines() == [
        "tier,global_round,lps_round,lps_id,child,attacks,factor",
        "lps,1,1,lps-0,device-000,0,0.5",
        "lps,1,1,lps-0,device-002,0,0.5",
        "lps,1,1,lps-1,device-001,0,0.0",
        "lps,1,1,lps-1,device-003,0,1.0",
        "lps,2,2,lps-0,device-000,1,0.25",
        "lps,2,2,lps-0,device-002,0,0.5",
        "lps,2,2,lps-1,device-001,0,0.0",
        "lps,2,2,lps-1,device-003,0,0.25",
        "gps,2,,,lps-0,0,0.9",
        "gps,2,,,lps-1,1,0.1",
    ]
    assert [each.factor for each in FACTORS.read(path)][-2:] == [0.9, 0.1]


def test_the_summary_has_the_weight_of_attackers_in_the_rounds_of_an_attack() -> None:
    late = "attacks=[{name: sign_flip, devices: [0], from_global_round: 2}]"
    factors = RuleFactors(experiment=parse_experiment(TEXT, overrides=[late]), rows=ROWS, global_rounds=GLOBAL)
    # In the second round: 0.25 of 1 to device 0, and one of the three others is left out. Both LPSs are honest.
    lps = Kept(attackers=0.25, honest_left_out=1 / 3)
    assert factors.summary() == {"kept": {"lps": lps, "gps": Kept(attackers=0, honest_left_out=0)}}


def test_factors_below_0_have_weight_too() -> None:
    rows = [row(1, "lps-0", d0=-0.5, d2=1.5), row(1, "lps-1", d1=1.0, d3=0.0)]
    factors = RuleFactors(experiment=parse_experiment(TEXT, overrides=[FLIP]), rows=rows, global_rounds={})
    assert factors.summary() == {"kept": {"lps": Kept(attackers=0.5 / 3, honest_left_out=1 / 3)}}


def test_without_attacks_there_is_no_summary_and_without_factors_no_table() -> None:
    honest = parse_experiment(TEXT)
    assert RuleFactors(experiment=honest, rows=ROWS, global_rounds={}).summary() == {"kept": None}
    assert RuleFactors(experiment=honest, rows=[pb.LpsRound(home_id="lps-0")], global_rounds={}).tables() == {}
