"""A C program, generated from the wrappers' table, that calls every function of MPI with a NULL, or outside of MPI_Init
and MPI_Finalize. It prints the result of each call. The results must be the same natively and under manapy."""

from __future__ import annotations

import sys
from pathlib import Path

WRAPPERS = Path(__file__).resolve().parents[3] / "wrappers"
sys.path.insert(0, str(WRAPPERS))

from generate import Argument, Function, read_table  # noqa: E402

TABLE = read_table(WRAPPERS / "table" / "functions.txt")

# The argument of a call, by kind. All pointers that aren't listed get zeroed memory.
GIVEN = {
    "AINT": "8", "COMM": "comm", "COUNT": "1", "COUNT_C": "1", "DATATYPE": "MPI_INT", "DATATYPE_ARRAY": "types",
    "DATATYPE_ARRAY_MUT": "types",
    "BUFFER_IN": "input", "MESSAGE_INOUT": "&message", "REQUEST_INOUT": "requests", "REQUEST_ARRAY": "requests",
    "REQUEST_ARRAY_INOUT": "requests",
    "DOUBLE": "0", "ERRHANDLER": "MPI_ERRORS_RETURN", "FILE": "file", "FINT": "0", "GROUP": "group", "INFO": "info",
    "INT": "1", "KEYVAL": "keyval",
    "MESSAGE": "MPI_MESSAGE_NULL", "OFFSET": "0", "OP": "MPI_SUM", "RANK": "MPI_PROC_NULL",
    "REQUEST": "MPI_REQUEST_NULL", "ROOT": "0",
    "SESSION": "session", "STRING": '"key"', "TAG": "1", "WIN": "win",
    "INT_ARRAY": "ones", "INT_ARRAY_MUT": "ones", "COUNT_C_ARRAY": "many", "AINT_ARRAY": "many",
    "AINT_ARRAY_MUT": "many",
}  # fmt: skip
# They begin or end MPI or the job, have no prototype in mpi.h, or need arguments that can't be invented.
LEFT_OUT = {"MPI_Init", "MPI_Init_thread", "MPI_Finalize", "MPI_Abort", "MPI_Pcontrol"}

FRAME = """#include <mpi.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static long space[4096];
static long input[4096];
static MPI_Request requests[64];
static MPI_Message message;
static int ones[64];
static MPI_Count many[64];
static MPI_Datatype types[64];
static MPI_Comm comm = MPI_COMM_WORLD;
static MPI_Group group = MPI_GROUP_EMPTY;
static MPI_Info info = MPI_INFO_NULL;
static MPI_File file = MPI_FILE_NULL;
static MPI_Win win = MPI_WIN_NULL;
static MPI_Session session = MPI_SESSION_NULL;
static int keyval = MPI_KEYVAL_INVALID;
static jmp_buf back;
static int calling;

/* A call outside of MPI_Init and MPI_Finalize ends the process so. */
void exit(int status)
{
    if (calling) longjmp(back, 1);
    fflush(NULL);
    _exit(status);
}

static int nothing(void)
{
    return 0;
}

static void say(const char *what, int code)
{
    int class = code;

    if (code != 0) MPI_Error_class(code, &class);
    printf("%s %d\\n", what, class);
    fflush(stdout);
}

#define CALL(number, name, call) \\
    if (wanted[number] == '1') { \\
        memset(space, 0, sizeof space); \\
        for (int i = 0; i < 64; i++) requests[i] = MPI_REQUEST_NULL; \\
        message = MPI_MESSAGE_NO_PROC; \\
        printf("%d %s ", number, name); \\
        fflush(stdout); \\
        calling = 1; \\
        if (setjmp(back) == 0) say("returned", (int)(long)(call)); \\
        else puts("exited"), fflush(stdout); \\
        calling = 0; \\
    }

"""


def functions() -> list[Function]:
    """The functions that a program can call here."""
    return [f for f in TABLE.functions if f.cls != "unsupported" and f.family != "tools" and f.symbol not in LEFT_OUT]


def outputs(f: Function) -> list[Argument]:
    """The arguments into which the call writes one value or as many as another argument says, or from which it reads a
    string."""
    found = []
    for a in f.arguments:
        if a.kind.endswith(("_OUT", "_INOUT", "STATUS", "STRING")) and "ARRAY" not in a.kind:
            found.append(a)
        elif a.count is not None and any(a.count == other.name for other in f.arguments):
            found.append(a)
    return found


def cases() -> list[tuple[str, Function, Argument]]:
    """Each call with one NULL: `MPI_Comm_dup newcomm`."""
    return [(f"{f.symbol} {a.name}", f, a) for f in functions() for a in outputs(f)]


def _call(f: Function, null: Argument | None = None) -> str:
    given = (GIVEN.get(a.kind, "(void *)nothing" if a.kind.startswith("FN_") else "(void *)space") for a in f.arguments)
    return f"{f.symbol}({', '.join('NULL' if a is null else one for a, one in zip(f.arguments, given, strict=True))})"


def _main(before: list[str], lines: list[str]) -> str:
    body = [*before, *lines, 'puts("end");', "fflush(stdout);", "_exit(0);"]
    begin = ["int main(int argc, char **argv)", "{", "    const char *wanted = argv[1];", ""]
    return FRAME + "\n".join([*begin, *(f"    {line}" for line in body), "}", ""])


def nulls() -> str:
    """The program that makes all cases that are 1 in its first argument. Its second argument is the name of a file."""
    before = [
        "MPI_Init(&argc, &argv);",
        "MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);",
        "MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);",
        "MPI_Comm_group(comm, &group);",
        "MPI_Info_create(&info);",
        "MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_RETURN, &session);",
        "MPI_Win_allocate(8, 1, MPI_INFO_NULL, comm, space, &win);",
        "MPI_Win_set_errhandler(win, MPI_ERRORS_RETURN);",
        "MPI_Win_fence(0, win);",
        "MPI_File_open(comm, argv[2], MPI_MODE_RDWR | MPI_MODE_CREATE, MPI_INFO_NULL, &file);",
        "MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, MPI_COMM_NULL_DELETE_FN, &keyval, NULL);",
        "for (int i = 0; i < 64; i++) { ones[i] = 1; many[i] = 1; types[i] = MPI_INT; }",
    ]
    return _main(before, [f'CALL({i}, "{name}", {_call(f, a)})' for i, (name, f, a) in enumerate(cases())])


def outside() -> str:
    """The program that makes the calls that are 1 in its first argument. It makes them before MPI_Init, or, with a
    second argument, after MPI_Finalize."""
    before = ["if (argc > 2) {", "    MPI_Init(&argc, &argv);", "    MPI_Finalize();", "}"]
    return _main(before, [f'CALL({i}, "{f.symbol}", {_call(f)})' for i, f in enumerate(functions())])
