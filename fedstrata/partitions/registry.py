"""The kinds of partition by name. The module reads the section `partition` of an experiment file."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Union

from pydantic import Field, TypeAdapter, ValidationError

from fedstrata.errors import ExperimentError, PluginError
from fedstrata.experiment.error_lines import Chosen, one_line, unknown_key
from fedstrata.experiment.partition import PartitionSettings
from fedstrata.experiment.registry import Classes
from fedstrata.experiment.sections import MAX_DEVICES, PLUGIN
from fedstrata.partitions.base import Partition
from fedstrata.plugins import or_failed

# By name `module:Class`. The module is imported when the name is first used.
REGISTRY: Mapping[str, str] = {
    "tasks": "fedstrata.partitions.tasks:TaskPartition",
    "groups": "fedstrata.partitions.groups:GroupPartition",
    "dirichlet": "fedstrata.partitions.dirichlet:DirichletPartition",
    "iid": "fedstrata.partitions.iid:IidPartition",
    "label_dirichlet": "fedstrata.partitions.label_dirichlet:LabelDirichletPartition",
    "label_quantity": "fedstrata.partitions.label_quantity:LabelQuantityPartition",
    "pathological": "fedstrata.partitions.pathological:PathologicalPartition",
    "shards": "fedstrata.partitions.shards:ShardPartition",
    "quantity": "fedstrata.partitions.quantity:QuantityPartition",
    "feature_noise": "fedstrata.partitions.feature_noise:FeatureNoisePartition",
    "natural": "fedstrata.partitions.natural:NaturalPartition",
    "given": "fedstrata.partitions.given:GivenPartition",
    "local": "fedstrata.partitions.local_data:LocalPartition",
}
# Names in other libraries. The names are plain, as `plain_name` returns them.
ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(("dir", "labeldir", "noniidlabeldir", "heterodir", "practical"), "it is label_dirichlet here"),
    "pat": "it is pathological here",
    **dict.fromkeys(("noniid#label", "noniidlabel"), "it is label_quantity or shards here"),
    **dict.fromkeys(("noise", "featureskew"), "it is feature_noise here"),
    **dict.fromkeys(("iiddiffquantity", "unbalancediid"), "it is quantity here"),
}
PARTITIONS = Classes(section="partition", base=Partition, known=REGISTRY, elsewhere=ELSEWHERE, tag="kind")


def partition_settings(section: Any) -> Any:
    """Return the section `partition` as an object of the class of its kind.

    Raises:
        ExperimentError: no kind has the name, or the kind refuses a key or a value.
        PluginError: the user's own class is missing, or fails.
    """
    if not isinstance(section, Mapping):
        return section  # Experiment refuses it
    if "kind" not in section:
        raise ExperimentError(f"partition.kind: is missing, and has no default; choose {', '.join(REGISTRY)}")
    name = str(section["kind"])
    kind: Any = PARTITIONS.kind(name)
    if name in REGISTRY:
        return _checked(kind, name, section)
    with or_failed(f"partition {name} failed with", kind):
        found = _checked(kind, name, section)
        hash(found)  # assignments are kept by partition
        count = found.device_count
        _ = found.device_ids, found.most_examples, found.least_examples, found.true_groups
    if not (isinstance(count, int) and 1 <= count <= MAX_DEVICES):
        raise PluginError(f"partition {name}: device_count must be a number from 1 to {MAX_DEVICES}, not {count!r:.80}")
    return found


def _checked(kind: type[PartitionSettings], name: str, section: Mapping[str, Any]) -> PartitionSettings:
    try:
        return kind.model_validate(section)
    except ValidationError as error:
        known, own = partition_schema(), kind.model_json_schema(by_alias=True)
        schema = {"properties": {"partition": known}, "$defs": known["$defs"] | own.get("$defs", {})}
        chosen = Chosen(key="partition", tag="kind", form=name, schema=own)
        unknown = partial(unknown_key, schema=schema, chosen=chosen)
        raise ExperimentError(one_line(error, unknown, "partition")) from None


def partition_schema() -> dict[str, Any]:
    """Return the JSON Schema of the section `partition`, with the keys of each kind."""
    kinds: Any = Union[tuple(PARTITIONS.kind(name) for name in REGISTRY)]  # noqa: UP007  # made from the table
    found = TypeAdapter(Annotated[kinds, Field(discriminator="kind")]).json_schema(by_alias=True)
    kind = {"type": "string", "pattern": PLUGIN.pattern, "description": "Own code, as module:Class."}
    found["oneOf"].append({"type": "object", "properties": {"kind": kind}, "required": ["kind"]})
    return found
