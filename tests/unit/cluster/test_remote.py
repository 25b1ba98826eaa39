"""Values, refusals and readiness of a run on Kubernetes, without one."""

import json
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from helm_python import values_from_yaml
from kubernetes import client
from rich.console import Console

from emulator.cluster import remote
from emulator.cluster import up as cluster_up
from emulator.cluster.forward import PodPort
from emulator.cluster.helm import BusyError, Helm, _refused, chart_of, check_chart
from emulator.cluster.release import Release
from emulator.cluster.release_objects import GpsAccess, InstalledRelease
from emulator.cluster.rollout import Seen
from emulator.cluster.up import UpRequest, load_for_cluster
from emulator.commands.main import execute
from emulator.shipped.share import CHART
from fedstrata.errors import AccountError, AddressError, DataError, ExperimentError, FedstrataError, RunStoppedError
from fedstrata.v1 import gps_service_pb2 as pb
from tests.support.releases import (
    DIGITS,
    LAB,
    QUIET,
    QUOTA,
    SCHEDULER,
    Noted,
    a_pod,
    a_set,
    a_warning,
    experiment,
    raising,
    up,
)

EXPERIMENTS = Path(__file__).resolve().parents[3] / "experiments"


def test_the_charts_own_words_are_told_as_an_error_of_the_values() -> None:
    error = _refused("execution error at (fedstrata/templates/x.yaml:1:3): device.replicas is 3,\n but 10 are needed")
    assert isinstance(error, ExperimentError)
    assert str(error) == "helm: device.replicas is 3, but 10 are needed"


def test_volumes_that_kubernetes_does_not_change_are_told_with_the_value_that_keeps_them() -> None:
    said = 'StatefulSet.apps "lab-lps" is invalid: spec: Forbidden: updates to statefulset spec for fields other than'
    error = _refused(f"UPGRADE FAILED: cannot patch: {said} 'replicas', 'template' are forbidden")
    assert isinstance(error, ExperimentError)
    assert "lps.persistence.enabled=false if an older chart" in str(error)


@pytest.mark.parametrize(("section", "key"), [("gps", "nodeSelector"), ("networkPolicy", "enabled")])
def test_a_section_of_the_values_without_keys_is_told_as_an_error_of_the_values(section: str, key: str) -> None:
    helm = Helm(Release(name="lab", namespace="edge"))
    with pytest.raises(ExperimentError, match=rf"section of the values is empty, so the chart finds no key {key} at"):
        helm.check(CHART, {"tls": {"mode": "off"}, section: None}, None)


@pytest.mark.parametrize(
    "said", ["release: already exists", "another operation (install/upgrade/rollback) is in progress"]
)
def test_a_release_that_another_changes_at_the_moment_is_told_as_that(said: str) -> None:
    assert "another program is changing this release" in str(_refused(said))


def test_a_role_with_more_rights_than_the_account_is_told_with_these_rights_and_what_to_do() -> None:
    events = '{APIGroups:[""], Resources:["events"], Verbs:["create"]}'
    scale = '{APIGroups:["apps"], Resources:["statefulsets/scale"], ResourceNames:["lab-lps"], Verbs:["get" "patch"]}'
    who = 'user "ann" (groups=["lab" "system:authenticated"])'
    what = f"is attempting to grant RBAC permissions not currently held:\n{events}\n{scale}"
    error = _refused(f'roles.rbac.authorization.k8s.io "lab-gps" is forbidden: {who} {what}')
    assert isinstance(error, AccountError)
    assert str(error) == (
        f"this account may not give the GPS's Role rights that the account lacks: {events}; {scale}. Ask your "
        "administrator for the Roles in helm/fedstrata/rights, or set gps.rbac.create to false and lps.replicas to the "
        "number of LPSs"
    )


def test_a_right_that_helm_lacks_is_told_with_where_the_rights_are() -> None:
    said = 'secrets is forbidden: User "ann" cannot list resource "secrets" in API group "" in the namespace "fl"'
    error = _refused(f"list: failed to list: {said}")
    assert isinstance(error, AccountError)
    assert said in str(error)
    assert str(error).endswith("Ask your administrator for the Roles in helm/fedstrata/rights")


@pytest.mark.parametrize("said", [
    'PersistentVolumeClaim "lab-gps" is invalid: spec: Forbidden: spec is immutable after creation except resources',
    'PersistentVolumeClaim \\"lab-gps\\" is invalid: spec.resources.requests.storage: Forbidden: field can not be less',
    'PersistentVolumeClaim "lab-gps" is forbidden: only dynamically provisioned pvc can be resized',
    'persistentvolumeclaims "lab-gps" is forbidden: only dynamically provisioned pvc can be resized',
])  # fmt: skip
def test_a_claim_that_kubernetes_does_not_change_is_told_with_the_values_that_keep_it(said: str) -> None:
    error = _refused(f"cannot patch it: {said}")
    assert isinstance(error, ExperimentError)
    assert str(error).startswith("helm: claim lab-gps cannot get another class")


def test_a_claim_that_a_quota_refuses_is_told_in_the_words_of_kubernetes() -> None:
    error = _refused(
        'persistentvolumeclaims "lab-gps" is forbidden: exceeded quota: small, requested: requests.storage=1Gi'
    )
    assert "exceeded quota: small" in str(error)
    assert "another class" not in str(error)


def test_a_long_message_ends_after_a_whole_word() -> None:
    said = str(_refused("unreachable " * 200))
    assert said.endswith("unreachable …")
    assert len(said) < 1000


def test_a_cluster_that_does_not_answer_is_an_error_of_the_network() -> None:
    assert isinstance(_refused("Kubernetes cluster unreachable: connection refused"), AddressError)


def test_a_folder_without_a_chart_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="no chart"):
        check_chart(tmp_path)


def test_this_machines_data_folder_does_not_go_to_the_cluster() -> None:
    path = EXPERIMENTS / "fmnist_three_tasks.yaml"
    told: list[str] = []
    here = load_for_cluster(path, ("data.folder=/somewhere/here",), None, told.append)
    assert "data.folder /somewhere/here is on this machine" in told[0]
    assert here.data.folder is None
    assert here.digest == load_for_cluster(path, (), None).digest


def test_a_file_that_pods_need_too_is_told_with_its_key_and_path(tmp_path: Path) -> None:
    (tmp_path / "owners.txt").write_text("0\n1\n")
    path = tmp_path / "lab.yaml"
    path.write_text("name: lab\npartition: {kind: given, file: owners.txt, devices: 2}\n")
    told: list[str] = []
    load_for_cluster(path, (), None, told.append)
    assert [line.partition(",")[0] for line in told] == [f"partition.file is {tmp_path / 'owners.txt'}"]


def test_a_kubernetes_that_accepts_calls_and_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emulator.cluster.secrets.REQUEST_S", 0.02)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        found = InstalledRelease.__new__(InstalledRelease)
        configuration = client.Configuration(host=f"http://127.0.0.1:{silent.getsockname()[1]}")
        configuration.retries = False
        api = client.ApiClient(configuration)
        found.configuration = configuration
        found._namespace, found._selector = "default", "app.kubernetes.io/instance=run"
        found._core, found._apps = client.CoreV1Api(api), client.AppsV1Api(api)
        with pytest.raises(AddressError, match="does not answer"):
            found.look()


@pytest.mark.parametrize(
    ("name", "namespace"),
    [
        ("Lab", "default"),
        ("lab_1", "default"),
        ("-lab", "default"),
        ("lab\n", "default"),
        ("lab.", "default"),
        ("lab", "a.b"),
        ("a" * 54, "default"),
        ("lab", "a" * 64),
        ("lab", "A"),
    ],
)
def test_a_name_that_kubernetes_refuses_is_refused_before_anything_is_begun(name: str, namespace: str) -> None:
    with pytest.raises(ExperimentError, match=r"lower-case letters, digits(, dots)? and hyphens"):
        Release(name=name, namespace=namespace)
    assert execute(["status", "--release", name, "--namespace", namespace]) == 2


def test_a_release_may_have_dots_because_helm_and_the_chart_allow_them() -> None:
    assert Release(name="fl.dev", namespace="lab").options == "--release fl.dev --namespace lab"


def test_where_own_code_is_not_here_the_charts_memory_holds_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "elsewhere.yaml"
    path.write_text(
        "name: elsewhere\ndata: {name: digits}\nmodel: {name: 'in_an_image:model'}\n"
        "partition: {kind: iid, devices: 2, examples_per_device: 9}\nmethod: fedavg\n"
    )
    noted = Noted(monkeypatch, chart=None)
    cluster_up.up(LAB, UpRequest(experiment=load_for_cluster(path, (), None)), Console())
    assert "device" not in noted.upgraded
    assert "the chart's or your values apply" in capsys.readouterr().out


def test_the_chart_of_a_release_is_told_by_the_command_and_by_the_library() -> None:
    assert chart_of({"name": "lab", "chart": "fedstrata-0.1.0"}) == "fedstrata-0.1.0"
    assert chart_of({"name": "lab", "chart_name": "fedstrata", "chart_version": "0.1.0"}) == "fedstrata-0.1.0"


# --- up and down, on a Helm and a Kubernetes that only note what they are asked -------------------------------------


@pytest.mark.parametrize("chart", ["ingress-nginx-4.1.0", "fedstrata-like-1.0.0", "postgresql-v12.1.3-rc.1"])
def test_a_release_of_another_chart_is_neither_upgraded_nor_removed(
    monkeypatch: pytest.MonkeyPatch, chart: str
) -> None:
    noted = Noted(monkeypatch, chart=chart, claims=["data-lab-0"])
    for attempt in (up, lambda: remote.down(LAB, deletes_records=True, console=QUIET)):
        with pytest.raises(ExperimentError, match=f"has chart {chart}, not fedstrata; nothing was changed"):
            attempt()
    assert noted.calls == []
    assert noted.upgraded == {}


def test_an_upgrade_keeps_the_values_given_before_under_those_given_now(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = Noted(monkeypatch)
    up("gps.env=[]")
    assert noted.upgraded["device"]["devicesPerPod"] == 5
    assert noted.upgraded["gps"] == {"env": []}
    assert noted.upgraded["experiment"] == experiment().to_yaml()
    noted.upgraded.clear()
    up(resets_values=True)
    assert set(noted.upgraded) == {"experiment", "again", "lps", "device", "tls"}  # what `up` works out itself
    assert noted.upgraded["lps"].keys() == {"replicas", "memoryMi"}
    assert noted.upgraded["device"].keys() == {"memoryMi"}


def test_certificates_are_there_before_the_chart_is_and_go_again_where_it_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noted = Noted(monkeypatch, chart=None)
    there: list[int] = []

    def upgrade(_: Helm, __: Path, values: dict[str, Any]) -> None:
        there.append(len(noted.secrets))
        noted.upgraded.update(values)

    monkeypatch.setattr(Helm, "upgrade", upgrade)
    up()
    assert there == [1 + 2 + 3 + 3]  # the authority, GPS and operator, LPSs that there may be, devices

    noted.secrets.clear()
    monkeypatch.setattr(Helm, "upgrade", raising(ExperimentError("helm: no")))
    with pytest.raises(ExperimentError, match="helm: no"):
        up()
    assert not noted.secrets


@pytest.mark.parametrize("mode", ["off", "secret", "cert-manager"])
def test_certificates_of_others_are_left_to_them(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    noted = Noted(monkeypatch, chart=None)
    up(f"tls.mode={mode}")
    assert noted.upgraded["tls"] == {"mode": mode}
    assert noted.secrets == {}


def test_a_failed_run_is_begun_again_once_and_the_word_stays_with_the_experiment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noted = Noted(monkeypatch)
    same, other = experiment(), experiment("seed=7")
    up(of=same, begins_again=True)
    word = noted.upgraded["again"]
    assert word
    up(of=same)
    assert noted.upgraded["again"] == word
    up(of=other)
    assert noted.upgraded["again"] == ""


@pytest.mark.parametrize(("phase", "says"), [("training", "is in training"), ("completed", "has completed, and its")])
def test_a_run_that_has_not_failed_is_not_begun_again(monkeypatch: pytest.MonkeyPatch, phase: str, says: str) -> None:
    noted = Noted(monkeypatch)
    same, other = experiment(), experiment("seed=7")
    monkeypatch.setattr("emulator.cluster.up.status", lambda *_, **__: pb.RunStatus(phase=phase, run_id=same.run_id))
    with pytest.raises(ExperimentError, match=f"--again begins a failed run again, but digits-.* {says}"):
        up(of=same, begins_again=True)
    assert noted.upgraded == {}
    up(of=other, begins_again=True, replaces_run=True)
    assert noted.upgraded["again"]


@pytest.mark.parametrize("error", [
    AddressError("the GPS's pod is Pending"), RunStoppedError("the GPS did not answer within 30 s")
])  # fmt: skip
def test_a_run_is_replaced_unasked_where_no_gps_is_ready_but_not_where_one_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, error: FedstrataError
) -> None:
    noted = Noted(monkeypatch)
    noted.kept["experiment"] = "name: before"
    monkeypatch.setattr("emulator.cluster.up.status", raising(error))
    ready = a_pod("lab-gps-0")
    monkeypatch.setattr(InstalledRelease, "gps_pods", lambda _: [ready])
    with pytest.raises(type(error), match=f"cannot ask the GPS whether a run is under way, .*: {error}"):
        up()
    with pytest.raises(type(error), match=f"cannot ask the GPS whether digits-.* has failed: {error}"):
        up(begins_again=True)
    assert noted.upgraded == {}
    ready.status.conditions[0].status = "False"
    up(begins_again=True)
    assert noted.upgraded["again"]


def test_a_partition_that_the_data_cannot_give_never_reaches_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = Noted(monkeypatch, chart=None)
    greedy = load_for_cluster(DIGITS, ("partition.tasks.0.examples_per_device=100000",), None)
    with pytest.raises(DataError, match=r"the training data has 578; lower partition\.tasks\.0"):
        up(of=greedy)
    assert (noted.calls, noted.upgraded) == ([], {})
    elsewhere = load_for_cluster(EXPERIMENTS / "fmnist_three_tasks.yaml", (), None)
    monkeypatch.setattr("emulator.shipped.data.load_dataset", raising(DataError("no fashion-mnist here")))
    values = ["data.type=hostPath", "data.hostPath=/data"]
    up(*values, of=elsewhere)
    assert noted.upgraded


@pytest.mark.parametrize("phase", ["enrolment", "training", "evaluation"])
def test_a_run_under_way_is_not_replaced_by_another_unasked(monkeypatch: pytest.MonkeyPatch, phase: str) -> None:
    noted = Noted(monkeypatch)
    first, other = experiment(), experiment("seed=7")
    noted.kept["experiment"] = first.to_yaml()
    monkeypatch.setattr("emulator.cluster.up.status", lambda *_, **__: pb.RunStatus(phase=phase, run_id=first.run_id))
    with pytest.raises(
        ExperimentError, match=f"has run {first.run_id} in phase {phase}; give another --release, or --replace"
    ):
        up(of=other)
    assert noted.upgraded == {}
    up(of=first)  # the same run: an upgrade
    up(of=other, replaces_run=True)
    assert noted.upgraded["experiment"] == other.to_yaml()


@pytest.mark.parametrize(("phase", "has_volumes", "is_refused"), [
    ("training", False, True), ("enrolment", False, False), ("training", True, False), ("failed", False, False),
])  # fmt: skip
def test_other_values_do_not_end_a_run_in_training_whose_lpss_have_no_volumes(
    monkeypatch: pytest.MonkeyPatch, phase: str, has_volumes: bool, is_refused: bool
) -> None:
    noted = Noted(monkeypatch)
    noted.kept["lps"] = {"persistence": {"enabled": has_volumes}}
    up()
    before = dict(noted.upgraded)
    monkeypatch.setattr(
        "emulator.cluster.up.status", lambda *_, **__: pb.RunStatus(phase=phase, run_id=experiment().run_id)
    )
    up()  # nothing changes
    if is_refused:
        with pytest.raises(ExperimentError, match=r"its LPSs have no volumes .* or give --replace"):
            up("image.tag=2")
    else:
        up("image.tag=2")
    assert (noted.upgraded == before) is is_refused


@pytest.mark.parametrize("phase", ["completed", "failed"])
def test_a_run_that_is_over_is_replaced_by_another(monkeypatch: pytest.MonkeyPatch, phase: str) -> None:
    noted = Noted(monkeypatch)
    noted.kept["experiment"] = "name: before"
    monkeypatch.setattr("emulator.cluster.up.status", lambda *_, **__: pb.RunStatus(phase=phase, run_id="before-0"))
    up()
    assert noted.upgraded


@pytest.mark.parametrize(("theirs", "said"), [
    ({"experiment": "name: other"}, "has changed experiment of release .*: run digits-.* was replaced"),
    ({"lps": {"env": [], "replicas": 3}, "image": {"tag": "2"}},
     "has changed image, lps of release .*: your values do not apply"),
])  # fmt: skip
def test_an_up_that_another_has_overtaken_does_not_report_success(
    monkeypatch: pytest.MonkeyPatch, theirs: dict[str, Any], said: str
) -> None:
    noted = Noted(monkeypatch, chart=None)
    monkeypatch.setattr(InstalledRelease, "wait_ready", lambda *_: noted.upgraded.update(theirs))
    with pytest.raises(AddressError, match=said):
        up()


def test_a_role_has_no_right_that_who_installs_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = Noted(monkeypatch, chart=None)
    up()
    assert "gps" not in noted.upgraded
    monkeypatch.setattr(InstalledRelease, "may", lambda _, verb, resource: (verb, resource) != ("create", "events"))
    up()
    assert noted.upgraded["gps"] == {"rbac": {"recordEvents": False}}


def test_values_of_another_form_are_refused_by_the_chart(monkeypatch: pytest.MonkeyPatch) -> None:
    Noted(monkeypatch, chart=None)
    monkeypatch.setattr(Helm, "check", raising(ExperimentError("helm: gps: got string, want object")))
    with pytest.raises(ExperimentError, match="want object"):
        up("gps=x")


def test_an_installation_waits_for_what_is_still_going(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = Noted(monkeypatch, chart=None)
    up()
    assert noted.calls == ["wait_gone", "kubernetes_version", "may", "warnings", "wait_ready"]


def test_an_uninstallation_waits_until_all_is_gone_and_names_the_claims_that_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noted = Noted(monkeypatch, claims=["lab-fedstrata-gps"])
    assert remote.down(LAB, deletes_records=False, console=QUIET).kept == ["lab-fedstrata-gps"]
    assert noted.calls == ["uninstall", "delete_tests", "wait_gone", "claims"]


def test_claims_that_an_uninstallation_has_left_can_be_deleted_later(monkeypatch: pytest.MonkeyPatch) -> None:
    Noted(monkeypatch, chart=None, claims=["lab-fedstrata-gps"])
    with pytest.raises(AddressError, match="--delete-records deletes what it has left: lab-fedstrata-gps"):
        remote.down(LAB, deletes_records=False, console=QUIET)
    done = remote.down(LAB, deletes_records=True, console=QUIET)
    assert (done.was_installed, done.deleted) == (False, ["lab-fedstrata-gps"])


def test_records_are_not_deleted_unasked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    noted = Noted(monkeypatch, claims=["lab-fedstrata-gps"])
    assert execute(["down", "--release", "lab", "--delete-records"]) == 2  # standard input is no terminal here
    assert "deletes lab-fedstrata-gps with all records; add --yes" in capsys.readouterr().err
    assert "uninstall" not in noted.calls
    assert execute(["down", "--release", "lab", "--delete-records", "--yes"]) == 0
    assert noted.calls[-4:] == ["uninstall", "delete_claims", "delete_tests", "wait_gone"]


# --- an installation or upgrade that fails half-way -----------------------------------------------------------------


class HalfWay:
    """A Helm that begins a revision and fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, before: int, begins: bool, error: BaseException) -> None:
        self.revision, self.undone = before, []  # type: tuple[int, list[str]]

        def upgrade(*_: object) -> None:
            self.revision += begins
            raise error

        monkeypatch.setattr(Helm, "revision", lambda _: self.revision)
        monkeypatch.setattr(Helm, "upgrade", upgrade)
        monkeypatch.setattr(Helm, "uninstall", lambda _: self.undone.append("uninstall"))
        monkeypatch.setattr(Helm, "roll_back", lambda _, revision: self.undone.append(f"roll back to {revision}"))


REFUSED = AccountError("this account lacks a right")


@pytest.mark.parametrize(("before", "begins", "error", "undone", "says"), [
    (0, True, REFUSED, ["uninstall"], "lacks a right. What had been installed of release lab was removed again"),
    (0, False, REFUSED, [], "lacks a right$"),
    (3, True, ExperimentError("helm: no"), ["roll back to 3"], "no. Release lab is again as it was before"),
    (3, False, ExperimentError("helm: no"), [], "helm: no$"),
    (0, True, BusyError("helm: another program"), [], "helm: another program$"),
    (3, True, BusyError("helm: another program"), [], "helm: another program$"),
    (0, True, KeyboardInterrupt(), ["uninstall"], "^$"),
    (3, True, KeyboardInterrupt(), ["roll back to 3"], "^$"),
])  # fmt: skip
def test_what_fails_half_way_is_undone(  # noqa: PLR0917  # a row of the table above
    monkeypatch: pytest.MonkeyPatch, before: int, begins: bool, error: BaseException, undone: list[str], says: str
) -> None:
    noted = Noted(monkeypatch, chart="fedstrata-0.2.0" if before else None)
    helm = HalfWay(monkeypatch, before=before, begins=begins, error=error)
    with pytest.raises(type(error), match=says):
        up()
    assert helm.undone == undone
    assert "wait_ready" not in noted.calls


@pytest.mark.parametrize(("before", "remedy"), [
    (0, "fedstrata down --release lab --namespace default"), (2, "helm rollback lab 2 --namespace default"),
])  # fmt: skip
def test_what_cannot_be_undone_is_said_with_the_command_that_does(
    monkeypatch: pytest.MonkeyPatch, before: int, remedy: str
) -> None:
    Noted(monkeypatch, chart="fedstrata-0.2.0" if before else None)
    HalfWay(monkeypatch, before=before, begins=True, error=REFUSED)
    for undo in ("uninstall", "roll_back"):
        monkeypatch.setattr(Helm, undo, raising(AddressError("helm: no answer")))
    with pytest.raises(AccountError, match=rf"A part .* could not be undone \(helm: no answer\): {remedy}"):
        up()


def test_pods_that_do_not_become_ready_stay_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    Noted(monkeypatch, chart=None)
    monkeypatch.setattr(InstalledRelease, "wait_ready", raising(RunStoppedError("pod lab-gps-0: ErrImagePull")))
    with pytest.raises(RunStoppedError, match=r"ErrImagePull. Release lab stays .* fedstrata down --release lab"):
        up()


# --- waiting --------------------------------------------------------------------------------------------------------


def release_that_sees(monkeypatch: pytest.MonkeyPatch, *moments: Seen) -> InstalledRelease:
    """A release's Kubernetes as it looks at one moment after the other; no time passes between them."""
    monkeypatch.setattr(InstalledRelease, "__init__", lambda *_: None)
    monkeypatch.setattr("emulator.cluster.release_objects.pass_time", lambda _: None)
    left = list(moments)
    monkeypatch.setattr(InstalledRelease, "look", lambda _: left.pop(0) if left[1:] else left[0])
    monkeypatch.setattr(InstalledRelease, "_delete_outdated", lambda *_: None)
    found = InstalledRelease(LAB)
    found.release, found._namespace, found.configuration = LAB, "default", client.Configuration()
    return found


def test_who_waits_is_told_how_far_it_is_each_time_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    pods = [a_pod(f"lab-lps-{n}") for n in range(3)]
    none, one = Seen(sets=[a_set(ready=0)]), Seen(sets=[a_set(ready=1)], pods=pods[:1])
    found = release_that_sees(monkeypatch, none, none, one, one, Seen(sets=[a_set()], pods=pods))
    told: list[str] = []
    found.wait_ready(60, told.append)
    assert told == ["0 of 3 pods are ready", "1 of 3 pods are ready"]


def test_a_right_tag_after_a_wrong_one_is_not_judged_by_the_wrong_ones_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    broken: dict[str, Any] = {"ready": False, "waiting": "ErrImagePull", "message": "no tag wrong"}
    outdated = Seen(sets=[a_set(ready=0)], pods=[a_pod("lab-lps-0", revision="old", **broken)])
    going = Seen(sets=[a_set(ready=0)], pods=[a_pod("lab-lps-0", going=True, **broken)])
    release_that_sees(monkeypatch, outdated, going, Seen(sets=[a_set()])).wait_ready(60, lambda _: None)
    newest = Seen(sets=[a_set(ready=0)], pods=[a_pod("lab-lps-0", **broken)])
    with pytest.raises(RunStoppedError, match="no tag wrong"):
        release_that_sees(monkeypatch, newest).wait_ready(60, lambda _: None)


def test_when_the_time_is_up_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Seen(sets=[a_set(ready=0)], warnings=[a_warning("StatefulSet", "lab-lps", QUOTA)])
    with pytest.raises(
        AddressError, match=r"not ready after -1 s: 0 of 3 pods are ready; StatefulSet lab-lps: .*quota"
    ):
        release_that_sees(monkeypatch, seen).wait_ready(-1, lambda _: None)


def test_a_refusal_that_lasts_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = Seen(sets=[a_set(ready=0)], warnings=[a_warning("StatefulSet", "lab-lps", QUOTA)])
    monkeypatch.setattr("emulator.cluster.release_objects.REFUSED_S", 0.0)
    with pytest.raises(RunStoppedError, match="exceeded quota: small; ask for a larger quota"):
        release_that_sees(monkeypatch, refused).wait_ready(60, lambda _: None)
    pods = [a_pod(f"lab-lps-{n}") for n in range(3)]
    release_that_sees(monkeypatch, refused, Seen(sets=[a_set()], pods=pods)).wait_ready(
        60, lambda _: None, refused.warnings
    )
    monkeypatch.setattr("emulator.cluster.release_objects.REFUSED_S", 60.0)
    release_that_sees(monkeypatch, refused, Seen(sets=[a_set()], pods=pods)).wait_ready(60, lambda _: None)


def test_what_is_going_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    camera = a_pod("camera-x", owner="camera", kind="ReplicaSet")  # a pod of the user's own, with external devices
    ours = [a_pod("lab-lps-0", going=True), a_pod("lab-1-x", owner="lab-1", kind="Job")]
    found = release_that_sees(monkeypatch, Seen(pods=[*ours, camera]), Seen(pods=[camera]))
    found.wait_gone(60, told.append)
    assert told == ["waiting for the end of pod lab-lps-0, pod lab-1-x"]


def test_without_the_right_to_forward_ports_that_is_what_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    found = release_that_sees(monkeypatch, Seen())
    monkeypatch.setattr(GpsAccess, "pod", lambda _, port: ("lab-gps-0", 50051))

    def refused(*_: object) -> None:
        raise client.ApiException(status=0, reason="Handshake status 403 Forbidden -+-+- {'date': 'today'}")

    monkeypatch.setattr("emulator.cluster.forward.PodPort._open", refused)
    with pytest.raises(AddressError, match="verbs get and create on pods/portforward"), GpsAccess(found).address():
        pass


def test_a_forwarded_port_leaves_no_thread_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PodPort, "_check", lambda _: None)
    monkeypatch.setattr(PodPort, "_open", raising(OSError("no pod")))
    before = set(threading.enumerate())
    with PodPort(client.Configuration(), "default", "lab-gps-0", 50051).forwarded() as address:
        (accepting,) = set(threading.enumerate()) - before
        with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) as carried:
            assert carried.recv(1) == b""  # the thread has passed this connection on, and waits for another
    accepting.join(5)
    assert not accepting.is_alive()


def test_a_gps_that_does_not_run_is_named_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emulator.cluster.release_objects.GPS_START_S", -1)
    pod = a_pod("lab-gps-0", owner="lab-gps", ready=False, unscheduled=SCHEDULER)
    pod.metadata.labels["app.kubernetes.io/component"], pod.status.phase = "gps", "Pending"
    found = release_that_sees(monkeypatch, Seen(sets=[a_set("lab-gps", wanted=1, ready=0)], pods=[pod]))
    with pytest.raises(AddressError, match="the GPS's pod lab-gps-0 is Pending: no node can run lab-gps-0: 0/3 nodes"):
        GpsAccess(found).pod()


def test_a_gps_that_ends_at_each_start_is_told_at_once_with_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    pod = a_pod("lab-gps-0", owner="lab-gps", ready=False, waiting="CrashLoopBackOff", last="error: the disk is full")
    pod.metadata.labels["app.kubernetes.io/component"], pod.status.phase = "gps", "Running"
    found = release_that_sees(monkeypatch, Seen(sets=[a_set("lab-gps", wanted=1, ready=0)], pods=[pod]))
    with pytest.raises(RunStoppedError, match="the GPS does not run: pod lab-gps-0: CrashLoopBackOff: error: the disk"):
        GpsAccess(found).pod()


def test_helms_library_runs_under_the_name_of_helm_so_that_both_manage_the_same_fields(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: dict[str, Any] = {}

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        seen.update(options, command=command)
        found = {"name": "lab", "chart_name": "fedstrata", "chart_version": "0.1.0"}
        return subprocess.CompletedProcess(command, 0, stdout=json.dumps({"result": [found]}), stderr="")

    monkeypatch.setattr("emulator.cluster.helm.shutil.which", lambda _: None)
    monkeypatch.setattr("emulator.cluster.helm.subprocess.run", run)
    assert Helm(Release(name="lab", namespace="edge", context="boards")).chart() == "fedstrata-0.1.0"
    assert seen["command"][0] == "helm"
    assert seen["executable"] == sys.executable
    request = json.loads(seen["input"])
    assert (request["call"], request["release"]) == ("list", "lab")
    assert request["config"] == {"namespace": "edge", "kubeconfig_path": None, "kube_context": "boards"}


@pytest.mark.parametrize("command", [None, "/bin/helm"])
def test_a_helm_that_does_not_end_is_told(monkeypatch: pytest.MonkeyPatch, command: str | None) -> None:
    monkeypatch.setattr("emulator.cluster.helm.shutil.which", lambda _: command)
    monkeypatch.setattr("emulator.cluster.helm.subprocess.run", raising(subprocess.TimeoutExpired("helm", 600)))
    with pytest.raises(AddressError, match="not finished after 600 s"):
        Helm(LAB).uninstall()


@pytest.mark.parametrize(
    ("version", "forced"), [("v3.19.0", []), ("v4.0.1", ["--server-side=true", "--force-conflicts"])]
)
def test_helm_3_and_helm_4_are_given_options_that_they_know(
    monkeypatch: pytest.MonkeyPatch, version: str, forced: list[str]
) -> None:
    """Helm 4 has no --all, and refuses --force-conflicts alone for a release that Helm 3 has made."""
    values = {"image": {"tag": "1234e56"}, "device": {"devicesPerPod": 5}, "experiment": "# 😀\n"}

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        said = {"version": f"{version}+g1234567", "list": "[]"}.get(command[3], "")
        if command[3] == "list" and ("--all" in command) is version.startswith("v4"):
            return subprocess.CompletedProcess(command, 1, stdout="", stderr="Error: unknown flag: --all")
        if command[3] == "upgrade":
            assert command[5:-4] == forced
            assert values_from_yaml(Path(command[-1]).read_text()) == values
        return subprocess.CompletedProcess(command, 0, stdout=said, stderr="")

    monkeypatch.setattr("emulator.cluster.helm.shutil.which", lambda _: "/bin/helm")
    monkeypatch.setattr("emulator.cluster.helm.subprocess.run", run)
    helm = Helm(LAB)
    assert helm.chart() is None
    helm.upgrade(Path("chart"), values)


def test_what_helms_library_says_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("emulator.cluster.helm.shutil.which", lambda _: None)
    kubeconfig = tmp_path / "config"
    kubeconfig.write_text("not: a kubeconfig")
    with pytest.raises(AddressError, match="helm: "):
        Helm(Release(name="lab", namespace="edge", kubeconfig=kubeconfig)).uninstall()
