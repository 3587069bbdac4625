"""A rank whose process manager speaks PMIx: its messages about a broken libpmix or server, and the part of the binary
interface that pmix_abi.h declares."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from compiling import LOWER, SHARED, build, c_values
from test_rank import PATIENCE, Process
from waiting import until

# MANAPY_PMIX_SECONDS (pmix.c): with NEVER a rank that waits for the limit of its server's answers makes its test fail
NEVER, SOON = str(int(10 * PATIENCE)), "1"
WHO = "rank: Open MPI's mpirun has started this rank, but "


@pytest.fixture(scope="session")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """fake_pmix.c as a library."""
    source = Path(__file__).with_name("fake_pmix.c")
    return build(tmp_path_factory.mktemp("pmix") / "libpmix.so.2", source, *SHARED, f"-I{LOWER}")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Of one rank under Open MPI's mpirun. Nobody needs its coordinator."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PMI_", "SLURM_", "OMPI_", "PMIX_"))}
    return {
        **clean,
        "PMIX_NAMESPACE": "fake",
        "PMIX_RANK": "0",
        "MANAPY_COMMAND": "/bin/true",
        "MANAPY_PMIX_SECONDS": NEVER,
    }


def refusal(rank: Path, environment: dict[str, str], where: Path) -> str:
    """The one line of a rank that cannot join."""
    done = subprocess.run([rank], env=environment, cwd=where, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 1 and done.stdout == "" and done.stderr.count("\n") == 1, done
    assert not list(where.glob("manapy-*")), "a job directory was left behind"
    return done.stderr


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("crash at load", "ends the process|crashes: Segmentation fault"),
        ("crash in init", "libpmix.so.2 crashes: Aborted"),
        ("exit in init", "libpmix.so.2 ends the process"),
        ("hang in init", "its PMIx server does not answer within 1 s"),
        ("refuse", "libpmix.so.2 fails: UNREACHABLE"),
        ("another rank", "contradict each other: rank 7"),
        ("no size", "contradict each other: rank 0 of 0"),
    ],
)
def test_broken_library(
    driver: Callable[[str], Path], fake: Path, environment: dict[str, str], tmp_path: Path, how: str, text: str
) -> None:
    around = {"PMI_FD": "77", "PMI_RANK": "1", "PMI_SIZE": "2"}  # of another launcher, from which this one was started
    env = environment | around | {"MANAPY_LIBPMIX": str(fake), "FAKE_PMIX": how}
    if how == "hang in init":
        env["MANAPY_PMIX_SECONDS"] = SOON
    said = refusal(driver("rank"), env, tmp_path)
    assert said.startswith(WHO) and any(part in said for part in text.split("|"))


@pytest.mark.parametrize(
    ("library", "text"),
    [
        ("/nowhere/libpmix.so.2", "cannot be loaded: /nowhere/libpmix.so.2: cannot open"),
        ("/etc/passwd", "cannot be loaded: /etc/passwd: "),
        ("libm.so.6", "libm.so.6 is no usable libpmix: it has no PMIx_Init"),
    ],
)
def test_no_library(
    driver: Callable[[str], Path], environment: dict[str, str], tmp_path: Path, library: str, text: str
) -> None:
    said = refusal(driver("rank"), environment | {"MANAPY_LIBPMIX": library}, tmp_path)
    assert said.startswith(WHO) and text in said and "MANAPY_LIBPMIX" in said


@pytest.mark.parametrize("rank", ["", "one", "-1", "99999999999"])
def test_no_rank(driver: Callable[[str], Path], environment: dict[str, str], tmp_path: Path, rank: str) -> None:
    assert (
        refusal(driver("rank"), environment | {"PMIX_RANK": rank}, tmp_path) == f"rank: PMIX_RANK={rank} is no rank\n"
    )


def test_a_library_that_fails_later(
    driver: Callable[[str], Path], fake: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    """There is a job directory by then."""
    for how, text in (("put", "the process manager refused"), ("crash in fence", "connection is lost")):
        env = environment | {"MANAPY_LIBPMIX": str(fake), "FAKE_PMIX": how}
        done = subprocess.run([driver("rank")], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 1 and text in done.stderr and done.stderr.count("\n") == 1, done


def agents(library: Path) -> list[int]:
    """Process ids of those that have this libpmix open."""
    found = []
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            if str(library) in maps.read_text():
                found.append(int(maps.parent.name))
    return found


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


@pytest.mark.parametrize("how", ["fine", "hang in finalize"])
@pytest.mark.parametrize("end", ["asked", "dead"])
def test_the_conversation(
    driver: Callable[[str], Path], fake: Path, environment: dict[str, str], tmp_path: Path, how: str, end: str
) -> None:
    """It goes on beside the rank, in a process that is no child of it, until the rank ends it or is killed. A server
    that no longer answers then does no harm."""
    env = environment | {"MANAPY_LIBPMIX": str(fake), "FAKE_PMIX": how}
    if how == "hang in finalize":
        env["MANAPY_PMIX_SECONDS"] = SOON
    process = Process([str(driver("rank"))], env=env, cwd=tmp_path)
    try:
        assert process.expect("joined ").startswith("joined 0 1 1 ")
        [agent] = agents(fake)
        assert agent not in (process.process.pid, *map(int, children(process.process.pid)))
        for warning in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            os.kill(agent, warning)
        open_ones = [os.readlink(fd) for fd in Path(f"/proc/{agent}/fd").iterdir()]
        assert open_ones.count("/dev/null") == 3 and len(open_ones) == 5, "it has descriptors of its rank"
        if end == "asked":
            process.order("leave")
        else:
            process.kill()
        until(lambda: agent not in agents(fake), "the agent's end")
        if end == "asked":
            process.order("leave")  # nobody is there: nothing happens
    finally:
        process.kill()
    # the rank may have noticed already that its coordinator, /bin/true, has ended
    assert all("coordinator" in line for line in process.process.stderr.read().splitlines())


# Runs a command that pidfd_open(2) is forbidden to, as some containers do.
WITHOUT_PIDFDS = r"""
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(int argc, char **argv) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog filter = {sizeof code / sizeof *code, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) return 77;
    return argc < 2 || execv(argv[1], argv + 1);
}
"""


@pytest.mark.parametrize("closed", ["", "<&-", "<&- 2>&-"])
@pytest.mark.parametrize("pidfds", [True, False])
def test_a_rank_without_what_others_have(
    driver: Callable[[str], Path], fake: Path, environment: dict[str, str], tmp_path: Path, closed: str, pidfds: bool
) -> None:
    """It joins, although its standard streams are closed, or pidfds are forbidden. (Its order is the end of its
    standard input.)"""
    command = [driver("rank")] if pidfds else [build(tmp_path / "without", WITHOUT_PIDFDS), driver("rank")]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *command],
        env=environment | {"MANAPY_LIBPMIX": str(fake)},
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0 and "joined 0 1 1 " in done.stdout, done


HEADER = Path("/usr/lib/x86_64-linux-gnu/pmix2/include/pmix.h")
TYPES = {"pmix_proc_t": ("nspace", "rank"), "pmix_value_t": ("type", "data"), "pmix_info_t": ("key", "flags", "value")}
NUMBERS = ("PMIX_SUCCESS", "PMIX_BOOL", "PMIX_STRING", "PMIX_UINT32", "PMIX_GLOBAL", "PMIX_RANK_WILDCARD")
EXPRESSIONS = {
    **{f"sizeof {name}": f"sizeof({name})" for name in (*TYPES, "pmix_status_t", "pmix_rank_t", "pmix_scope_t")},
    **{f"{name}.{member}": f"offsetof({name}, {member})" for name, members in TYPES.items() for member in members},
    **{name: f"(uint32_t)({name})" for name in NUMBERS},
    "type of a value": "sizeof(((pmix_value_t *)0)->type)",
    "rank of a process": "sizeof(((pmix_proc_t *)0)->rank)",
}
KEYS = {"PMIX_JOB_SIZE": "pmix.job.size", "PMIX_LOCAL_SIZE": "pmix.local.size", "PMIX_COLLECT_DATA": "pmix.collect"}


@pytest.mark.skipif(not HEADER.exists(), reason="no pmix.h (apt install libpmix-dev)")
def test_declarations(tmp_path: Path) -> None:
    same = {key: f'__builtin_strcmp({key}, "{text}") == 0' for key, text in KEYS.items()}
    found = []
    for name, prologue, place in (
        ("ours", '#include "join/manager/pmix_abi.h"', LOWER),
        ("theirs", f'#include <stdint.h>\n#include "{HEADER}"', HEADER.parent),
    ):
        (tmp_path / name).mkdir()
        found.append(c_values(tmp_path / name, prologue, EXPRESSIONS | same, f"-I{place}"))
    assert found[0] == found[1] and all(found[0][key] for key in KEYS)


@pytest.mark.skipif(not HEADER.exists(), reason="no pmix.h (apt install libpmix-dev)")
def test_functions(tmp_path: Path) -> None:
    """Each function is of our type."""
    names = ("init", "finalize", "put", "commit", "fence", "get", "abort", "error_string")
    ours = {name: f"pmix_{name}_t" for name in names}
    text = (LOWER / "join/manager/pmix_abi.h").read_text()
    declared = "\n".join(
        " ".join(text[text.index(f"typedef {kind}") :].split(";")[0].split()) + ";"
        for name, kind in ((n, ("const char *" if n == "error_string" else "pmix_status_t ") + ours[n]) for n in names)
    )
    uses = "\n".join(f"{ours[name]} *use_{name} = PMIx_{name.capitalize()};" for name in names)
    build(
        tmp_path / "functions.o",
        f'#include "{HEADER}"\n{declared}\n{uses}\n',
        "-c",
        "-Wall",
        "-Werror",
        f"-I{HEADER.parent}",
    )
