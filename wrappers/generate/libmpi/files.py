"""Bodies of calls on files."""

from __future__ import annotations

import re

from ..c_text import ADOPTED, adoption, real_call
from ..function_table import Function

# MPI_MODE_SEQUENTIAL allows no other accesses than with the shared file pointer, which may not be moved either.
NOT_SEQUENTIAL = re.compile(
    r"File_(i?(read|write)(_at)?(_all)?(_begin|_end)?|seek(_shared)?|get_position(_shared)?|get_byte_offset|set_size)"
    r"(_c)?"
)

# These use the individual file pointer, or ROMIO sets it back (_at_all). No test of a queued access may set it back
# meanwhile (file_access.c). The first ones don't wait for other ranks, so they can hold the file's lock. The others
# empty the queue first.
LOCKED = re.compile(r"File_(i?(read|write)|i(read|write)(_at)?_all|seek|get_position)(_c)?")
AFTER_QUEUED = re.compile(r"File_(read|write)_all(_begin)?(_c)?")


def file_body(f: Function) -> list[str]:
    """A call on a file: collective ones count on its row. A split access is done whole by its first half (file.h,
    invariant 5)."""
    if f.name.endswith("_end"):
        refused = (
            f'    if (MPY_UNLIKELY(status == NULL)) return mpy_file_error(mpy_file(fh), MPI_ERR_ARG, "{f.symbol}");'
        )
        return ["    (void)buf;", refused, f'    return mpy_file_split_end(fh, status, "{f.symbol}");']
    begin = re.search("_begin(_c)?$", f.name)
    out = [a for a in f.arguments if a.kind in ADOPTED or a.kind == "REQUEST_OUT"]
    lines = [f"    int real_{a.name};" for a in out]
    if f.clock == "-":
        lines += ["    mpy_thread_t *t = mpy_self();", "    mpy_file_t *f = mpy_file(fh);"]
    if begin:
        lines += [f'    if (mpy_file_between(fh)) return mpy_file_error(mpy_file(fh), MPI_ERR_IO, "{f.symbol}");']
    lines += (
        ["    mpy_cross_in(t);"]
        if f.clock == "-"
        else ["    mpy_file_call_t call = mpy_file_enter(fh);", "    mpy_file_t *f = call.f;"]
    )
    refused = "mpy_file_sequential(f) ? MPI_ERR_UNSUPPORTED_OPERATION : " if NOT_SEQUENTIAL.fullmatch(f.name) else ""
    locked = LOCKED.fullmatch(f.name)
    if locked:
        lines += ["    if (f != NULL) mpy_lock(&f->lock);"]
    if AFTER_QUEUED.fullmatch(f.name):
        lines += ["    if (f != NULL) mpy_file_settle(f);"]
    lines += [f"    int rc = {refused}{real_call(f, '')};"]
    if locked:
        lines += ["    if (f != NULL) mpy_unlock(&f->lock);"]
    if "shared" in f.name or "ordered" in f.name:
        lines += ["    if (f != NULL) f->shared = true;"]
    if begin:
        lines += [
            f"    if (f != NULL) f->split = MPY_REAL({f.name[: begin.start()]}_end)(f->real, buf, &f->split_status) "
            f"== 0;"
        ]
    for a in out:
        made = f"mpy_file_request({'t, NULL' if f.clock == '-' else 'call.t, f'}, real_request, buf, count, datatype)"
        lines += [f"    if (rc == 0) *{a.name} = {made if a.kind == 'REQUEST_OUT' else adoption(f, a)};"]
    lines += [
        "    mpy_cross_out(t);" if f.clock == "-" else "    mpy_file_leave(call, rc);",
        f'    return MPY_LIKELY(rc == 0) ? 0 : mpy_file_error(f, rc, "{f.symbol}");',
    ]
    return lines
