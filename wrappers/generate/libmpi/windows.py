"""Bodies of operations on windows."""

from __future__ import annotations

import re

from ..c_text import real_call
from ..function_table import Function, TableError


def window_body(f: Function) -> list[str]:
    """An operation on a window: allowed in its epoch, or not; the request-based ones fill a slot. See window/win.h."""
    win, rank, request = f.argument("WIN"), f.argument("RANK"), f.argument("REQUEST_OUT")
    if win is None or rank is None:
        raise TableError(f"{f.symbol}: an operation on a window has a target")
    lines = ["    mpy_thread_t *t = mpy_self();"]
    lines += [
        f"    mpy_win_t *w = mpy_win({win.name});",
        f"    int rc = mpy_win_access(w, {rank.name});",
        f'    if (MPY_UNLIKELY(rc != 0)) return mpy_win_error(w, rc, "{f.symbol}");',
    ]
    if request:
        lines += ["    mpy_p2p_thread_t *th = mpy_p2p_self(t);", "    int real_request;"]
    if direct := re.fullmatch("(Put|Get)(_c)?", f.name):
        given = ", ".join(a.name for a in f.arguments if a is not win)
        lines += [f"    if (mpy_win_{direct[1].lower()}(t, w, {given})) return MPI_SUCCESS;"]
    lines += [
        "    mpy_cross_in(t);",
        f"    rc = {real_call(f, '')};",
        f"    mpy_win_issued(w, {rank.name});",
    ]
    if request:
        lines += [
            "    if (MPY_LIKELY(rc == 0)) *request = mpy_request_unrecorded(mpy_request_other(th, real_request, "
            "NULL))->handle;"
        ]
    lines += ["    mpy_cross_out(t);", f'    return MPY_LIKELY(rc == 0) ? 0 : mpy_win_error(w, rc, "{f.symbol}");']
    return lines
