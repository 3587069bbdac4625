"""The recipes of tools/packages: what can be said of them without the tools that read them."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

# What a recipe may import from spack.package, and call in the body of its class (of the directives of Spack 1).
DIRECTIVES = {"license", "version", "variant", "depends_on", "requires", "conflicts", "provides"}


@pytest.fixture(scope="module")
def packages(root: Path) -> Path:
    return root / "tools/packages"


@pytest.fixture(scope="module")
def directives(packages: Path) -> list[ast.Call]:
    """The calls in the body of the recipe's class."""
    tree = ast.parse((packages / "spack/package.py").read_text())
    (imported,) = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "spack.package"]
    assert {name.name for name in imported.names} <= DIRECTIVES
    (recipe,) = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    assert (recipe.name, [ast.unparse(base) for base in recipe.bases]) == ("Manapy", ["PythonPackage"])
    return [node.value for node in recipe.body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)]


def test_spack_knows_the_directives(directives: list[ast.Call]) -> None:
    assert {ast.unparse(call.func) for call in directives} <= DIRECTIVES
    for call in directives:
        assert all(isinstance(ast.literal_eval(argument), str) for argument in call.args)


def test_spack_has_the_requirements(directives: list[ast.Call], root: Path) -> None:
    """Every requirement of pyproject.toml, with its oldest version. Spack's "0" in a range is any 0.x, as is "<1"."""
    given = [ast.literal_eval(call.args[0]) for call in directives if ast.unparse(call.func) == "depends_on"]
    project = tomllib.loads((root / "pyproject.toml").read_text())
    for text in (*project["project"]["dependencies"], *project["build-system"]["requires"]):
        requirement = Requirement(text)
        (spec,) = [spec for spec in given if spec.startswith(f"py-{requirement.name}@")]
        oldest, newest = spec.partition("@")[2].split(":")
        assert requirement.specifier.contains(oldest)
        assert {str(s) for s in requirement.specifier} == {f">={oldest}", *({f"<{int(newest) + 1}"} if newest else ())}
    assert f"python@{Version(project['project']['requires-python'].removeprefix('>='))}:" in given
    assert not [spec for spec in given if re.search("mpi|pmi", spec)]


def commands(text: str) -> list[str]:
    """Shell commands, without the way in which they are broken into lines."""
    return [" ".join(line.split()) for line in text.replace("\\\n", " ").splitlines() if line.strip()]


def test_both_images_are_made_alike(packages: Path) -> None:
    """The definition for Apptainer has the base and the commands of the Containerfile, which a test builds
    (integration/packages/test_container.py)."""
    steps = commands(re.sub("(?m)^#.*\n", "", (packages / "Containerfile").read_text()))
    definition = (packages / "manapy.def").read_text()
    (base,) = [step.removeprefix("FROM ") for step in steps if step.startswith("FROM ")]
    assert f"Bootstrap: docker\nFrom: {base}\n" in definition
    (post,) = re.findall(r"(?ms)^%post\n(.*?)^%", definition)
    assert commands(post) == [step.removeprefix("RUN ") for step in steps if step.startswith("RUN ")]
    (copied,) = [step.removeprefix("COPY ").split() for step in steps if step.startswith("COPY ")]
    assert f"%files\n    dist/{copied[0]} {copied[1]}\n" in definition


def test_the_recipes_name_this_version(packages: Path, root: Path) -> None:
    version = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    text = (packages / "modulefile").read_text()
    assert set(re.findall(r"manapy[/-](\d[\w.]*\d)", text)) == {version}
