"""The fault of a program that misuses MPI, by its name and its source: ranks, call and cause.

Pure: no program is run. The name CLASS-MPICall-Argument.c (ArgMismatch-MPIRecv-Tag-1.c) says the class of the error,
the call, and what of it is wrong. The source says which ranks make that call, by the conditions on the rank around it.

Invariants
 1. Nothing is read out of a name that has no class, or a source whose conditions aren't understood: `None` then, and
    nobody may claim that a verdict on it is right.
 2. A verdict is right only if its sentence names the call, or the other side of it; if its cause is one that this class
    can have; and if it accuses a rank that can be guilty, or tells of two ranks, of which one is.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

CLASSES = ("ArgError", "ArgMismatch", "MisplacedCall", "MissingCall")
# A call that fails ends its rank, so an error of arguments is reported as that. Rank -1 is no error in MPICH, but
# MPI_PROC_NULL: then the calls of two ranks do not agree.
CAUSES: Mapping[str, Collection[str]] = {
    "ArgError": ("dead process", "mismatched calls"),
    "ArgMismatch": ("mismatched calls", "dead process"),
    "MisplacedCall": ("deadlock", "mismatched calls", "missing call", "dead process"),
    "MissingCall": ("missing call", "mismatched calls", "dead process"),
}
# The words of a verdict for an argument, besides the calls that differ in it.
ARGUMENTS = {"tag": "tag", "communicator": "communicator", "root": "root"}
TESTS: Mapping[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}
SENDS, RECEIVES = ("send", "isend", "bsend", "ssend", "rsend"), ("recv", "irecv", "mrecv", "imrecv")


@dataclass(frozen=True)
class Fault:
    """kind: one of CLASSES. call: `recv` for MPI_Recv, `winfence` for MPI_Win_fence. argument: of the call, in lower
    case, or empty. guilty: the ranks that can be accused; None if the source doesn't tell."""

    kind: str
    call: str
    argument: str
    guilty: frozenset[int] | None


def of_program(stem: str, source: str, ranks: int) -> Fault | None:
    """The fault of a program. stem: the name of its file, without `.c`. None: its name doesn't tell."""
    words = stem.split("-")
    if len(words) < 2 or words[0] not in CLASSES or not words[1].startswith("MPI"):
        return None
    kind, call = words[0], words[1][len("MPI") :].lower()
    argument = words[2].lower() if len(words) > 2 and not words[2].isdigit() else ""
    return Fault(kind, call, argument, _guilty(kind, call, source, ranks))


def _guilty(kind: str, call: str, source: str, ranks: int) -> frozenset[int] | None:
    """The ranks that make the call. If a call is missing: the ranks that make it less often than others. If a message
    isn't sent or received: the ranks that aren't at its other end."""
    counts = callers(source, call, ranks)
    if counts is None:
        return None
    everybody = frozenset(range(ranks))
    if kind != "MissingCall":
        return frozenset(rank for rank, count in counts.items() if count) or everybody
    if not any(counts.values()):
        other = next((theirs for ours, theirs in ((SENDS, RECEIVES), (RECEIVES, SENDS)) if call in ours), ())
        ends = [there for name in other if (there := callers(source, name, ranks)) is not None]
        waiting = frozenset(rank for there in ends for rank, count in there.items() if count)
        return everybody - waiting or everybody
    least = min(counts.values())
    return frozenset(rank for rank, count in counts.items() if count == least)


def callers(source: str, call: str, ranks: int) -> dict[int, int] | None:
    """How often each rank makes a call, counted in lines of the source. A call under a condition on the rank is made by
    the ranks for which the condition holds. None: a condition isn't understood."""
    found = dict.fromkeys(range(ranks), 0)
    everybody = frozenset(range(ranks))
    inside: list[frozenset[int]] = [everybody]
    left = everybody  # by the conditions of the preceding chain of `if` and `else`
    pattern = re.compile(rf"\bmpi_?{'_?'.join(call)}\s*\(", re.IGNORECASE)
    token = re.compile(
        r"(?P<otherwise>else\s*(?=\{))"
        r"|(?P<test>(?:else\s+)?if\s*\((?P<condition>(?:[^()]|\([^()]*\))*)\)\s*(?P<block>\{)?)"
        rf"|(?P<open>\{{)|(?P<close>\}})|(?P<call>{pattern.pattern})",
        re.IGNORECASE,
    )
    chains: list[frozenset[int]] = []
    pending: frozenset[int] | None = None
    for at in token.finditer(_code(source)):
        if at["test"]:
            holds = _holds(at["condition"], ranks)
            if holds is None or at["block"] is None and len(holds) < ranks:
                return None
            if at["block"] is None:
                continue
            before = left if at["test"].lower().startswith("else") else everybody
            inside.append(inside[-1] & before & holds)
            chains.append(before - holds if _is_known(at["condition"]) else everybody)
        elif at["otherwise"]:
            pending = left
        elif at["open"]:
            inside.append(inside[-1] & pending if pending is not None else inside[-1])
            chains.append(everybody)
            pending = None
        elif at["close"]:
            if len(inside) == 1:
                return None
            inside.pop()
            left = chains.pop()
        else:
            for rank in inside[-1]:
                found[rank] += 1
    return found


def _code(source: str) -> str:
    """The source without comments, texts and preprocessor lines."""
    source = re.sub(r"/\*.*?\*/|//[^\n]*", " ", source, flags=re.DOTALL)
    return re.sub(r'"(?:\\.|[^"\\\n])*"|^\s*#[^\n]*$', '""', source, flags=re.MULTILINE)


def _is_known(condition: str) -> bool:
    """Is the condition about the rank, or about the arguments of the program, which gets none?"""
    return re.search(r"rank|\bargc\b", condition, re.IGNORECASE) is not None


def _holds(condition: str, ranks: int) -> frozenset[int] | None:
    """The ranks for which a condition may hold: all, if nothing is known about it."""
    if not _is_known(condition):
        return frozenset(range(ranks))
    plain = re.fullmatch(r"\s*(argc|\w*rank)\s*(%\s*\d+\s*)?([=!<>]=?)\s*(\d+)\s*", condition, re.IGNORECASE)
    if plain is None or plain[3] not in TESTS:
        return None
    value = {rank: 1 if plain[1] == "argc" else rank for rank in range(ranks)}
    if plain[2]:
        value = {rank: one % int(plain[2].strip("% ")) for rank, one in value.items()}
    return frozenset(rank for rank, one in value.items() if TESTS[plain[3]](one, int(plain[4])))


def wrong_with(fault: Fault, cause: str, rank: int | None, sentence: str) -> str:
    """What is wrong with a verdict on a program with this fault; empty if it names rank and cause."""
    if cause not in CAUSES[fault.kind]:
        return f"the cause is told as {cause}, of {fault.kind}"
    said = {word.replace("_", "").lower()[len("mpi") :] for word in re.findall(r"\bMPI_\w+", sentence)}
    if not any(_same(word, fault.call) for word in said):
        return f"MPI_{fault.call.capitalize()} is not named"
    if cause == "mismatched calls" and fault.argument in ARGUMENTS and ARGUMENTS[fault.argument] not in sentence:
        return f"the {fault.argument} is not named"
    told = set(map(int, re.findall(r"\branks? (\d+)", sentence)))
    told |= {int(one) for many in re.findall(r"\branks (\d+(?:, \d+)*)", sentence) for one in many.split(", ")}
    if cause in ("mismatched calls", "deadlock") and len(told) < 2:
        return f"{sorted(told)} named, of two that don't agree"
    accused = {rank} if rank is not None else told
    if fault.guilty is None:
        return "the ranks can't be read out of the source"
    return "" if accused & fault.guilty else f"{sorted(accused)} accused, of {sorted(fault.guilty)}"


def _same(said: str, call: str) -> bool:
    """Is this the call, its other side, or its nonblocking kind? `fence` stands for MPI_Win_fence."""
    for sides in (SENDS, RECEIVES):
        if call in sides:
            return said in (*SENDS, *RECEIVES)
    return said in (call, f"i{call}", call.removeprefix("i")) or said == f"win{call}"
