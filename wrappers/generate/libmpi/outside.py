"""Functions that stand in for the real ones before MPI_Init and after MPI_Finalize."""

from __future__ import annotations

import re

from ..function_table import Table

ANY_TIME = re.compile(
    r"Init(_thread)?|Initialized|Finalized|Get_(library_)?version|Abi_get_(version|info)|Info_\w+|Error_(class|string)|"
    r"Pcontrol|Session_(init|create_errhandler)|Status_[gs]et_(error|source|tag|cancelled)|"
    r"\w+_(c2f|f2c|c2f08|f082c|f082f|f2f08|toint|fromint)|T_\w+"
)

# Families whose manual functions are answered without the real library, and without an object that is there only
# between the two.
ALONE = ("query", "errhandler", "attr", "dynamic")


def outside(table: Table) -> str:
    """What stands in the real library's table while it isn't up."""
    needing = [f for f in table.functions if not ANY_TIME.fullmatch(f.name)]
    return "\n".join(
        [
            *(f'static void outside_{f.name}(void) {{ mpy_called_outside("{f.symbol}"); }}' for f in needing),
            "void (*const mpy_outside[MPY_FN_COUNT])(void) = {",
            *(f"    [MPY_FN_{f.name}] = outside_{f.name}," for f in needing),
            "};",
            "const char *const mpy_names[MPY_FN_COUNT] = {",
            *(f'    "{f.symbol}",' for f in table.functions),
            "};",
            "",
        ]
    )
