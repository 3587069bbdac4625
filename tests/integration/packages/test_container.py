"""The image of tools/packages/Containerfile under MPIs of the host: each rank is a container.

buildah builds the image, from a small Debian that debootstrap makes. bubblewrap starts the ranks in the files of it, in
a mount namespace as Apptainer makes one. It binds the host's MPI at its own paths: a prefix, or Debian's library with
the libraries and plugins that it needs and the image lacks. Other namespaces are the host's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest
from jobs import PROGRAMS, Job
from launchers import DEBIAN, DEBIAN_MPICH, ENVIRONMENT, MPICH, OPEN_MPI_4, WHEEL, Launcher
from solver import LAST, SOLVER, after

TOOLS = {"buildah": "buildah", "debootstrap": "debootstrap", "bwrap": "bubblewrap"}
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")  # the network of the tests may have some of its own
PYTHON = "/opt/manapy/bin/python"
PLUGINS = ("/usr/share/openmpi", "/etc/openmpi", f"{DEBIAN}/openmpi", f"{DEBIAN}/pmix2")

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@dataclass(frozen=True)
class Image:
    """The files of an image, and the names of its own libraries: bwrap leaves empty files where it has bound others."""

    root: Path
    libraries: frozenset[str]


@pytest.fixture(scope="module")
def image(wheel: Path, root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """The image of the Containerfile."""
    if lacking := [package for name, package in TOOLS.items() if shutil.which(name, path="/usr/bin:/usr/sbin") is None]:
        pytest.skip(f"needs {' '.join(TOOLS)} (apt install {' '.join(lacking)})")
    if os.geteuid():
        pytest.skip("debootstrap needs root")
    where = tmp_path_factory.mktemp("image")

    def buildah(*words: str | Path) -> str:
        options = ("--storage-driver", "vfs", "--root", where / "images", "--runroot", where / "run")
        done = subprocess.run(["buildah", *options, *words], capture_output=True, text=True)
        assert done.returncode == 0, f"buildah {words[0]}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    subprocess.run(
        ["/usr/sbin/debootstrap", "--variant=minbase", "bookworm", where / "debian"], check=True, capture_output=True
    )
    base = buildah("from", "scratch")
    buildah("add", base, where / "debian", "/")
    buildah("commit", base, "docker.io/library/debian:bookworm-slim")
    (where / "pip.conf").write_text("[global]\ncert = /run/certificates\n")
    bound = (f"{where}/pip.conf:/etc/pip.conf:ro", f"{CERTIFICATES}:/run/certificates:ro")
    volumes = [word for volume in bound for word in ("--volume", volume)]
    recipe = ("--file", root / "tools/packages/Containerfile", wheel.parent)
    buildah("build", "--isolation", "chroot", "--pull-never", *volumes, "--tag", "manapy", *recipe)
    container = buildah("from", "--pull-never", "localhost/manapy")
    files = Path(buildah("mount", container))
    yield Image(files, frozenset(os.listdir(files / DEBIAN.relative_to("/"))))
    buildah("rm", "--all")


def needed(files: list[Path]) -> set[Path]:
    """These libraries, and what they need."""
    said = subprocess.run(["ldd", *map(str, files)], capture_output=True, text=True).stdout
    found = [Path(word) for word in said.split() if word.startswith("/") and not word.endswith(":")]
    return {*files, *(file.parent.resolve() / file.name for file in found)}


def bound(launcher: Launcher, image: Image) -> list[str | Path]:
    """The options of bwrap that bring the launcher's MPI into the image."""
    if not launcher.library.is_relative_to(DEBIAN):
        return ["--ro-bind", WHEEL, WHEEL]
    libraries, folders = [launcher.library], []
    if launcher is OPEN_MPI_4:
        folders = [Path(name) for name in PLUGINS if Path(name).exists()]
        libraries += [DEBIAN / "libpmix.so.2", *(plugin for folder in folders for plugin in folder.rglob("*.so"))]
    lacking = [file for file in sorted(needed(libraries)) if file.name not in image.libraries]
    outside = [file for file in lacking if not any(folder in file.parents for folder in folders)]
    return [word for place in (*folders, *outside) for word in ("--ro-bind", place, place)]


@pytest.mark.parametrize("launcher", [MPICH, DEBIAN_MPICH, OPEN_MPI_4], ids=lambda launcher: launcher.name)
def test_ranks_in_containers(
    image: Image, make_job: Callable[..., Job], undisturbed: bytes, launcher: Launcher, tmp_path: Path
) -> None:
    """Checkpoint, SIGKILL and restart; the checkpoint is ordered from a container, too."""
    launcher.skip_if_missing()
    mpi4py = Path(metadata.distribution("mpi4py").locate_file("mpi4py"))
    job = make_job(2)
    inside: list[str | Path] = ["/usr/bin/bwrap", "--bind", image.root, "/", "--proc", "/proc"]
    inside += ["--dev-bind", "/dev", "/dev", "--bind", tmp_path, tmp_path, "--ro-bind", PROGRAMS, "/programs"]
    inside += ["--ro-bind", mpi4py, "/opt/mpi/mpi4py", "--setenv", "PYTHONPATH", "/opt/mpi"]
    inside += [*bound(launcher, image), "--"]
    assert sys.version_info[:2] == (3, 11), "the image's Python must load the mpi4py of the tests"
    mpirun = [*launcher.mpirun, "-n", "2", *inside]
    go = job.hold(LAST)
    job.env |= ENVIRONMENT
    program = [PYTHON, "/programs/steps/heat2d.py", *SOLVER, "--out", job.where / "field.npy"]
    job.spawn([*mpirun, "/usr/local/bin/manapy-launch", "--dir", job.dir, *program])
    job.wait_for(after(200))
    done = subprocess.run([*inside, "/usr/local/bin/manapy", "checkpoint", job.dir], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    job.kill()
    go.touch()
    job.spawn([*mpirun, "/usr/local/bin/manapy-restart", job.dir]).finish()
    assert (job.where / "field.npy").read_bytes() == undisturbed
