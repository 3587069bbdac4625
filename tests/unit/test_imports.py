"""The import graph inside manapy/: which package may import which. A new edge must be added here on purpose."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ALLOWED = {
    ("cli", "bench"),
    ("cli", "chain"),
    ("chain", "ckpt"),
    ("bench", "ckpt"),  # errors
    ("bench", "clock"),  # scale
    ("bench", "mpi"),
    ("bench", "fcdp"),  # closed forms
    ("bench", ""),
    ("cli", "ckpt"),
    ("cli", "clock"),
    ("cli", "doctor"),
    ("cli", "fcdp"),
    ("cli", "mpi"),
    ("cli", "rdma"),
    ("cli", "trace"),
    ("cli", ""),
    ("ckpt", "clock"),
    ("ckpt", ""),
    ("clock", ""),
    ("fcdp", ""),
    ("doctor", "mpi"),
    ("doctor", ""),
    ("fcdp", "ckpt"),  # errors, record, publish
    ("mpi", ""),
    ("rdma", "ckpt"),  # errors, auth
    ("rdma", ""),
    ("trace", "ckpt"),  # errors
    ("trace", ""),
    ("bench", "trace"),
    ("", "ckpt"),  # CheckpointError, raised by manapy.checkpoint()
    ("", "clock"),
}


def package(parts: tuple[str, ...]) -> str:
    """First-level package of a module under manapy, "" for the top."""
    return parts[0] if len(parts) > 1 else ""


def edges(root: Path) -> set[tuple[str, str, str]]:
    """(from, to, file) for each import of a manapy module; `to` is "" for modules at the top."""
    top = root / "manapy"
    packages = {p.name for p in top.iterdir() if p.is_dir()}
    found = set()
    for path in top.rglob("*.py"):
        parts = path.relative_to(top).parts
        for node in ast.walk(ast.parse(path.read_text())):
            targets: list[tuple[str, ...]] = []
            if isinstance(node, ast.ImportFrom) and node.level:
                base = parts[: len(parts) - node.level]
                names = tuple(node.module.split(".")) if node.module else ()
                targets = [(*base, *names, alias.name) for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "manapy":
                targets = [(*node.module.split(".")[1:], alias.name) for alias in node.names]
            elif isinstance(node, ast.Import):
                targets = [tuple(a.name.split(".")[1:]) for a in node.names if a.name.split(".")[0] == "manapy"]
            for target in targets:
                to = target[0] if target and target[0] in packages else ""
                if to != package(parts):
                    found.add((package(parts), to, str(path.relative_to(root))))
    return found


def test_no_new_edges(root: Path) -> None:
    assert sorted(e for e in edges(root) if e[:2] not in ALLOWED) == []


def test_the_sharding_engine_knows_no_front_end(root: Path) -> None:
    front_ends = {"layers", "training", "adam", "state", "pytorch"}
    found = []
    for path in (root / "manapy" / "fcdp").glob("*.py"):
        if path.stem not in front_ends:
            imports = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
            found += [f"{path.name} imports {node.module}" for node in imports if node.level and (node.module or "").split(".")[0] in front_ends]
    assert found == []


def test_only_the_adapter_needs_pytorch_and_says_so() -> None:
    program = "import sys; sys.modules['torch'] = None; import manapy.fcdp.engine, manapy.fcdp.training; print('so far'); import manapy.fcdp.pytorch"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "so far\n")
    assert done.stderr.splitlines()[-1].startswith("ImportError: manapy.fcdp.pytorch needs PyTorch: pip install 'manapy[torch]'")


def test_only_cli_prints_or_exits(root: Path) -> None:
    bad = []
    for path in (root / "manapy").rglob("*.py"):
        if "cli" in path.relative_to(root).parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                text = ast.unparse(node.func)
                if text in ("print", "exit", "quit", "sys.exit", "os._exit"):
                    bad.append(f"{path.relative_to(root)}:{node.lineno} {text}")
    assert bad == []
