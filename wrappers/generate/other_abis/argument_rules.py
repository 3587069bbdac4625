"""What fronts and backs know about arguments besides their kinds: which integers are constants, and how long arrays
are."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..constants import Constant
from .front_families import Family
from ..function_table import Argument, Function

# Integers that are constants, by the argument's name, or by FUNCTION.ARGUMENT where only this one is.
CONSTANTS = {
    "split_type": "SPLIT", "order": "ORDER", "typeclass": "TYPECLASS", "assert": "ASSERT", "lock_type": "LOCK",
    "errorcode": "ERROR", "errorclass": "ERROR", "combiner": "COMBINER", "rank_source": "RANK", "rank_dest": "RANK",
    "Topo_test.status": "TOPOLOGY", "bind": "T_BIND", "scope": "T_SCOPE", "verbosity": "T_VERBOSITY",
    "var_class": "T_CLASS", "cb_safety": "T_SAFETY", "result": "COMPARE", "required": "THREAD", "provided": "THREAD",
    "amode": "AMODE", "whence": "SEEK", "tag": "TAG", "sendtag": "TAG", "recvtag": "TAG",
}  # fmt: skip
RAW = {"Abort.errorcode"}  # the exit status of the job
OF_CONSTANTS = ("INT", "INT_OUT", "TAG", "T_CB_SAFETY")  # kinds of these arguments
BITS = ("AMODE", "ASSERT")  # groups whose values are bits
# Families of functions that take MPI_IN_PLACE.
WITH_IN_PLACE = ("collective", "nbc", "persistent", "topo")
# Groups that are translated by hand, also where they are the same.
ALWAYS = ("DISTRIBUTE", "ORDER")
NUMBERS = {*CONSTANTS.values(), *ALWAYS, "KEYVAL", "WIN_KEYVAL", "OFFSET", "T_ORDER"}
# Lengths that a communicator tells (the head of functions.txt).
OF_COMMUNICATOR = {
    "size(comm)": "PEERS", "root(comm)": "PEERS_AT_ROOT", "local(comm)": "LOCAL", "indegree(comm)": "SOURCES",
    "outdegree(comm)": "DESTINATIONS",
}  # fmt: skip


def group_translations(
    rows: list[Constant], family: Family, always: tuple[str, ...] = ()
) -> dict[str, list[tuple[int, int]]]:
    """For each group of numbers that differ between the two interfaces, and for those in `always`: pairs (MPICH's, the
    family's)."""
    found: dict[str, list[tuple[int, int]]] = {}
    for row in rows:
        theirs = family.value(row)
        if row.group in NUMBERS and isinstance(row.mpich, int) and isinstance(theirs, int):
            found.setdefault(row.group, []).append((row.mpich, theirs))
    return {group: pairs for group, pairs in found.items() if group in always or any(a != b for a, b in pairs)}


def of_function(names: Mapping[str, str], f: Function, a: Argument) -> str | None:
    """What `names` says about this argument."""
    qualified = f"{f.name}.{a.name}"
    return None if qualified in RAW else names.get(qualified, names.get(a.name))


def of_communicator(f: Function, a: Argument) -> bool:
    """Does a communicator tell the array's length?"""
    return f.argument("COMM") is not None and a.count in OF_COMMUNICATOR


def length_of(f: Function, a: Argument, members: Callable[[str, str], str]) -> str:
    """The length of an array, as a C expression. `members` makes that of a communicator's name and of a property: a
    value of OF_COMMUNICATOR."""
    comm = f.argument("COMM")
    if comm is None or a.count not in OF_COMMUNICATOR:
        return str(a.count)
    return members(comm.name, OF_COMMUNICATOR[a.count])


def ignored_in_place(a: Argument) -> bool:
    """If the buffer to send is MPI_IN_PLACE, this is ignored and may be no array at all."""
    return a.name in ("sendtypes", "sendcounts", "sdispls")


def ignored_count(f: Function, a: Argument) -> list[str]:
    """Conditions in C: if one holds, this number of elements means nothing and may be anything (MPI-4.1 6.4 to 6.8,
    11.8). The argument belongs to a collective on "comm", with its usual names."""
    if f.family not in WITH_IN_PLACE:
        return []
    side, name, root = a.name.removesuffix("count"), f.name.lower(), f.argument("ROOT")
    in_place = side == "send" or (side == "recv" and "scatter" in name and root is not None)
    found = [f"{side}buf == MPI_IN_PLACE"] if in_place else []
    if root is None:
        return found
    if side == ("send" if "scatter" in name else "recv"):
        return [f"mpy_length_at_root(comm, {root.name}) == 0"]
    # of an inter-communicator: MPI_ROOT, or MPI_PROC_NULL
    return [*found, f"{root.name} < 0"] if side else [f"{root.name} == MPI_PROC_NULL"]
