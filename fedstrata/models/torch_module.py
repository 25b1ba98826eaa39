"""A model from a torch module, for architectures of one's own. All three tiers then need torch."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from fedstrata.errors import ExperimentError
from fedstrata.models.model import Model, tensors_of
from fedstrata.tensors import Flat, Layout

if TYPE_CHECKING:
    import torch


def from_module(module_factory: "Callable[[], torch.nn.Module]", shared: Iterable[str]) -> Model:
    """The model that a torch module describes; gps and lps build it too, so they need torch with it.

    Its arithmetic is the module's forward through `torch.func.functional_call`, its tensors the module's
    parameters, its initial weights what `module_factory()` draws from torch's generator, seeded. Refused is what
    would make a result depend on more than weights and inputs: running statistics, dropout.

    Args:
        module_factory: makes the module anew; may draw from torch's global generator and from nothing else.
        shared: names of the layers that all clusters share by default, for instance ["conv1"].
    """
    module = _seeded(module_factory, seed=0)
    _check(module)
    layout = Layout.of({name: parameter.shape for name, parameter in module.named_parameters()})

    def initial(seed: int) -> Flat:
        made = _seeded(module_factory, seed)
        return layout.flatten({name: parameter.detach().numpy() for name, parameter in made.named_parameters()})

    def logits(weights: "Mapping[str, torch.Tensor]", inputs: "torch.Tensor") -> "torch.Tensor":
        from torch.func import functional_call

        outputs: torch.Tensor = functional_call(module, dict(weights), (inputs,))
        return outputs

    return Model(layout=layout, shared=tensors_of(layout, shared), initial=initial, logits=logits)


def _seeded(module_factory: "Callable[[], torch.nn.Module]", seed: int) -> "torch.nn.Module":
    """A new module drawn from this seed; torch's generator is left as it was."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return module_factory()


def _check(module: "torch.nn.Module") -> None:
    import torch

    parameters = dict(module.named_parameters(remove_duplicate=False))
    kept = [name for name in module.state_dict() if name not in parameters]
    if kept:
        raise ExperimentError(
            f"the module keeps {', '.join(kept)} beside its parameters, which do not travel; use a normalisation "
            "without running statistics, and register constants with persistent=False"
        )
    for name, parameter in parameters.items():
        if parameter.dtype != torch.float32:
            raise ExperimentError(f"parameter {name} is {parameter.dtype}; weights are float32")
    random = [name for name, part in module.named_modules() if isinstance(part, torch.nn.modules.dropout._DropoutNd)]
    if random:
        raise ExperimentError(
            f"the module has dropout ({', '.join(random)}), which draws from torch's global generator: the same "
            "experiment would not give the same bits; leave it out"
        )
