"""mpich.h agrees with MPICH's mpi.h, and abi.txt with MPICH 5's header of the standard ABI."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from mpich_wheel import ABI, ROOT, evaluate, prefix

MPICH_H = ROOT / "wrappers/core/mpich.h"
TYPES = (
    "MPI_Comm MPI_Datatype MPI_Group MPI_Op MPI_Errhandler MPI_Request MPI_Message MPI_Info MPI_Win MPI_Session "
    "MPI_File MPI_Aint MPI_Count MPI_Offset MPI_Fint MPI_Status MPI_F08_status"
)
FIELDS = "count_lo count_hi_and_cancelled MPI_SOURCE MPI_TAG MPI_ERROR"


def test_constants_and_types_are_those_of_mpich(tmp_path: Path) -> None:
    place = prefix()
    text = MPICH_H.read_text()
    names = re.findall(r"^#define (MPIX?_\w+) ", text, re.M) + re.findall(r"^    (MPI_\w+) = ", text, re.M)
    assert len(names) > 200
    names += [f"sizeof({t})" for t in TYPES.split()] + [f"__builtin_offsetof(MPI_Status, {f})" for f in FIELDS.split()]
    ours = evaluate(names, f'#include "{MPICH_H}"', [], tmp_path)
    real = evaluate(names, "#include <mpi.h>", [f"-I{place}/include"], tmp_path)
    assert {n: (ours[n], real[n]) for n in names if ours[n] != real[n]} == {}


def rows() -> list[tuple[str, str, int]]:
    lines = (line.split("#")[0].split() for line in ABI.read_text().splitlines())
    return [(group, name, int(standard, 0)) for group, name, standard in filter(None, lines)]


def test_abi_values_are_those_of_the_header(tmp_path: Path) -> None:
    names = [name for _, name, _ in rows()]
    standard = evaluate(names, "#include <mpi.h>", [f"-I{prefix()}/include", "-DMPI_ABI"], tmp_path)
    assert {name: value for _, name, value in rows()} == standard


def test_abi_map_can_be_inverted(tmp_path: Path) -> None:
    mpich = evaluate([name for _, name, _ in rows()], f'#include "{MPICH_H}"', [], tmp_path)
    forward, backward = defaultdict(set), defaultdict(set)
    for group, name, standard in rows():
        forward[group, mpich[name]].add(standard)
        backward[group, standard].add(mpich[name])
    assert all(len(v) == 1 for v in forward.values())
    assert all(len(v) == 1 for v in backward.values())


def test_all_predefined_datatypes_are_mapped_or_mpich_only() -> None:
    mapped = {name for group, name, _ in rows() if group == "DATATYPE"}
    text = MPICH_H.read_text()
    types = set(re.findall(r"#define (MPIX?_\w+) \(\(int\)0x4c", text)) | set(
        re.findall(r"#define (MPI_\w+) \(\(int\)0x8c", text)
    )
    only = {"MPI_LB", "MPI_UB", "MPIX_C_FLOAT16", "MPIX_BFLOAT16"}
    assert {t for t in types - mapped if t not in only} <= {
        "MPI_REAL2",
        "MPI_COMPLEX4",
        "MPI_INTEGER16",
        "MPI_REAL16",
        "MPI_COMPLEX32",
    }
