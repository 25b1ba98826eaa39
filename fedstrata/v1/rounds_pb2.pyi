from fedstrata.v1 import answers_pb2 as _answers_pb2
from fedstrata.v1 import tensors_pb2 as _tensors_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FetchModelRequest(_message.Message):
    __slots__ = ("run_id", "child_id", "home_id", "sent_round", "resume_round", "resume_offset", "held_round", "term", "resume_digest", "sent_digest", "answered_round", "mask_key", "roster_digest")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    CHILD_ID_FIELD_NUMBER: _ClassVar[int]
    HOME_ID_FIELD_NUMBER: _ClassVar[int]
    SENT_ROUND_FIELD_NUMBER: _ClassVar[int]
    RESUME_ROUND_FIELD_NUMBER: _ClassVar[int]
    RESUME_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HELD_ROUND_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    RESUME_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SENT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_ROUND_FIELD_NUMBER: _ClassVar[int]
    MASK_KEY_FIELD_NUMBER: _ClassVar[int]
    ROSTER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    child_id: str
    home_id: str
    sent_round: int
    resume_round: int
    resume_offset: int
    held_round: int
    term: int
    resume_digest: bytes
    sent_digest: bytes
    answered_round: int
    mask_key: MaskKey
    roster_digest: bytes
    def __init__(self, run_id: _Optional[str] = ..., child_id: _Optional[str] = ..., home_id: _Optional[str] = ..., sent_round: _Optional[int] = ..., resume_round: _Optional[int] = ..., resume_offset: _Optional[int] = ..., held_round: _Optional[int] = ..., term: _Optional[int] = ..., resume_digest: _Optional[bytes] = ..., sent_digest: _Optional[bytes] = ..., answered_round: _Optional[int] = ..., mask_key: _Optional[_Union[MaskKey, _Mapping]] = ..., roster_digest: _Optional[bytes] = ...) -> None: ...

class MaskKey(_message.Message):
    __slots__ = ("public_key", "signature", "certificate")
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    public_key: bytes
    signature: bytes
    certificate: bytes
    def __init__(self, public_key: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., certificate: _Optional[bytes] = ...) -> None: ...

class Roster(_message.Message):
    __slots__ = ("members", "certificates", "max_examples")
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATES_FIELD_NUMBER: _ClassVar[int]
    MAX_EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedCompositeFieldContainer[RosterMember]
    certificates: _containers.RepeatedScalarFieldContainer[bytes]
    max_examples: int
    def __init__(self, members: _Optional[_Iterable[_Union[RosterMember, _Mapping]]] = ..., certificates: _Optional[_Iterable[bytes]] = ..., max_examples: _Optional[int] = ...) -> None: ...

class RosterMember(_message.Message):
    __slots__ = ("device_id", "public_key", "signature", "certificate")
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    device_id: str
    public_key: bytes
    signature: bytes
    certificate: int
    def __init__(self, device_id: _Optional[str] = ..., public_key: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., certificate: _Optional[int] = ...) -> None: ...

class ModelPart(_message.Message):
    __slots__ = ("header", "waiting", "send_again", "finished", "data", "reply", "send_model", "go_on", "roster", "small")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    SEND_AGAIN_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    SEND_MODEL_FIELD_NUMBER: _ClassVar[int]
    GO_ON_FIELD_NUMBER: _ClassVar[int]
    ROSTER_FIELD_NUMBER: _ClassVar[int]
    SMALL_FIELD_NUMBER: _ClassVar[int]
    header: ModelHeader
    waiting: Waiting
    send_again: SendAgain
    finished: Finished
    data: bytes
    reply: UpdateReply
    send_model: SendModel
    go_on: GoOn
    roster: Roster
    small: bytes
    def __init__(self, header: _Optional[_Union[ModelHeader, _Mapping]] = ..., waiting: _Optional[_Union[Waiting, _Mapping]] = ..., send_again: _Optional[_Union[SendAgain, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ..., data: _Optional[bytes] = ..., reply: _Optional[_Union[UpdateReply, _Mapping]] = ..., send_model: _Optional[_Union[SendModel, _Mapping]] = ..., go_on: _Optional[_Union[GoOn, _Mapping]] = ..., roster: _Optional[_Union[Roster, _Mapping]] = ..., small: _Optional[bytes] = ...) -> None: ...

class ModelHeader(_message.Message):
    __slots__ = ("run_id", "round", "global_round", "evaluate_only", "payload", "offset", "plan_version", "digest", "cluster", "clusters", "begins_ns", "offered", "offers", "withdrawn", "told")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_ROUND_FIELD_NUMBER: _ClassVar[int]
    EVALUATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    PLAN_VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    CLUSTERS_FIELD_NUMBER: _ClassVar[int]
    BEGINS_NS_FIELD_NUMBER: _ClassVar[int]
    OFFERED_FIELD_NUMBER: _ClassVar[int]
    OFFERS_FIELD_NUMBER: _ClassVar[int]
    WITHDRAWN_FIELD_NUMBER: _ClassVar[int]
    TOLD_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    round: int
    global_round: int
    evaluate_only: bool
    payload: _tensors_pb2.PayloadHeader
    offset: int
    plan_version: int
    digest: bytes
    cluster: int
    clusters: int
    begins_ns: int
    offered: _containers.RepeatedScalarFieldContainer[int]
    offers: _containers.RepeatedCompositeFieldContainer[ClusterNumbers]
    withdrawn: _containers.RepeatedScalarFieldContainer[str]
    told: _answers_pb2.Answer
    def __init__(self, run_id: _Optional[str] = ..., round: _Optional[int] = ..., global_round: _Optional[int] = ..., evaluate_only: _Optional[bool] = ..., payload: _Optional[_Union[_tensors_pb2.PayloadHeader, _Mapping]] = ..., offset: _Optional[int] = ..., plan_version: _Optional[int] = ..., digest: _Optional[bytes] = ..., cluster: _Optional[int] = ..., clusters: _Optional[int] = ..., begins_ns: _Optional[int] = ..., offered: _Optional[_Iterable[int]] = ..., offers: _Optional[_Iterable[_Union[ClusterNumbers, _Mapping]]] = ..., withdrawn: _Optional[_Iterable[str]] = ..., told: _Optional[_Union[_answers_pb2.Answer, _Mapping]] = ...) -> None: ...

class ClusterNumbers(_message.Message):
    __slots__ = ("clusters",)
    CLUSTERS_FIELD_NUMBER: _ClassVar[int]
    clusters: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, clusters: _Optional[_Iterable[int]] = ...) -> None: ...

class Waiting(_message.Message):
    __slots__ = ("current_round",)
    CURRENT_ROUND_FIELD_NUMBER: _ClassVar[int]
    current_round: int
    def __init__(self, current_round: _Optional[int] = ...) -> None: ...

class GoOn(_message.Message):
    __slots__ = ("round", "cluster")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    round: int
    cluster: int
    def __init__(self, round: _Optional[int] = ..., cluster: _Optional[int] = ...) -> None: ...

class SendAgain(_message.Message):
    __slots__ = ("round", "announce")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ANNOUNCE_FIELD_NUMBER: _ClassVar[int]
    round: int
    announce: bool
    def __init__(self, round: _Optional[int] = ..., announce: _Optional[bool] = ...) -> None: ...

class SendModel(_message.Message):
    __slots__ = ("round",)
    ROUND_FIELD_NUMBER: _ClassVar[int]
    round: int
    def __init__(self, round: _Optional[int] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class UpdatePart(_message.Message):
    __slots__ = ("header", "data", "fetch", "answer", "announced", "small")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    FETCH_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    ANNOUNCED_FIELD_NUMBER: _ClassVar[int]
    SMALL_FIELD_NUMBER: _ClassVar[int]
    header: UpdateHeader
    data: bytes
    fetch: FetchModelRequest
    answer: RoundAnswer
    announced: UpdateHeader
    small: bytes
    def __init__(self, header: _Optional[_Union[UpdateHeader, _Mapping]] = ..., data: _Optional[bytes] = ..., fetch: _Optional[_Union[FetchModelRequest, _Mapping]] = ..., answer: _Optional[_Union[RoundAnswer, _Mapping]] = ..., announced: _Optional[_Union[UpdateHeader, _Mapping]] = ..., small: _Optional[bytes] = ...) -> None: ...

class RoundAnswer(_message.Message):
    __slots__ = ("run_id", "child_id", "home_id", "round", "answer", "then_fetch")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    CHILD_ID_FIELD_NUMBER: _ClassVar[int]
    HOME_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    THEN_FETCH_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    child_id: str
    home_id: str
    round: int
    answer: _answers_pb2.Answer
    then_fetch: FetchModelRequest
    def __init__(self, run_id: _Optional[str] = ..., child_id: _Optional[str] = ..., home_id: _Optional[str] = ..., round: _Optional[int] = ..., answer: _Optional[_Union[_answers_pb2.Answer, _Mapping]] = ..., then_fetch: _Optional[_Union[FetchModelRequest, _Mapping]] = ...) -> None: ...

class UpdateHeader(_message.Message):
    __slots__ = ("run_id", "child_id", "home_id", "round", "payload", "offset", "train_loss", "evaluations", "lps_rounds", "link_bytes", "exclusions", "lps_id", "term", "then_fetch", "base_digest", "num_examples", "work", "roster_digest", "unfit")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    CHILD_ID_FIELD_NUMBER: _ClassVar[int]
    HOME_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TRAIN_LOSS_FIELD_NUMBER: _ClassVar[int]
    EVALUATIONS_FIELD_NUMBER: _ClassVar[int]
    LPS_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    LINK_BYTES_FIELD_NUMBER: _ClassVar[int]
    EXCLUSIONS_FIELD_NUMBER: _ClassVar[int]
    LPS_ID_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    THEN_FETCH_FIELD_NUMBER: _ClassVar[int]
    BASE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    NUM_EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    WORK_FIELD_NUMBER: _ClassVar[int]
    ROSTER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    UNFIT_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    child_id: str
    home_id: str
    round: int
    payload: _tensors_pb2.PayloadHeader
    offset: int
    train_loss: float
    evaluations: _containers.RepeatedCompositeFieldContainer[Evaluation]
    lps_rounds: _containers.RepeatedCompositeFieldContainer[LpsRound]
    link_bytes: _containers.RepeatedCompositeFieldContainer[LinkBytes]
    exclusions: _containers.RepeatedCompositeFieldContainer[Exclusion]
    lps_id: str
    term: int
    then_fetch: FetchModelRequest
    base_digest: bytes
    num_examples: int
    work: Work
    roster_digest: bytes
    unfit: str
    def __init__(self, run_id: _Optional[str] = ..., child_id: _Optional[str] = ..., home_id: _Optional[str] = ..., round: _Optional[int] = ..., payload: _Optional[_Union[_tensors_pb2.PayloadHeader, _Mapping]] = ..., offset: _Optional[int] = ..., train_loss: _Optional[float] = ..., evaluations: _Optional[_Iterable[_Union[Evaluation, _Mapping]]] = ..., lps_rounds: _Optional[_Iterable[_Union[LpsRound, _Mapping]]] = ..., link_bytes: _Optional[_Iterable[_Union[LinkBytes, _Mapping]]] = ..., exclusions: _Optional[_Iterable[_Union[Exclusion, _Mapping]]] = ..., lps_id: _Optional[str] = ..., term: _Optional[int] = ..., then_fetch: _Optional[_Union[FetchModelRequest, _Mapping]] = ..., base_digest: _Optional[bytes] = ..., num_examples: _Optional[int] = ..., work: _Optional[_Union[Work, _Mapping]] = ..., roster_digest: _Optional[bytes] = ..., unfit: _Optional[str] = ...) -> None: ...

class Work(_message.Message):
    __slots__ = ("examples", "busy_ns", "computed_ns", "answer_bytes", "answer_examples")
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    BUSY_NS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_NS_FIELD_NUMBER: _ClassVar[int]
    ANSWER_BYTES_FIELD_NUMBER: _ClassVar[int]
    ANSWER_EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    examples: int
    busy_ns: int
    computed_ns: int
    answer_bytes: int
    answer_examples: int
    def __init__(self, examples: _Optional[int] = ..., busy_ns: _Optional[int] = ..., computed_ns: _Optional[int] = ..., answer_bytes: _Optional[int] = ..., answer_examples: _Optional[int] = ...) -> None: ...

class UpdateReply(_message.Message):
    __slots__ = ("run_id", "accepted", "current_round")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    CURRENT_ROUND_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    accepted: bool
    current_round: int
    def __init__(self, run_id: _Optional[str] = ..., accepted: _Optional[bool] = ..., current_round: _Optional[int] = ...) -> None: ...

class LocateUpdateRequest(_message.Message):
    __slots__ = ("run_id", "child_id", "home_id", "round")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    CHILD_ID_FIELD_NUMBER: _ClassVar[int]
    HOME_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    child_id: str
    home_id: str
    round: int
    def __init__(self, run_id: _Optional[str] = ..., child_id: _Optional[str] = ..., home_id: _Optional[str] = ..., round: _Optional[int] = ...) -> None: ...

class LocateUpdateResponse(_message.Message):
    __slots__ = ("run_id", "offset", "current_round")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    CURRENT_ROUND_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    offset: int
    current_round: int
    def __init__(self, run_id: _Optional[str] = ..., offset: _Optional[int] = ..., current_round: _Optional[int] = ...) -> None: ...

class Evaluation(_message.Message):
    __slots__ = ("device_id", "round", "loss_sum", "sums", "num_examples", "has_received", "received_loss_sum", "received_sums", "personal_sha256")
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    LOSS_SUM_FIELD_NUMBER: _ClassVar[int]
    SUMS_FIELD_NUMBER: _ClassVar[int]
    NUM_EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    HAS_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_LOSS_SUM_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_SUMS_FIELD_NUMBER: _ClassVar[int]
    PERSONAL_SHA256_FIELD_NUMBER: _ClassVar[int]
    device_id: str
    round: int
    loss_sum: float
    sums: _containers.RepeatedScalarFieldContainer[float]
    num_examples: int
    has_received: bool
    received_loss_sum: float
    received_sums: _containers.RepeatedScalarFieldContainer[float]
    personal_sha256: str
    def __init__(self, device_id: _Optional[str] = ..., round: _Optional[int] = ..., loss_sum: _Optional[float] = ..., sums: _Optional[_Iterable[float]] = ..., num_examples: _Optional[int] = ..., has_received: _Optional[bool] = ..., received_loss_sum: _Optional[float] = ..., received_sums: _Optional[_Iterable[float]] = ..., personal_sha256: _Optional[str] = ...) -> None: ...

class LpsRound(_message.Message):
    __slots__ = ("home_id", "global_round", "lps_round", "devices", "num_examples", "seconds", "bytes_up", "bytes_down", "train_loss", "loss_sum", "sums", "evaluated_examples", "lowest", "highest", "received_loss_sum", "received_sums", "received_examples", "times", "is_of_cohort", "factors")
    HOME_ID_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_ROUND_FIELD_NUMBER: _ClassVar[int]
    LPS_ROUND_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    NUM_EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    BYTES_UP_FIELD_NUMBER: _ClassVar[int]
    BYTES_DOWN_FIELD_NUMBER: _ClassVar[int]
    TRAIN_LOSS_FIELD_NUMBER: _ClassVar[int]
    LOSS_SUM_FIELD_NUMBER: _ClassVar[int]
    SUMS_FIELD_NUMBER: _ClassVar[int]
    EVALUATED_EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    LOWEST_FIELD_NUMBER: _ClassVar[int]
    HIGHEST_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_LOSS_SUM_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_SUMS_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    IS_OF_COHORT_FIELD_NUMBER: _ClassVar[int]
    FACTORS_FIELD_NUMBER: _ClassVar[int]
    home_id: str
    global_round: int
    lps_round: int
    devices: int
    num_examples: int
    seconds: float
    bytes_up: int
    bytes_down: int
    train_loss: float
    loss_sum: float
    sums: _containers.RepeatedScalarFieldContainer[float]
    evaluated_examples: int
    lowest: float
    highest: float
    received_loss_sum: float
    received_sums: _containers.RepeatedScalarFieldContainer[float]
    received_examples: int
    times: RoundTimes
    is_of_cohort: bool
    factors: Factors
    def __init__(self, home_id: _Optional[str] = ..., global_round: _Optional[int] = ..., lps_round: _Optional[int] = ..., devices: _Optional[int] = ..., num_examples: _Optional[int] = ..., seconds: _Optional[float] = ..., bytes_up: _Optional[int] = ..., bytes_down: _Optional[int] = ..., train_loss: _Optional[float] = ..., loss_sum: _Optional[float] = ..., sums: _Optional[_Iterable[float]] = ..., evaluated_examples: _Optional[int] = ..., lowest: _Optional[float] = ..., highest: _Optional[float] = ..., received_loss_sum: _Optional[float] = ..., received_sums: _Optional[_Iterable[float]] = ..., received_examples: _Optional[int] = ..., times: _Optional[_Union[RoundTimes, _Mapping]] = ..., is_of_cohort: _Optional[bool] = ..., factors: _Optional[_Union[Factors, _Mapping]] = ...) -> None: ...

class Factors(_message.Message):
    __slots__ = ("children", "factors")
    CHILDREN_FIELD_NUMBER: _ClassVar[int]
    FACTORS_FIELD_NUMBER: _ClassVar[int]
    children: _containers.RepeatedScalarFieldContainer[int]
    factors: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, children: _Optional[_Iterable[int]] = ..., factors: _Optional[_Iterable[float]] = ...) -> None: ...

class RoundTimes(_message.Message):
    __slots__ = ("begins_ns", "ends_ns", "ready_ns", "down_ns", "compute_ns", "up_ns", "waiting_ns", "children", "slowest", "flows", "next_bytes", "carried", "late", "contributions")
    BEGINS_NS_FIELD_NUMBER: _ClassVar[int]
    ENDS_NS_FIELD_NUMBER: _ClassVar[int]
    READY_NS_FIELD_NUMBER: _ClassVar[int]
    DOWN_NS_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_NS_FIELD_NUMBER: _ClassVar[int]
    UP_NS_FIELD_NUMBER: _ClassVar[int]
    WAITING_NS_FIELD_NUMBER: _ClassVar[int]
    CHILDREN_FIELD_NUMBER: _ClassVar[int]
    SLOWEST_FIELD_NUMBER: _ClassVar[int]
    FLOWS_FIELD_NUMBER: _ClassVar[int]
    NEXT_BYTES_FIELD_NUMBER: _ClassVar[int]
    CARRIED_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    begins_ns: int
    ends_ns: int
    ready_ns: int
    down_ns: int
    compute_ns: int
    up_ns: int
    waiting_ns: int
    children: int
    slowest: str
    flows: _containers.RepeatedCompositeFieldContainer[Flow]
    next_bytes: int
    carried: _containers.RepeatedCompositeFieldContainer[Carried]
    late: _containers.RepeatedCompositeFieldContainer[Flow]
    contributions: _containers.RepeatedCompositeFieldContainer[Contribution]
    def __init__(self, begins_ns: _Optional[int] = ..., ends_ns: _Optional[int] = ..., ready_ns: _Optional[int] = ..., down_ns: _Optional[int] = ..., compute_ns: _Optional[int] = ..., up_ns: _Optional[int] = ..., waiting_ns: _Optional[int] = ..., children: _Optional[int] = ..., slowest: _Optional[str] = ..., flows: _Optional[_Iterable[_Union[Flow, _Mapping]]] = ..., next_bytes: _Optional[int] = ..., carried: _Optional[_Iterable[_Union[Carried, _Mapping]]] = ..., late: _Optional[_Iterable[_Union[Flow, _Mapping]]] = ..., contributions: _Optional[_Iterable[_Union[Contribution, _Mapping]]] = ...) -> None: ...

class Contribution(_message.Message):
    __slots__ = ("child", "from_round", "asked_ns", "arrives_ns", "factor", "stream", "flow", "progress")
    CHILD_FIELD_NUMBER: _ClassVar[int]
    FROM_ROUND_FIELD_NUMBER: _ClassVar[int]
    ASKED_NS_FIELD_NUMBER: _ClassVar[int]
    ARRIVES_NS_FIELD_NUMBER: _ClassVar[int]
    FACTOR_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    FLOW_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    child: int
    from_round: int
    asked_ns: int
    arrives_ns: int
    factor: int
    stream: int
    flow: Flow
    progress: Progress
    def __init__(self, child: _Optional[int] = ..., from_round: _Optional[int] = ..., asked_ns: _Optional[int] = ..., arrives_ns: _Optional[int] = ..., factor: _Optional[int] = ..., stream: _Optional[int] = ..., flow: _Optional[_Union[Flow, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("at_ns", "received_ns", "carried")
    AT_NS_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_NS_FIELD_NUMBER: _ClassVar[int]
    CARRIED_FIELD_NUMBER: _ClassVar[int]
    at_ns: int
    received_ns: int
    carried: bytes
    def __init__(self, at_ns: _Optional[int] = ..., received_ns: _Optional[int] = ..., carried: _Optional[bytes] = ...) -> None: ...

class Carried(_message.Message):
    __slots__ = ("link", "direction", "child", "bytes", "link_ns", "achieved_link_ns", "latency_ns", "achieved_latency_ns", "is_answer", "examples")
    LINK_FIELD_NUMBER: _ClassVar[int]
    DIRECTION_FIELD_NUMBER: _ClassVar[int]
    CHILD_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    LINK_NS_FIELD_NUMBER: _ClassVar[int]
    ACHIEVED_LINK_NS_FIELD_NUMBER: _ClassVar[int]
    LATENCY_NS_FIELD_NUMBER: _ClassVar[int]
    ACHIEVED_LATENCY_NS_FIELD_NUMBER: _ClassVar[int]
    IS_ANSWER_FIELD_NUMBER: _ClassVar[int]
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    link: str
    direction: str
    child: int
    bytes: int
    link_ns: int
    achieved_link_ns: int
    latency_ns: int
    achieved_latency_ns: int
    is_answer: bool
    examples: int
    def __init__(self, link: _Optional[str] = ..., direction: _Optional[str] = ..., child: _Optional[int] = ..., bytes: _Optional[int] = ..., link_ns: _Optional[int] = ..., achieved_link_ns: _Optional[int] = ..., latency_ns: _Optional[int] = ..., achieved_latency_ns: _Optional[int] = ..., is_answer: _Optional[bool] = ..., examples: _Optional[int] = ...) -> None: ...

class Flow(_message.Message):
    __slots__ = ("child", "down_bytes", "up_bytes", "examples", "stream", "down_ns", "compute_ns", "up_ns", "away_ns", "answer_bytes", "answer_examples", "unsent_bytes")
    CHILD_FIELD_NUMBER: _ClassVar[int]
    DOWN_BYTES_FIELD_NUMBER: _ClassVar[int]
    UP_BYTES_FIELD_NUMBER: _ClassVar[int]
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    DOWN_NS_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_NS_FIELD_NUMBER: _ClassVar[int]
    UP_NS_FIELD_NUMBER: _ClassVar[int]
    AWAY_NS_FIELD_NUMBER: _ClassVar[int]
    ANSWER_BYTES_FIELD_NUMBER: _ClassVar[int]
    ANSWER_EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    UNSENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    child: int
    down_bytes: int
    up_bytes: int
    examples: int
    stream: int
    down_ns: int
    compute_ns: int
    up_ns: int
    away_ns: int
    answer_bytes: int
    answer_examples: int
    unsent_bytes: int
    def __init__(self, child: _Optional[int] = ..., down_bytes: _Optional[int] = ..., up_bytes: _Optional[int] = ..., examples: _Optional[int] = ..., stream: _Optional[int] = ..., down_ns: _Optional[int] = ..., compute_ns: _Optional[int] = ..., up_ns: _Optional[int] = ..., away_ns: _Optional[int] = ..., answer_bytes: _Optional[int] = ..., answer_examples: _Optional[int] = ..., unsent_bytes: _Optional[int] = ...) -> None: ...

class LinkBytes(_message.Message):
    __slots__ = ("link", "direction", "kind", "end", "bytes")
    LINK_FIELD_NUMBER: _ClassVar[int]
    DIRECTION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    link: str
    direction: str
    kind: str
    end: str
    bytes: int
    def __init__(self, link: _Optional[str] = ..., direction: _Optional[str] = ..., kind: _Optional[str] = ..., end: _Optional[str] = ..., bytes: _Optional[int] = ...) -> None: ...

class Exclusion(_message.Message):
    __slots__ = ("device_id", "stage", "reason")
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    device_id: str
    stage: str
    reason: str
    def __init__(self, device_id: _Optional[str] = ..., stage: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...
