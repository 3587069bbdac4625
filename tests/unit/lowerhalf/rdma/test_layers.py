"""The layers of lowerhalf/rdma, as its README draws them: which folder may include and call which. A new edge must be
added here on purpose."""

from __future__ import annotations

import re
from pathlib import Path

import c_symbols
import pytest
from c_symbols import circle

Graph = dict[str, set[str]]

# From the bottom to the top: for each folder, the others that its files include, and those whose functions they call.
INCLUDES: Graph = {
    "common": set(),
    "kv": set(),
    "requests": set(),
    "objects": {"common", "kv", "requests"},
    "journal": {"common", "objects"},
    "links": {"common", "objects", "journal"},
    "failover": {"common", "objects", "journal", "links"},
    "worker": {"common", "objects", "journal", "failover"},
    "verbs": {"common", "objects", "journal", "failover", "worker"},
    "preload": {"common"},
}
CALLS: Graph = {
    "common": set(),
    "kv": set(),
    "requests": set(),
    "objects": {"common", "kv"},
    "journal": {"common", "kv", "objects"},
    "links": {"common", "kv", "objects", "journal"},
    "failover": {"common", "kv", "requests", "objects", "journal", "links"},
    "worker": {"common", "kv", "objects", "journal", "links", "failover"},
    "verbs": {"common", "requests", "objects", "journal", "links", "failover", "worker"},
    "preload": {"common", "verbs"},
}
OUTSIDE = {"common", "kv", "journal"}  # may include headers of the rest of lowerhalf/: hash, handshake, trace
CIRCLES: dict[tuple[str, str], str] = {}  # (caller, called): why this edge may close a circle. The README lists it, too


@pytest.fixture(scope="module")
def rdma(root: Path) -> Path:
    return root / "lowerhalf" / "rdma"


def sources(rdma: Path, *suffixes: str) -> dict[str, Path]:
    return {str(path.relative_to(rdma)): path for path in sorted(rdma.glob("*/*")) if path.suffix in suffixes}


@pytest.fixture(scope="module")
def includes(rdma: Path) -> Graph:
    """For each file, the files of lowerhalf/rdma that it includes, and the headers of other folders as written."""
    include = re.compile(r'^#\s*include "([^"]+)"', re.MULTILINE)
    return {name: set(include.findall(path.read_text())) for name, path in sources(rdma, ".c", ".h", ".S").items()}


@pytest.fixture(scope="module")
def calls(rdma: Path, root: Path) -> Graph:
    """For each source, the sources that define the functions and variables that it uses."""
    if not c_symbols.VERBS.exists():
        pytest.skip("libibverbs-dev is not installed")
    found = c_symbols.callees(c_symbols.read(root))
    within = {
        (root / file).relative_to(rdma).as_posix(): set(others)
        for file, others in found.items()
        if (root / file).is_relative_to(rdma)
    }
    prefix = rdma.relative_to(root).as_posix() + "/"
    return {file: {other.removeprefix(prefix) for other in others} & within.keys() for file, others in within.items()}


def between_folders(graph: Graph) -> Graph:
    found: Graph = {name.split("/")[0]: set() for name in graph}
    for name, others in graph.items():
        found[name.split("/")[0]] |= {other.split("/")[0] for other in others}
    return {folder: others & found.keys() - {folder} for folder, others in found.items()}


def test_every_file_is_in_a_layer_and_in_the_readme(rdma: Path) -> None:
    assert [path.name for path in rdma.iterdir() if path.suffix in (".c", ".h", ".S")] == []
    readme, built = (rdma / "README.md").read_text(), (rdma / "CMakeLists.txt").read_text()
    assert [name for name in sources(rdma, ".c", ".h", ".S") if not re.search(rf"\b{Path(name).stem}\b", readme)] == []
    assert [name for name in sources(rdma, ".c", ".S") if name not in built] == []


def test_the_layers_are_an_order() -> None:
    for graph in (INCLUDES, CALLS):
        assert circle(graph) == []
        assert list(graph) == list(INCLUDES)


def test_includes(includes: Graph) -> None:
    assert between_folders(includes) == INCLUDES
    outside = {name for name, others in includes.items() if others - includes.keys()}
    assert {name.split("/")[0] for name in outside} <= OUTSIDE


def test_calls(calls: Graph) -> None:
    assert between_folders(calls) == CALLS


def test_no_file_includes_itself_by_others(includes: Graph) -> None:
    assert circle(includes) == []


def test_no_circle_of_calls(calls: Graph) -> None:
    assert [edge for edge in CIRCLES if edge[1] not in calls[edge[0]]] == []  # every listed edge still exists
    others = {name: {other for other in called if (name, other) not in CIRCLES} for name, called in calls.items()}
    assert circle(others) == []


def test_a_circle_is_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}
    assert set(circle(graph)) == {"a", "b", "c"}
    assert circle({"a": {"b"}, "d": {"a", "b"}}) == []
