"""FCDP for PyTorch modules: fully_shard(), the Sharded that it returns, and blocks(), the default division into units.
See README.md of manapy/fcdp.

Needs PyTorch: manapy's extra torch (docs/install.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    import ml_dtypes  # noqa: F401  makes bfloat16 known to numpy
    import torch  # noqa: F401
except ImportError as error:
    raise ImportError(f"manapy.fcdp.pytorch needs PyTorch, manapy's extra 'torch' ({error})") from None

from .grouping import blocks

if TYPE_CHECKING:
    from .sharded import Sharded, fully_shard

__all__ = ["Sharded", "blocks", "fully_shard"]


def __getattr__(name: str) -> Any:
    """Imports on first use: these need MPI, which importing mpi4py.MPI initialises."""
    if name in __all__:
        from . import sharded

        return getattr(sharded, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
