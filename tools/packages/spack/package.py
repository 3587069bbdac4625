# A recipe for Spack 1. Copy this folder to packages/manapy of a repository of yours. There is no address from which
# Spack could fetch the source yet, so tell it where the source tree is:
#
#   spack develop --path /path/to/manapy manapy@main
#   spack install manapy@main
#
# No MPI is a dependency: manapy opens the one whose mpirun has started a job.
from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import depends_on, license, requires, variant, version


class Manapy(PythonPackage):
    """Keeps MPI jobs alive: transparent checkpoint and restart of unmodified MPI programs."""

    license("BSD-3-Clause")

    version("main", branch="main")

    variant("rdma", default=True, description="Move RDMA traffic to another network card when one fails")

    depends_on("c", type="build")
    depends_on("python@3.11:", type=("build", "run"))
    depends_on("py-scikit-build-core@0.11:0", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("ninja", type="build")
    depends_on("py-numpy@1.26:", type=("build", "run"))
    depends_on("py-pyelftools@0.31:0", type=("build", "run"))
    depends_on("py-rich@13:", type=("build", "run"))
    depends_on("rdma-core", type="build", when="+rdma")  # headers: the library is opened at run time

    requires("platform=linux", msg="manapy needs Linux")
    requires("target=x86_64:", msg="manapy needs x86-64")
