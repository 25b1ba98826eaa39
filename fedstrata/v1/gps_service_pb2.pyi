from fedstrata.v1 import answers_pb2 as _answers_pb2
from fedstrata.v1 import rounds_pb2 as _rounds_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EnrollRequest(_message.Message):
    __slots__ = ("device_id", "device_index", "experiment_sha256", "num_examples", "process_id", "pod_name", "has_lost_state", "kernel", "num_held_out", "software")
    class SoftwareEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_INDEX_FIELD_NUMBER: _ClassVar[int]
    EXPERIMENT_SHA256_FIELD_NUMBER: _ClassVar[int]
    NUM_EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    POD_NAME_FIELD_NUMBER: _ClassVar[int]
    HAS_LOST_STATE_FIELD_NUMBER: _ClassVar[int]
    KERNEL_FIELD_NUMBER: _ClassVar[int]
    NUM_HELD_OUT_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    device_id: str
    device_index: int
    experiment_sha256: str
    num_examples: int
    process_id: str
    pod_name: str
    has_lost_state: bool
    kernel: str
    num_held_out: int
    software: _containers.ScalarMap[str, str]
    def __init__(self, device_id: _Optional[str] = ..., device_index: _Optional[int] = ..., experiment_sha256: _Optional[str] = ..., num_examples: _Optional[int] = ..., process_id: _Optional[str] = ..., pod_name: _Optional[str] = ..., has_lost_state: _Optional[bool] = ..., kernel: _Optional[str] = ..., num_held_out: _Optional[int] = ..., software: _Optional[_Mapping[str, str]] = ...) -> None: ...

class EnrollResponse(_message.Message):
    __slots__ = ("run_id", "is_late", "is_known")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    IS_LATE_FIELD_NUMBER: _ClassVar[int]
    IS_KNOWN_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    is_late: bool
    is_known: bool
    def __init__(self, run_id: _Optional[str] = ..., is_late: _Optional[bool] = ..., is_known: _Optional[bool] = ...) -> None: ...

class FetchAssignmentRequest(_message.Message):
    __slots__ = ("run_id", "device_id", "process_id")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    device_id: str
    process_id: str
    def __init__(self, run_id: _Optional[str] = ..., device_id: _Optional[str] = ..., process_id: _Optional[str] = ...) -> None: ...

class FetchAssignmentResponse(_message.Message):
    __slots__ = ("run_id", "is_assigned", "home_id", "lps_id", "lps_address")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    IS_ASSIGNED_FIELD_NUMBER: _ClassVar[int]
    HOME_ID_FIELD_NUMBER: _ClassVar[int]
    LPS_ID_FIELD_NUMBER: _ClassVar[int]
    LPS_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    is_assigned: bool
    home_id: str
    lps_id: str
    lps_address: str
    def __init__(self, run_id: _Optional[str] = ..., is_assigned: _Optional[bool] = ..., home_id: _Optional[str] = ..., lps_id: _Optional[str] = ..., lps_address: _Optional[str] = ...) -> None: ...

class RegisterLpsRequest(_message.Message):
    __slots__ = ("lps_id", "address", "experiment_sha256", "software")
    class SoftwareEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    LPS_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    EXPERIMENT_SHA256_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    lps_id: str
    address: str
    experiment_sha256: str
    software: _containers.ScalarMap[str, str]
    def __init__(self, lps_id: _Optional[str] = ..., address: _Optional[str] = ..., experiment_sha256: _Optional[str] = ..., software: _Optional[_Mapping[str, str]] = ...) -> None: ...

class RegisterLpsResponse(_message.Message):
    __slots__ = ("run_id", "is_grouped")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    IS_GROUPED_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    is_grouped: bool
    def __init__(self, run_id: _Optional[str] = ..., is_grouped: _Optional[bool] = ...) -> None: ...

class FetchClustersRequest(_message.Message):
    __slots__ = ("run_id", "lps_id", "known_version", "waits")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    LPS_ID_FIELD_NUMBER: _ClassVar[int]
    KNOWN_VERSION_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    lps_id: str
    known_version: int
    waits: _containers.RepeatedCompositeFieldContainer[Wait]
    def __init__(self, run_id: _Optional[str] = ..., lps_id: _Optional[str] = ..., known_version: _Optional[int] = ..., waits: _Optional[_Iterable[_Union[Wait, _Mapping]]] = ...) -> None: ...

class Wait(_message.Message):
    __slots__ = ("name", "what", "seconds")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    what: str
    seconds: float
    def __init__(self, name: _Optional[str] = ..., what: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...

class FetchClustersResponse(_message.Message):
    __slots__ = ("run_id", "is_grouped", "clusters", "plan_version", "is_over", "planned_rounds", "planned_ns", "told")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    IS_GROUPED_FIELD_NUMBER: _ClassVar[int]
    CLUSTERS_FIELD_NUMBER: _ClassVar[int]
    PLAN_VERSION_FIELD_NUMBER: _ClassVar[int]
    IS_OVER_FIELD_NUMBER: _ClassVar[int]
    PLANNED_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    PLANNED_NS_FIELD_NUMBER: _ClassVar[int]
    TOLD_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    is_grouped: bool
    clusters: _containers.RepeatedCompositeFieldContainer[Cluster]
    plan_version: int
    is_over: bool
    planned_rounds: int
    planned_ns: int
    told: _answers_pb2.Answer
    def __init__(self, run_id: _Optional[str] = ..., is_grouped: _Optional[bool] = ..., clusters: _Optional[_Iterable[_Union[Cluster, _Mapping]]] = ..., plan_version: _Optional[int] = ..., is_over: _Optional[bool] = ..., planned_rounds: _Optional[int] = ..., planned_ns: _Optional[int] = ..., told: _Optional[_Union[_answers_pb2.Answer, _Mapping]] = ...) -> None: ...

class Cluster(_message.Message):
    __slots__ = ("home_id", "members", "term", "global_round", "clusters", "mixed", "began_unix_ns", "refused")
    HOME_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_ROUND_FIELD_NUMBER: _ClassVar[int]
    CLUSTERS_FIELD_NUMBER: _ClassVar[int]
    MIXED_FIELD_NUMBER: _ClassVar[int]
    BEGAN_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    home_id: str
    members: _containers.RepeatedCompositeFieldContainer[Member]
    term: int
    global_round: int
    clusters: int
    mixed: _containers.RepeatedScalarFieldContainer[str]
    began_unix_ns: int
    refused: _containers.RepeatedCompositeFieldContainer[_rounds_pb2.Exclusion]
    def __init__(self, home_id: _Optional[str] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., term: _Optional[int] = ..., global_round: _Optional[int] = ..., clusters: _Optional[int] = ..., mixed: _Optional[_Iterable[str]] = ..., began_unix_ns: _Optional[int] = ..., refused: _Optional[_Iterable[_Union[_rounds_pb2.Exclusion, _Mapping]]] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("device_id", "device_index", "num_examples", "from_global_round", "cluster", "shares", "num_held_out", "began_in")
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_INDEX_FIELD_NUMBER: _ClassVar[int]
    NUM_EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    FROM_GLOBAL_ROUND_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    NUM_HELD_OUT_FIELD_NUMBER: _ClassVar[int]
    BEGAN_IN_FIELD_NUMBER: _ClassVar[int]
    device_id: str
    device_index: int
    num_examples: int
    from_global_round: int
    cluster: int
    shares: _containers.RepeatedCompositeFieldContainer[Share]
    num_held_out: int
    began_in: int
    def __init__(self, device_id: _Optional[str] = ..., device_index: _Optional[int] = ..., num_examples: _Optional[int] = ..., from_global_round: _Optional[int] = ..., cluster: _Optional[int] = ..., shares: _Optional[_Iterable[_Union[Share, _Mapping]]] = ..., num_held_out: _Optional[int] = ..., began_in: _Optional[int] = ...) -> None: ...

class Share(_message.Message):
    __slots__ = ("channel", "stream", "weight")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    channel: str
    stream: int
    weight: int
    def __init__(self, channel: _Optional[str] = ..., stream: _Optional[int] = ..., weight: _Optional[int] = ...) -> None: ...

class ReportPart(_message.Message):
    __slots__ = ("header", "data")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    header: ReportHeader
    data: bytes
    def __init__(self, header: _Optional[_Union[ReportHeader, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class ReportHeader(_message.Message):
    __slots__ = ("run_id", "lps_id", "home_id", "evaluations", "lps_rounds", "link_bytes", "exclusions", "model_sha256", "term", "now_ns", "busy_ns", "under_way", "period_ns", "taken_before")
    class BusyNsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    class TakenBeforeEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    LPS_ID_FIELD_NUMBER: _ClassVar[int]
    HOME_ID_FIELD_NUMBER: _ClassVar[int]
    EVALUATIONS_FIELD_NUMBER: _ClassVar[int]
    LPS_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    LINK_BYTES_FIELD_NUMBER: _ClassVar[int]
    EXCLUSIONS_FIELD_NUMBER: _ClassVar[int]
    MODEL_SHA256_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    NOW_NS_FIELD_NUMBER: _ClassVar[int]
    BUSY_NS_FIELD_NUMBER: _ClassVar[int]
    UNDER_WAY_FIELD_NUMBER: _ClassVar[int]
    PERIOD_NS_FIELD_NUMBER: _ClassVar[int]
    TAKEN_BEFORE_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    lps_id: str
    home_id: str
    evaluations: _containers.RepeatedCompositeFieldContainer[_rounds_pb2.Evaluation]
    lps_rounds: _containers.RepeatedCompositeFieldContainer[_rounds_pb2.LpsRound]
    link_bytes: _containers.RepeatedCompositeFieldContainer[_rounds_pb2.LinkBytes]
    exclusions: _containers.RepeatedCompositeFieldContainer[_rounds_pb2.Exclusion]
    model_sha256: str
    term: int
    now_ns: int
    busy_ns: _containers.ScalarMap[int, int]
    under_way: _containers.RepeatedCompositeFieldContainer[_rounds_pb2.Contribution]
    period_ns: int
    taken_before: _containers.ScalarMap[int, int]
    def __init__(self, run_id: _Optional[str] = ..., lps_id: _Optional[str] = ..., home_id: _Optional[str] = ..., evaluations: _Optional[_Iterable[_Union[_rounds_pb2.Evaluation, _Mapping]]] = ..., lps_rounds: _Optional[_Iterable[_Union[_rounds_pb2.LpsRound, _Mapping]]] = ..., link_bytes: _Optional[_Iterable[_Union[_rounds_pb2.LinkBytes, _Mapping]]] = ..., exclusions: _Optional[_Iterable[_Union[_rounds_pb2.Exclusion, _Mapping]]] = ..., model_sha256: _Optional[str] = ..., term: _Optional[int] = ..., now_ns: _Optional[int] = ..., busy_ns: _Optional[_Mapping[int, int]] = ..., under_way: _Optional[_Iterable[_Union[_rounds_pb2.Contribution, _Mapping]]] = ..., period_ns: _Optional[int] = ..., taken_before: _Optional[_Mapping[int, int]] = ...) -> None: ...

class SubmitReportResponse(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class ReportFailureRequest(_message.Message):
    __slots__ = ("run_id", "lps_id", "reason")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    LPS_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    lps_id: str
    reason: str
    def __init__(self, run_id: _Optional[str] = ..., lps_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ReportFailureResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchRunRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RunStatus(_message.Message):
    __slots__ = ("run_id", "phase", "reason", "global_round", "global_rounds", "lps_wanted", "clusters", "link_bytes", "devices", "has_record", "waits", "seconds", "virtual_ns", "epsilon_spent", "headline", "job")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_ROUND_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    LPS_WANTED_FIELD_NUMBER: _ClassVar[int]
    CLUSTERS_FIELD_NUMBER: _ClassVar[int]
    LINK_BYTES_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    HAS_RECORD_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    VIRTUAL_NS_FIELD_NUMBER: _ClassVar[int]
    EPSILON_SPENT_FIELD_NUMBER: _ClassVar[int]
    HEADLINE_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    phase: str
    reason: str
    global_round: int
    global_rounds: int
    lps_wanted: int
    clusters: _containers.RepeatedCompositeFieldContainer[ClusterStatus]
    link_bytes: _containers.RepeatedCompositeFieldContainer[_rounds_pb2.LinkBytes]
    devices: _containers.RepeatedCompositeFieldContainer[StateCount]
    has_record: bool
    waits: _containers.RepeatedCompositeFieldContainer[Wait]
    seconds: float
    virtual_ns: int
    epsilon_spent: float
    headline: Metric
    job: str
    def __init__(self, run_id: _Optional[str] = ..., phase: _Optional[str] = ..., reason: _Optional[str] = ..., global_round: _Optional[int] = ..., global_rounds: _Optional[int] = ..., lps_wanted: _Optional[int] = ..., clusters: _Optional[_Iterable[_Union[ClusterStatus, _Mapping]]] = ..., link_bytes: _Optional[_Iterable[_Union[_rounds_pb2.LinkBytes, _Mapping]]] = ..., devices: _Optional[_Iterable[_Union[StateCount, _Mapping]]] = ..., has_record: _Optional[bool] = ..., waits: _Optional[_Iterable[_Union[Wait, _Mapping]]] = ..., seconds: _Optional[float] = ..., virtual_ns: _Optional[int] = ..., epsilon_spent: _Optional[float] = ..., headline: _Optional[_Union[Metric, _Mapping]] = ..., job: _Optional[str] = ...) -> None: ...

class Metric(_message.Message):
    __slots__ = ("name", "title", "is_percent", "higher_is_better")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    IS_PERCENT_FIELD_NUMBER: _ClassVar[int]
    HIGHER_IS_BETTER_FIELD_NUMBER: _ClassVar[int]
    name: str
    title: str
    is_percent: bool
    higher_is_better: bool
    def __init__(self, name: _Optional[str] = ..., title: _Optional[str] = ..., is_percent: _Optional[bool] = ..., higher_is_better: _Optional[bool] = ...) -> None: ...

class ClusterStatus(_message.Message):
    __slots__ = ("home_id", "devices", "lps_round", "loss", "headline", "is_evaluated", "measured_round")
    HOME_ID_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    LPS_ROUND_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    HEADLINE_FIELD_NUMBER: _ClassVar[int]
    IS_EVALUATED_FIELD_NUMBER: _ClassVar[int]
    MEASURED_ROUND_FIELD_NUMBER: _ClassVar[int]
    home_id: str
    devices: int
    lps_round: int
    loss: float
    headline: float
    is_evaluated: bool
    measured_round: int
    def __init__(self, home_id: _Optional[str] = ..., devices: _Optional[int] = ..., lps_round: _Optional[int] = ..., loss: _Optional[float] = ..., headline: _Optional[float] = ..., is_evaluated: _Optional[bool] = ..., measured_round: _Optional[int] = ...) -> None: ...

class StateCount(_message.Message):
    __slots__ = ("state", "devices")
    STATE_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    state: str
    devices: int
    def __init__(self, state: _Optional[str] = ..., devices: _Optional[int] = ...) -> None: ...

class FetchRecordRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class FilePart(_message.Message):
    __slots__ = ("name", "data")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    name: str
    data: bytes
    def __init__(self, name: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class StopRunRequest(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class StopRunResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
