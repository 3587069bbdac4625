"""The import graph inside manapy/: which folder may import which, without circles.

A new edge must be added here on purpose.
"""

from __future__ import annotations

import ast
import gc
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from pathlib import Path

import pytest

# Folder: the folders that it may import. "top" is manapy/ itself. Every folder may import itself and core.
ALLOWED = {
    "bench": ("bench.calls bench.checkpoints bench.fcdp bench.loop bench.rdma bench.scale bench.shared bench.trace"),
    "bench.calls": "bench.shared",
    "bench.checkpoints": "bench.shared clock.model",
    "bench.fcdp": "bench.shared fcdp fcdp.engine",
    "bench.rdma": "bench.shared",
    "bench.loop": "bench.shared chain ckpt.store",
    "bench.scale": "bench.shared ckpt.node ckpt.store clock",
    "bench.shared": "mpi top trace.capture",
    "bench.trace": "bench.shared trace.capture trace.hang trace.host trace.live trace.model trace.slow",
    "chain": "ckpt ckpt.store",
    "ckpt": "ckpt.redundancy ckpt.store clock",
    "ckpt.coordinator": "ckpt ckpt.coordinator.levels ckpt.redundancy ckpt.store clock rdma top",
    "ckpt.coordinator.levels": "ckpt ckpt.coordinator ckpt.redundancy ckpt.store",
    "ckpt.node": "ckpt clock rdma",
    "ckpt.redundancy": "ckpt ckpt.store",
    "ckpt.store": "ckpt",
    "cli": ("cli.hidden cli.measure cli.move cli.save cli.setup cli.shared cli.start cli.train cli.watch top"),
    "cli.hidden": (
        "chain ckpt ckpt.coordinator ckpt.node ckpt.store cli.shared cli.watch rdma trace.capture trace.host "
        "trace.live trace.model trace.report"
    ),
    "cli.measure": "bench bench.shared cli.shared doctor",
    "cli.move": "cli.shared rdma",
    "cli.save": "ckpt ckpt.store cli.shared",
    "cli.setup": "cli cli.shared trace.capture",
    "cli.shared": "chain ckpt.store trace.capture trace.model",
    "cli.start": "chain ckpt.store cli.shared",
    "cli.train": "cli.shared fcdp fcdp.engine fcdp.gpt fcdp.pytorch",
    "cli.watch": (
        "chain ckpt ckpt.store cli.shared trace.capture trace.convert trace.hang trace.host "
        "trace.live trace.model trace.report trace.slow"
    ),
    "clock": "",
    "clock.model": "clock",
    "doctor": "mpi",
    "fcdp": "fcdp.engine fcdp.layers",
    "fcdp.engine": "fcdp",
    "fcdp.gpt": "fcdp fcdp.engine fcdp.pytorch fcdp.state",
    "fcdp.layers": "fcdp fcdp.engine fcdp.state",
    "fcdp.pytorch": "fcdp fcdp.engine fcdp.state",
    "fcdp.state": "fcdp fcdp.engine",
    "rdma": "top",
    "top": "clock",
    "trace": "",
    "trace.capture": "ckpt ckpt.store trace.host trace.model",
    "trace.convert": "trace.capture trace.model",
    "trace.hang": "trace.host trace.model",
    "trace.host": "trace.model",
    "trace.live": "trace.capture trace.hang trace.host trace.model trace.slow",
    "trace.report": "trace.model",
    "trace.slow": "trace.hang trace.host trace.model",
}


def modules(root: Path) -> dict[str, Path]:
    """Every module of manapy by its dotted name, including packages."""
    found = {}
    for path in (root / "manapy").rglob("*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def executed(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports of a module, also those in functions, but not those that only a type checker sees."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield from executed(node)


def targets(node: ast.AST, package: list[str], known: Mapping[str, Path]) -> Iterator[str]:
    """The modules of manapy that an import statement in a package names."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "manapy")
    elif isinstance(node, ast.ImportFrom):
        base = package[: len(package) - node.level + 1] if node.level else []
        base = [*base, *(node.module or "").split(".")] if node.module else base
        if base[0] == "manapy":
            for alias in node.names:
                module = ".".join([*base, alias.name])
                yield module if module in known else ".".join(base)


def late(tree: ast.Module, package: list[str], known: Mapping[str, Path]) -> Iterator[str]:
    """The modules that a module of this package imports by import_module. Their names are constants in the call, or
    anywhere in the module if the call composes a name (".{name}")."""
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("import_module", "importlib.import_module")
    ]
    is_composed = any(ast.unparse(call.args[0]).startswith(("f'.{", 'f".{')) for call in calls)
    places: list[ast.AST] = [tree] if is_composed else [call.args[0] for call in calls]
    constants = {node.value for place in places for node in ast.walk(place) if isinstance(node, ast.Constant)}
    for name in sorted(constant for constant in constants if isinstance(constant, str)):
        above = max(len(name) - len(name.lstrip(".")) - 1, 0)  # ".x" and "x" are in this package, "..x" is beside it
        module = ".".join([*package[: len(package) - above], name.lstrip(".")])
        if module in known or name in known:
            yield module if module in known else name


def package_of(module: str, path: Path) -> list[str]:
    """The dotted name, in parts, of the package from which relative imports of a module start."""
    return module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]


def folder(module: str, known: Mapping[str, Path]) -> str:
    """The folder of a module, below manapy/, with dots; "top" for manapy/ itself."""
    return ".".join(package_of(module, known[module])[1:]) or "top"


def parsed(path: Path) -> ast.Module:
    """Without the collector: a callback of it (Hypothesis has one) lets other threads run, and if one of them formats a
    traceback meanwhile, Python 3.11 fails here ("AST constructor recursion depth mismatch", python/cpython#106905)."""
    gc.disable()
    try:
        return ast.parse(path.read_text())
    finally:
        gc.enable()


def edges(root: Path) -> set[tuple[str, str, str]]:
    """(from, to, file) for each import of another folder's module."""
    known = modules(root)
    found = set()
    for module, path in known.items():
        tree, package = parsed(path), package_of(module, path)
        named = {target for node in ast.walk(tree) for target in targets(node, package, known)}
        for target in named | set(late(tree, package, known)):
            ends = folder(module, known), folder(target, known)
            if ends[0] != ends[1]:
                found.add((*ends, str(path.relative_to(root))))
    return found


def circles(graph: Mapping[str, Set[str]]) -> list[list[str]]:
    """Groups of modules that import each other, directly or through others."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        todo, seen = list(graph[start]), set()
        while todo:
            if (module := todo.pop()) not in seen:
                seen.add(module)
                todo += graph.get(module, ())
        reached[start] = seen
    groups = {frozenset(m for m in reached[start] if start in reached.get(m, ())) for start in graph}
    return sorted(sorted(group) for group in groups if group)


def test_no_new_edges(root: Path) -> None:
    def allowed(start: str, to: str) -> bool:
        return to in ALLOWED.get(start, "").split() or (to == "core" and start != "core")

    assert sorted(edge for edge in edges(root) if not allowed(*edge[:2])) == []


def test_no_stale_edges(root: Path) -> None:
    real = {edge[:2] for edge in edges(root)}
    assert [(start, to) for start, row in ALLOWED.items() for to in row.split() if (start, to) not in real] == []


def graph_of(root: Path) -> dict[str, set[str]]:
    """For each module, the others that it imports."""
    known = modules(root)
    graph = {}
    for module, path in known.items():
        tree, package = parsed(path), package_of(module, path)
        named = {target for node in executed(tree) for target in targets(node, package, known)}
        graph[module] = (named | set(late(tree, package, known))) - {module}
    return graph


def test_no_circles(root: Path) -> None:
    assert circles(graph_of(root)) == []


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A tree of two folders of manapy that do not import each other."""
    for name in ("", "chain", "clock"):
        (tmp_path / "manapy" / name).mkdir(parents=True)
        (tmp_path / "manapy" / name / "__init__.py").touch()
    (tmp_path / "manapy/chain/run.py").touch()
    (tmp_path / "manapy/clock/rank.py").touch()
    return tmp_path


@pytest.mark.parametrize(
    "text",
    [
        "from ..chain import run",
        "import manapy.chain.run",
        "def later():\n    from manapy.chain.run import go",
        "import importlib\nimportlib.import_module('manapy.chain.run')",
        "from importlib import import_module\nimport_module('..chain.run', __package__)",
    ],
)
def test_a_new_edge_is_found(small: Path, text: str) -> None:
    (small / "manapy/clock/rank.py").write_text(text + "\n")
    assert edges(small) == {("clock", "chain", "manapy/clock/rank.py")}
    with pytest.raises(AssertionError, match=r"manapy/clock/rank\.py"):
        test_no_new_edges(small)


@pytest.mark.parametrize(
    "text",
    [
        "from ..clock import rank",
        "HOMES = {'run': ('go',)}\ndef __getattr__(name):\n    return import_module(f'.{HOMES[name]}', __name__)",
    ],
)
def test_a_circle_is_found(small: Path, text: str) -> None:
    (small / "manapy/chain/__init__.py").write_text(text + "\n")
    (small / "manapy/chain/run.py").write_text("import manapy.chain\n")
    (small / "manapy/clock/rank.py").write_text("import manapy.chain\n")
    assert len(circles(graph_of(small))) == 1


def top_level(tree: ast.Module) -> set[str]:
    """The first parts of the names of all modules that a module imports, except relative ones."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.split(".")[0])
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names = [part.value for part in ast.walk(node.args[0]) if isinstance(part, ast.Constant)]
            found |= {str(name).split(".")[0] for name in names}
    return found


def test_the_generator_needs_only_the_standard_library(root: Path) -> None:
    """It runs when manapy is built."""
    paths = sorted((root / "wrappers/generate").rglob("*.py"))
    others = {path.name: top_level(parsed(path)) - sys.stdlib_module_names for path in paths}
    assert {name: modules for name, modules in others.items() if modules} == {}


def test_manapy_does_not_import_tools(root: Path) -> None:
    """They are not installed, except the machine with RDMA devices (vm), which `manapy bench` finds beside its
    programs."""
    tools = {
        path.stem for path in (root / "tools").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert "vm" in tools
    found = {
        (path.relative_to(root).as_posix(), name)
        for path in (root / "manapy").rglob("*.py")
        for name in top_level(parsed(path)) & tools
    }
    assert found == {("manapy/bench/shared/guest.py", "vm")}


def test_the_sharding_engine_knows_no_front_end(root: Path) -> None:
    assert {to for start, to, _ in edges(root) if start == "fcdp.engine"} == {"fcdp", "core"}


@pytest.mark.parametrize(
    "package, works, fails, says",
    [
        (
            "torch",
            "manapy.fcdp.engine.engine, manapy.fcdp.layers.numpy_training",
            "manapy.fcdp.pytorch",
            "manapy.fcdp.pytorch needs PyTorch, manapy's extra 'torch'",
        ),
        (
            "mpi4py",
            "manapy.fcdp.engine.units, manapy.fcdp.advice",
            "manapy.fcdp.engine.engine",
            "manapy.fcdp needs mpi4py and an MPI library: manapy's extra 'mpich', or mpi4py for your MPI",
        ),
    ],
)
def test_only_parts_of_fcdp_need_a_package_and_say_so(package: str, works: str, fails: str, says: str) -> None:
    program = f"import sys; sys.modules['{package}'] = None; import {works}; print('so far'); import {fails}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "so far\n")
    assert done.stderr.splitlines()[-1].startswith(f"ImportError: {says}")


def test_only_cli_prints_or_exits(root: Path) -> None:
    bad = []
    for path in (root / "manapy").rglob("*.py"):
        if "cli" in path.relative_to(root).parts:
            continue
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Call):
                text = ast.unparse(node.func)
                if text in ("print", "exit", "quit", "sys.exit", "os._exit"):
                    bad.append(f"{path.relative_to(root)}:{node.lineno} {text}")
    assert bad == []


def test_files_of_tests_have_names_of_their_own(root: Path) -> None:
    """Pytest imports them by their file names alone: of two with one name it collects only one."""
    names = Counter(path.name for path in (root / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
