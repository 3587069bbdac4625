"""Divides the parameters of a module into groups that are gathered together.

1. A group is a module with the parameters that its forward pass needs and no inner group has. It is gathered when the
   module is called, or a part of the module that needs them is called by itself (an encoder, a head).
2. The remaining parameters, and those that several groups share (tied weights), are a group of the lowest module that
   contains all their places of use.
3. A group is split into units: trainable and frozen parameters, and each type, apart. A parameter keeps its name: the
   first one that the model gives it.

No MPI here.
"""

from __future__ import annotations

import os.path
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import nn

from ..engine.units import Unit
from ..errors import SetupError

FLOATING = (torch.float32, torch.float64, torch.float16, torch.bfloat16)  # those that numpy and ml_dtypes have, too
TRAINABLE = (torch.float32, torch.float64)  # types in which gradients can be summed and optimizers step
Units = Callable[[nn.Module], Iterable[nn.Module]]


@dataclass
class Member:
    """A unit and the module's parameters in it, by name, in the unit's order."""

    unit: Unit
    parameters: dict[str, nn.Parameter]


@dataclass
class GatherGroup:
    """Members are gathered and released together. entries: the module, and those in it whose forward pass needs the
    group's parameters, too."""

    module: nn.Module
    members: list[Member]
    entries: list[nn.Module]


def blocks(root: nn.Module) -> list[nn.Module]:
    """The children of the outermost ModuleLists and Sequentials: the blocks of a transformer, the layers of a
    perceptron."""
    return [
        block
        for child in root.children()
        for block in (
            [child] if isinstance(root, nn.ModuleList | nn.Sequential) and not _is_container(child) else blocks(child)
        )
    ]


def groups_of(root: nn.Module, units: Units, param_dtype: torch.dtype | None = None) -> list[GatherGroup]:
    """Groups in the order in which their modules come in the model, outer ones first.

    units: the modules that are to be groups; param_dtype: the type in which parameters are used, None for their own.
    Raises SetupError.
    """
    paths = {module: path for path, module in root.named_modules()}
    chosen = set(units(root))
    if not chosen <= paths.keys():
        raise SetupError("units contains modules that are not part of the model")
    chosen_paths = {paths[module] for module in chosen}
    places = _places(root)
    homes: dict[str, str | None] = {}  # None: what is left over or shared
    for name, uses in places.items():
        _check(name, root.get_parameter(name))
        found = {_innermost(path, chosen_paths) for path in uses}
        homes[name] = found.pop() if len(found) == 1 else None
    rest = _lowest(root, [path for name, home in homes.items() if home is None for path in places[name]])
    names = {
        path: [name for name, home in homes.items() if (rest if home is None else home) == path]
        for path in paths.values()
    }
    return [
        GatherGroup(module, _members(root, path, names[path], param_dtype), _entries(root, path, names[path], places))
        for module, path in paths.items()
        if names[path]
    ]


def _places(root: nn.Module) -> dict[str, list[str]]:
    """Return the paths of all modules that have a parameter, by the parameter's first name."""
    names: dict[int, str] = {}
    places: dict[str, list[str]] = {}
    for name, parameter in root.named_parameters(remove_duplicate=False):
        first = names.setdefault(id(parameter), name)
        places.setdefault(first, []).append(name.rpartition(".")[0])
    return places


def _entries(root: nn.Module, path: str, names: list[str], places: dict[str, list[str]]) -> list[nn.Module]:
    """Return the modules from the group's module down to those that have its parameters."""
    found = [path]
    for use in dict.fromkeys(use for name in names for use in places[name]):
        parts = use.split(".")
        found += [entry for end in range(1, len(parts) + 1) if len(entry := ".".join(parts[:end])) > len(path)]
    return list(dict.fromkeys(root.get_submodule(entry) for entry in found))


def _innermost(path: str, chosen: set[str]) -> str | None:
    """The longest of the chosen paths that leads to `path`."""
    parts = path.split(".")
    return next((".".join(parts[:end]) for end in range(len(parts), 0, -1) if ".".join(parts[:end]) in chosen), None)


def _lowest(root: nn.Module, paths: list[str]) -> str:
    """The path of the lowest module that contains all and has a forward pass."""
    parts = os.path.commonprefix([path.split(".") for path in paths])
    while parts and _is_container(root.get_submodule(".".join(parts))):
        parts = parts[:-1]
    return ".".join(parts)


def _is_container(module: nn.Module) -> bool:
    """Return whether a module only contains others, or parameters, and is never called."""
    return isinstance(module, nn.ModuleList | nn.ModuleDict | nn.ParameterList | nn.ParameterDict)


def _check(name: str, parameter: nn.Parameter) -> None:
    kind = str(parameter.dtype).removeprefix("torch.")
    if parameter.device.type not in ("cpu", "cuda", "meta"):
        raise SetupError(f"parameter {name} is on {parameter.device}: only CPUs and CUDA can be used")
    if not parameter.dtype.is_floating_point:
        raise SetupError(f"parameter {name} is of type {kind}: parameters must be floating-point numbers")
    if parameter.dtype not in FLOATING:
        raise SetupError(f"parameter {name} is of type {kind}: frozen parameters must have 16, 32 or 64 bits")
    if parameter.requires_grad and parameter.dtype not in TRAINABLE:
        raise SetupError(
            f"parameter {name} is {kind}: trainable parameters must be float32 or float64;"
            " mp_policy gives the type in which they are used"
        )


def _members(root: nn.Module, path: str, names: list[str], param_dtype: torch.dtype | None) -> list[Member]:
    kinds: dict[tuple[bool, str], dict[str, nn.Parameter]] = {}
    for name in names:
        parameter = root.get_parameter(name)
        kinds.setdefault((not parameter.requires_grad, str(parameter.dtype).removeprefix("torch.")), {})[name] = (
            parameter
        )
    used_as = str(param_dtype).removeprefix("torch.") if param_dtype else None
    members = []
    for frozen, dtype in sorted(kinds):
        parameters = kinds[frozen, dtype]
        several = sum(kind[0] == frozen for kind in kinds) > 1
        label = ", ".join([path or "model", *(["frozen"] if frozen else []), *([dtype] if several else [])])
        shapes = tuple((name, tuple(parameter.shape)) for name, parameter in parameters.items())
        members.append(
            Member(Unit(label, shapes, not frozen, dtype, used_as if used_as != dtype else None), parameters)
        )
    return members
