"""Fixtures of the tests of the RDMA agent."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from compiling import SANITIZED, build_core
from rdma_agents import Agent, Program

from manapy.core.errors import AgentError

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="session")
def driver(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """kv_driver.c, linked with the client."""
    lower = root / "lowerhalf"
    sources = [
        HERE / "kv_driver.c",
        lower / "rdma" / "kv" / "kv.c",
        lower / "wire" / "handshake.c",
        lower / "base" / "sha256.c",
    ]
    return build_core(tmp_path_factory.mktemp("kv") / "kv_driver", sources, f"-I{lower / 'rdma'}", *SANITIZED)


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory whose path is short enough for sockets."""
    path = Path(tempfile.mkdtemp(prefix="mshift-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def agent(short: Path) -> Iterator[Callable[..., Agent]]:
    """Starts agents: agent(NAME, options...)."""
    made: list[Agent] = []

    def start(name: str = "host", *options: str, **more: Any) -> Agent:
        made.append(Agent(short / name, *options, **more))
        return made[-1]

    yield start
    for one in made:
        one.kill()


@pytest.fixture
def program(driver: Path) -> Iterator[Callable[..., Program]]:
    """Starts programs at an agent."""
    made: list[Program] = []

    def start(at: Agent, job: str | None = None, **env: str) -> Program:
        made.append(Program(driver, at.place, job or at.job, env))
        return made[-1]

    yield start
    for one in made:
        one.kill()
        with suppress(OSError):
            one.process.stdin.close()  # type: ignore[union-attr]


@pytest.fixture
def clients() -> Callable[[Agent], list[dict[str, Any]]]:
    """The agent's list of its clients; [] if the agent isn't there."""

    def ask(at: Agent) -> list[dict[str, Any]]:
        with suppress(AgentError):
            return at.status()["clients"]
        return []

    return ask
