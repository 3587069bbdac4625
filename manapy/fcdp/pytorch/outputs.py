"""The tensors in what modules receive and return: in the containers that torch knows, and in objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import torch
from torch import nn

# what torch's own sharding takes apart outputs with: knows those of other libraries
from torch.utils._pytree import tree_leaves, tree_map

NO_TENSORS_IN = (type, nn.Module, ModuleType, torch.dtype, torch.device, torch.layout, str, bytes, range)
PLAIN = ("builtins", "datetime", "enum", "numpy", "pathlib", "torch")  # modules whose types have no tensors inside


def cast(tree: Any, dtype: torch.dtype) -> Any:
    """The floating-point tensors of arguments or outputs in another type."""
    return tree_map(
        lambda leaf: leaf.to(dtype) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf, tree
    )


def tensors_of(tree: Any) -> tuple[list[torch.Tensor], str | None]:
    """The tensors, also in attributes of objects; and the type of something that can't be looked into, None if there is
    no such thing."""
    if isinstance(tree, torch.Tensor):
        return [tree], None
    found: list[torch.Tensor] = []
    opaque = None
    seen: dict[int, Any] = {}  # with the object, so that no other one gets its id
    left = [tree]
    while left:
        for leaf in tree_leaves(left.pop()):
            if isinstance(leaf, torch.Tensor):
                found.append(leaf)
            elif leaf is not None and id(leaf) not in seen and not isinstance(leaf, NO_TENSORS_IN):
                seen[id(leaf)] = leaf
                inside = _contents(leaf)
                if inside is None:
                    opaque = type(leaf).__name__
                else:
                    left.append(inside)
    return found, opaque


def _contents(thing: Any) -> list[Any] | None:
    """What it has in it, None if that is unknown."""
    names = [name for kind in type(thing).__mro__ for name in _slots(kind)]
    held = [getattr(thing, name) for name in names if hasattr(thing, name)] + list(
        getattr(thing, "__dict__", {}).values()
    )
    if isinstance(thing, Mapping):
        return held + list(thing.values())
    if isinstance(thing, list | tuple | set | frozenset):  # and what is derived from them
        return held + list(thing)
    return held if held or hasattr(thing, "__dict__") or type(thing).__module__.split(".")[0] in PLAIN else None


def _slots(kind: type) -> Iterator[str]:
    slots = kind.__dict__.get("__slots__", ())
    yield from (
        name for name in ([slots] if isinstance(slots, str) else slots) if name not in ("__dict__", "__weakref__")
    )


def cloned(tree: Any, wanted: Callable[[torch.Tensor], bool]) -> Any:
    """The same with copies of some tensors, through which gradients go on; only in the containers that torch knows."""
    return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) and wanted(leaf) else leaf, tree)
