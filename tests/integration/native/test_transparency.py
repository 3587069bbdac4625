"""A program under manapy-launch behaves as without it: same output, same exit code, same end.

Each test does the same natively and under manapy-launch, and compares.
"""

from __future__ import annotations

import json
import os
import signal
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from compiling import build
from jobs import BIN, PROGRAMS

TIMEOUT = 90
PROBE = PROGRAMS / "native/transparency.py"


@dataclass(frozen=True)
class Outcome:
    """How one mpirun ended."""

    code: int
    out: str
    err: str


@dataclass
class Both:
    """Runs commands natively and under manapy-launch, in the same directory."""

    where: Path
    ranks: int = 1

    def run(
        self, command: Sequence[str | Path], launched: bool, stdin: str = "", env: dict[str, str] | None = None
    ) -> Outcome:
        prefix: list[str | Path] = [BIN / "mpirun", "-n", str(self.ranks)]
        if launched:
            prefix += [BIN / "manapy-launch", "--dir", self.where / f"job-{len(list(self.where.glob('job-*')))}"]
        cwd = self.where / "cwd"
        cwd.mkdir(exist_ok=True)
        for _ in range(5):
            done = subprocess.run(
                [str(c) for c in [*prefix, *command]],
                input=stdin,
                capture_output=True,
                text=True,
                timeout=TIMEOUT,
                cwd=cwd,
                env={**os.environ, "PYTHONUNBUFFERED": "", **(env or {})},
            )
            # MPICH's mpirun itself may die of SIGPIPE if a program ends before its input was passed on
            if done.returncode != -signal.SIGPIPE:
                break
        return Outcome(done.returncode, comparable(done.stdout), comparable(done.stderr))

    def same(self, *command: str | Path, stdin: str = "", env: dict[str, str] | None = None) -> Outcome:
        """Both outcomes are equal; returns it."""
        native = self.run(command, False, stdin, env)
        assert self.run(command, True, stdin, env) == native
        return native


def comparable(text: str) -> str:
    """Remove what differs between any two runs: process ids, addresses, mpirun's own lines about both, and its lines
    about input that it could not pass on because the program had ended."""
    text = re.sub(r"^\[mpiexec@.*(HYDU_sock_write|send_hdr_downstream).*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"PID \d+ RUNNING AT \S+", "PID", text)
    return re.sub(r"0x[0-9a-f]{6,}", "0xADDRESS", text)


@pytest.fixture
def both(tmp_path: Path) -> Both:
    return Both(tmp_path)


# ---- command line, environment, streams ----


def test_arguments(both: Both) -> None:
    done = both.same(
        sys.executable,
        "-c",
        "import sys; print(sys.argv[1:])",
        "a b",
        "",
        " ",
        "--dir",
        "x=y",
        "é",
        "'\"$HOME\\",
        "-n",
        "*",
    )
    assert "['a b', '', ' ', '--dir'" in done.out


def test_environment(both: Both) -> None:
    """Nothing is lost or changed except for the documented additions."""
    command = [
        sys.executable,
        "-c",
        "import json, os; print(json.dumps(dict(os.environb), default=str) if 0 else json.dumps(dict(os.environ)))",
    ]
    env = {"WITH_BLANKS": " a  b ", "EMPTY": "", "LD_LIBRARY_PATH": "/some/where:/else", "UTF": "é"}
    native, launched = (json.loads(both.run(command, how, env=env).out) for how in (False, True))
    documented = {"LD_LIBRARY_PATH", "MPI4PY_LIBMPI", "MPI4PY_MPIABI", "GLIBC_TUNABLES"}
    own = {name for name in {**native, **launched} if name.startswith(("PMI_", "HYDI_", "GFORTRAN_", "PMIX_"))}
    assert {k: v for k, v in launched.items() if k not in documented | own} == {
        k: v for k, v in native.items() if k not in documented | own
    }
    assert set(launched) - set(native) <= documented
    assert set(native) - set(launched) <= own
    assert launched["LD_LIBRARY_PATH"].endswith(":/some/where:/else")
    assert not set(launched) & {"MANAPY_SECRET", "LD_PRELOAD"} - set(native)


def test_order_of_environment_and_environ_file(both: Both) -> None:
    program = (
        "import os; e = open('/proc/self/environ', 'rb').read().split(b'\\0'); print(sorted(x for x in e if "
        "x.startswith(b'TT')), os.environ['TT1'])"
    )
    both.same(sys.executable, "-c", program, env={"TT2": "2", "TT1": "1"})


def test_standard_input(both: Both) -> None:
    both.ranks = 2
    program = "import os, sys; print(len(sys.stdin.read())) if os.environ['PMI_RANK'] == '0' else None"
    # hydra gives up when a rank reads a large input slowly
    assert both.same(sys.executable, "-c", program, stdin="line\n" * 1000).out == "5000\n"
    both.ranks = 1
    both.same("/bin/cat", stdin="one\ntwo")


def test_standard_streams_apart(both: Both) -> None:
    done = both.same("/bin/sh", "-c", "echo to out; echo to err >&2")
    assert (done.out, done.err) == ("to out\n", "to err\n")


def test_streams_of_the_launcher(tmp_path: Path) -> None:
    """Without mpirun in between: closed standard streams, a file as output, a terminal."""
    for redirect in ("<&-", ">file", ">&- 2>&-", "</dev/null >>file 2>&1"):
        codes = []
        for launcher in ("", f"{BIN}/manapy-launch --dir {tmp_path}/job-{len(list(tmp_path.glob('job-*')))}"):
            program = (
                "import os; fds = sorted(int(n) for n in os.listdir('/proc/self/fd')); open('result', "
                "'w').write(str([n for n in fds if n < 3]))"
            )
            done = subprocess.run(
                ["/bin/sh", "-c", f'{launcher} {sys.executable} -c "{program}" {redirect}'],
                cwd=tmp_path,
                timeout=TIMEOUT,
            )
            codes.append((done.returncode, (tmp_path / "result").read_text()))
        assert codes[0] == codes[1], redirect


def test_one_rank_without_mpirun_in_a_script(tmp_path: Path) -> None:
    """The script goes on after the program. (MPICH may start an mpiexec, which kills the process group of a program
    that seems to have crashed.)"""
    program = "from mpi4py import MPI; print(MPI.COMM_WORLD.size)"
    script = f"{BIN}/manapy-launch --dir job {sys.executable} -c '{program}'\nsleep 1\necho after"
    done = subprocess.run(
        ["/bin/sh", "-c", script], cwd=tmp_path, timeout=TIMEOUT, capture_output=True, text=True, start_new_session=True
    )
    assert (done.returncode, done.stdout) == (0, "1\nafter\n"), done.stderr


def test_terminal(tmp_path: Path) -> None:
    script = shutil.which("script")
    if script is None:
        pytest.skip("needs script(1)")
    program = (
        "import os, sys; print(os.isatty(0), os.isatty(1), os.get_terminal_size() is not None, os.ttyname(0)[:5], "
        "os.tcgetpgrp(0) == os.getpgrp())"
    )
    outputs = []
    for launcher in ("", f"{BIN}/manapy-launch --dir {tmp_path}/job "):
        done = subprocess.run(
            [script, "-qec", f'{launcher}{sys.executable} -c "{program}"', "/dev/null"],
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1]
    assert "True True" in outputs[0]


# ---- the end ----


@pytest.mark.parametrize("code", [0, 1, 3, 255])
def test_exit_code(both: Both, code: int) -> None:
    assert both.same("/bin/sh", "-c", f"exit {code}").code == code


def test_python_exits(both: Both) -> None:
    assert both.same(sys.executable, "-c", "import sys; print('x'); sys.exit('message')").code == 1
    assert (
        both.same(
            sys.executable, "-c", "import atexit, os; atexit.register(print, 'at exit'); raise SystemExit(4)"
        ).code
        == 4
    )
    assert both.same(sys.executable, "-c", "import os; print('lost', end=''); os._exit(6)").code == 6


@pytest.mark.parametrize(
    "how",
    [
        "os.abort()",
        "import faulthandler; faulthandler._sigsegv()",
        "os.kill(os.getpid(), 9)",
        "os.kill(os.getpid(), 15)",
        "raise KeyboardInterrupt",
    ],
)
def test_death(both: Both, how: str) -> None:
    """mpirun reports the same death."""
    assert both.same(sys.executable, "-c", f"import os; {how}").code != 0


def test_death_in_c(both: Both) -> None:
    program = build(both.where / "program", "int main(void) { *(volatile int *)8 = 1; return 0; }\n", "-O1")
    both.same(program)
    program = build(both.where / "trap", "int main(void) { __builtin_trap(); }\n", "-O1")
    both.same(program)
    program = build(
        both.where / "overflow",
        "int f(int n) { volatile char a[4096]; a[n % 4096] = 1; return f(n + 1) + a[0]; }\n"
        "int main(void) { return f(0); }\n",
        "-O1",
    )
    both.same(program)


def test_last_thread(both: Both) -> None:
    """The main thread ends before another thread. The process goes on, and exits with the last thread's code."""
    source = """
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static void *body(void *a) { usleep(50000); puts("last"); fflush(stdout); exit(5); return a; }
int main(void) { pthread_t t; pthread_create(&t, 0, body, 0); pthread_exit(0); }
"""
    assert both.same(build(both.where / "program", source, "-O1", "-pthread")).code == 5


# ---- how the program is named ----


def test_module(both: Both) -> None:
    both.same(sys.executable, "-m", "platform", "--help")
    package = both.where / "cwd" / "package"
    package.mkdir(parents=True)
    (package / "__main__.py").write_text("import sys; print(sys.argv, sys.orig_argv, __spec__.name)\n")
    assert "package.__main__" in both.same(sys.executable, "-m", "package", "x").out


def test_by_path_search(both: Both) -> None:
    both.same(
        "python3", "-c", "import sys; print(sys.executable, sys.orig_argv)", env={"PATH": f"{BIN}:{os.environ['PATH']}"}
    )
    both.same("true")


def test_relative(both: Both) -> None:
    tool = both.where / "cwd" / "tool"
    tool.parent.mkdir(exist_ok=True)
    tool.write_text('#!/bin/sh\necho $0 "$@"\n')
    tool.chmod(0o755)
    assert both.same("./tool", "a  b").out == "./tool a  b\n"


@pytest.mark.parametrize(
    "line",
    [
        f"#!{sys.executable}",
        f"#! {sys.executable} -u",
        f"#!/usr/bin/env -S {sys.executable} -u",
        "#!/usr/bin/env python3",
    ],
)
def test_scripts(both: Both, line: str) -> None:
    script = both.where / "script"
    script.write_text(
        f"{line}\nimport sys; print(sys.argv, sys.orig_argv, sys.executable, sys.flags.unbuffered, "
        f"open('/proc/self/comm').read())\n"
    )
    script.chmod(0o755)
    both.same(script, "a b", "")


def test_script_without_interpreter_line(both: Both) -> None:
    script = both.where / "script"
    script.write_text('echo "$0 $1"\n')
    script.chmod(0o755)
    both.same(script, "x y")


def test_shell_script_that_execs_the_program(both: Both) -> None:
    """The usual wrapper script: the rank stays a rank."""
    script = both.where / "wrapper.sh"
    script.write_text(f'#!/bin/bash\nset -e\nexport FROM_SCRIPT="a b"\numask 027\nexec {sys.executable} "$@"\n')
    script.chmod(0o755)
    program = (
        "import os, sys; from mpi4py import MPI; print(MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size, "
        "os.environ['FROM_SCRIPT'], sys.argv, sys.executable)"
    )
    both.ranks = 2
    done = both.run([script, "-c", program, "c d", ""], True)
    native = both.run([script, "-c", program, "c d", ""], False)
    assert sorted(done.out.splitlines()) == sorted(native.out.splitlines())
    assert (done.code, done.err) == (native.code, native.err)


def test_exec_chain(both: Both) -> None:
    """Each link execs the next one."""
    program = (
        f"import os; os.execv({sys.executable!r}, ['renamed', '-c', 'import sys; from mpi4py import MPI; "
        f"print(MPI.COMM_WORLD.size, sys.orig_argv)'])"
    )
    both.same("/bin/sh", "-c", f'exec /usr/bin/env X=1 {sys.executable} -c "{program}"')


def test_exec_of_itself(both: Both) -> None:
    """By the kernel's names for it: in a child, and in the first process."""
    child = "(exec /proc/self/exe -c 'echo child $0' a)"
    first = "exec /proc/$$/exe -c 'echo again $0; exec /proc/self/exe -c true' b"
    assert both.same("bash", "-c", f"{child}; {first}").out == "child a\nagain b\n"


def test_exec_fails(both: Both) -> None:
    both.same("/bin/bash", "-c", "exec /nonexistent/program")
    both.same(sys.executable, "-c", "import os\ntry: os.execv('/etc/passwd', ['x'])\nexcept OSError as e: print(e)")


def test_shell_with_many_children(both: Both) -> None:
    done = both.same(
        "/bin/bash",
        "-c",
        'for i in 1 2 3; do echo $i | cat; done; x=$(date +%Y | wc -l); echo "$x" $((1 + 1)); (exit 3) || echo '
        '"code $?"; trap "echo bye" EXIT',
    )
    assert done.out == "1\n2\n3\n1 2\ncode 3\nbye\n"


def test_job_control_signals(both: Both) -> None:
    both.same(
        "/bin/bash", "-c", "sleep 100 & kill %1; wait %1; echo $?; trap 'echo caught' USR1; kill -USR1 $$; echo done"
    )


def test_virtual_environment(both: Both) -> None:
    environment = both.where / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    done = both.same(
        environment / "bin" / "python", "-c", "import sys; print(sys.executable, sys.prefix, sys.base_prefix, sys.path)"
    )
    assert str(environment) in done.out


def test_pyenv_shim(both: Both) -> None:
    shim = Path.home() / ".pyenv" / "shims" / "python3"
    if not shim.exists():
        pytest.skip("no pyenv here")
    both.same(shim, "-c", "import sys; print(sys.version, sys.executable, sys.argv)", "x y")


@pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="no /usr/bin/python3")
def test_distribution_python(both: Both) -> None:
    """An interpreter other than the one for which manapy is installed."""
    both.same(
        "/usr/bin/python3",
        "-c",
        "import sys, subprocess; print(sys.version, sys.executable, subprocess.run([sys.executable, '-V']).returncode)",
    )
    both.same("/usr/bin/python3", PROBE, "threads", "children", "fork", "signal_numbers", "proc_self")


# ---- what the process sees ----


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, dict[str, Any]]:
    """All aspects of tests/programs/native/transparency.py, natively and launched."""
    both = Both(tmp_path_factory.mktemp("observed"))
    found: dict[bool, dict[str, Any]] = {}
    for launched in (False, True):
        done = both.run([sys.executable, PROBE], launched)
        found[launched] = {"code": done.code, "err": done.err}
        for line in done.out.splitlines():
            found[launched].update(json.loads(line))
    return found


ASPECTS = re.findall(r"^@aspect\ndef (\w+)", PROBE.read_text(), re.MULTILINE)


@pytest.mark.parametrize("aspect", [*ASPECTS, "code", "err"])
def test_aspect(observed: dict[bool, dict[str, Any]], aspect: str) -> None:
    assert aspect in observed[False], observed[False]["err"]
    assert observed[True].get(aspect, f"nothing; stderr: {observed[True]['err']}") == observed[False][aspect]


# ---- programs of other kinds ----


@pytest.mark.parametrize(
    "program", ["/bin/true", "/bin/false", "/bin/ls /", "/usr/bin/env -i /bin/pwd", "/bin/uname -m"]
)
def test_small_programs(both: Both, program: str) -> None:
    both.same(*program.split())


MEMORY = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
static __thread int local = 5;
static void *body(void *a) { local++; return (char *)a + local; }
static sigjmp_buf back;
static void on_segv(int s) { siglongjmp(back, s); }
static volatile int caught;
static void on_alt(int s) {
    char here; stack_t st; sigaltstack(0, &st);
    caught = s + 100 * (&here >= (char *)st.ss_sp && &here < (char *)st.ss_sp + st.ss_size);
}
int main(int argc, char **argv, char **env) {
    char *big = malloc(200 << 20);
    memset(big, 1, 200 << 20);
    free(big);
    char *m = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    strcpy(m, "kept");
    m = mremap(m, 1 << 20, 64 << 20, MREMAP_MAYMOVE);
    printf("%s %d\n", m, m[63 << 20]);
    char *fixed = mmap((void *)0x600000000000, 4096, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    printf("%d\n", fixed == (char *)0x600000000000);
    char *whole = mmap(0, 8 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *hole = whole + 12345;
    hole -= (unsigned long)hole % 4096;
    munmap(hole, 1 << 20);
    for (int i = 0; i < 2; i++) /* the hint is free, then taken */
        printf("hint %d\n", mmap(hole, 1 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == hole);
    mprotect(m, 4096, PROT_NONE);
    signal(SIGSEGV, on_segv);
    int s = sigsetjmp(back, 1);
    if (s == 0) m[0] = 1;
    printf("caught %d\n", s);
    stack_t st = {.ss_sp = malloc(65536), .ss_size = 65536};
    sigaltstack(&st, 0);
    struct sigaction a = {.sa_handler = on_alt, .sa_flags = SA_ONSTACK | SA_RESETHAND};
    sigaction(SIGUSR1, &a, 0);
    raise(SIGUSR1);
    sigaction(SIGUSR1, 0, &a);
    printf("alt %d default %d\n", caught, a.sa_handler == SIG_DFL);
    pthread_t t[20];
    long sum = 0;
    for (long i = 0; i < 20; i++) pthread_create(&t[i], 0, body, (void *)i);
    for (int i = 0; i < 20; i++) { void *r; pthread_join(t[i], &r); sum += (long)r; }
    printf("threads %ld local %d\n", sum, local);
    char *p = sbrk(0);
    printf("brk %d %d\n", sbrk(1 << 20) == p, brk(p));
    printf("%s %d %d %s\n", argv[0], argc, env[0] != 0, (char *)getauxval(AT_EXECFN));
    printf("%ld %d %d\n", getauxval(AT_PAGESZ), getauxval(AT_RANDOM) != 0, getauxval(AT_SECURE) != 0);
    struct timespec now;
    printf("%d\n", clock_gettime(CLOCK_MONOTONIC, &now));
    errno = 0;
    printf("%d %d\n", mmap(0, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED, errno);
    printf("%d %d\n", mmap(0, 1ul << 60, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED, errno);
    return argc;
}
"""


@pytest.mark.parametrize(
    "kind", ["-pie -fPIE", "-no-pie -fno-pie", "-static", "-static-pie -fPIE", "-no-pie -fno-pie -mcmodel=large"]
)
def test_kinds_of_executables(both: Both, kind: str) -> None:
    program = build(both.where / "program", MEMORY, "-O1", *kind.split(), "-pthread")
    assert both.same(program, "x", "").code == 3


MPI = r"""
#include <mpi.h>
#include <stdio.h>
int main(int argc, char **argv) {
    int rank, size, length, sum, value;
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Get_library_version(version, &length);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Sendrecv(&rank, 1, MPI_INT, (rank + 1) % size, 0, &value, 1, MPI_INT, (rank + size - 1) % size, 0,
        MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (int i = 0; i < size; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        if (i == rank) {
            printf("%d of %d: sum %d, from left %d, %.12s %s\n", rank, size, sum, value, version, argv[1]);
            fflush(stdout);
        }
    }
    MPI_Finalize();
    return 0;
}
"""


def test_mpi_in_c(both: Both) -> None:
    both.ranks = 2
    program = build(both.where / "program", MPI, "-O1", compiler=BIN / "mpicc")
    native, launched = (both.run([program, "an argument"], how) for how in (False, True))
    assert sorted(launched.out.splitlines()) == sorted(native.out.splitlines())
    assert (launched.code, launched.err) == (native.code, native.err) == (0, "")


def test_mpi_abort(both: Both) -> None:
    both.ranks = 2
    program = (
        "from mpi4py import MPI; MPI.COMM_WORLD.Barrier(); MPI.COMM_WORLD.rank or MPI.COMM_WORLD.Abort(9); "
        "MPI.COMM_WORLD.Barrier()"
    )
    native, launched = (both.run([sys.executable, "-c", program], how) for how in (False, True))
    assert launched.code == native.code == 9


def test_one_rank_fails(both: Both) -> None:
    """An exception on one rank ends the job as it does natively."""
    both.ranks = 2
    program = "import sys; from mpi4py import MPI; MPI.COMM_WORLD.Barrier(); sys.exit(7 * MPI.COMM_WORLD.rank)"
    native, launched = (both.run([sys.executable, "-c", program], how) for how in (False, True))
    assert launched.code == native.code == 7


def test_child_of_the_mpi_program_that_calls_mpi_says_so(both: Both) -> None:
    """A rank has one MPI process: a second one prints one clear line."""
    code = (
        f"import subprocess, sys; from mpi4py import MPI; "
        f"print(subprocess.run([{sys.executable!r}, '-c', 'from mpi4py import MPI'], "
        f"capture_output=True, text=True).stderr)"
    )
    done = both.run([sys.executable, "-c", code], True)
    lines = [line for line in done.out.splitlines() if line.strip()]
    assert len(lines) == 1, done.out
    assert re.search(
        r"'python\S*' calls MPI, but process \d+ \('python\S*'\) is the MPI process of this rank", lines[0]
    )


def test_child_that_calls_mpi_is_the_rank(both: Both) -> None:
    """Natively this depends on the process manager: subprocess closes the child's connection to MPICH's."""
    code = (
        f"import subprocess, sys; subprocess.run([{sys.executable!r}, '-c', "
        f"'from mpi4py import MPI; print(MPI.COMM_WORLD.size)'], check=True)"
    )
    assert both.run([sys.executable, "-c", code], True).out == "1\n"
