"""Where in a checkpoint the images lie: as Python writes it, and as ranks read it (image_path.h)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from compiling import build_core
from hypothesis import given
from hypothesis import strategies as st

from manapy.ckpt.store import folders, publish

DRIVER = r"""
#include <manapy/image_path.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    char path[4096];
    mpy_image_path(path, sizeof path, argv[1], atoi(argv[2]));
    return argc != 3 || puts(path) < 0;
}
"""


@pytest.fixture(scope="module")
def in_c(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prints where a rank looks for its image: CHECKPOINT RANK."""
    where = tmp_path_factory.mktemp("driver")
    (where / "driver.c").write_text(DRIVER)
    return build_core(where / "driver", [where / "driver.c"])


def looks(in_c: Path, checkpoint: Path, rank: int) -> str:
    found = subprocess.run([in_c, checkpoint, str(rank)], check=True, capture_output=True, text=True).stdout.strip()
    return str(Path(found).relative_to(checkpoint))


def published(job: Path, hosts: list[str]) -> Path:
    """A checkpoint of ranks on these hosts."""
    temporary = publish.begin(job)
    where = folders.choose(hosts)
    folders.make(temporary, where)
    entries = []
    for rank, host in enumerate(hosts):
        image = folders.image(where[rank], rank)
        (temporary / image).write_bytes(b"image")
        entries.append(publish.Entry(rank, image, 4096, 5, 7, 0.1, host))
    return publish.commit(temporary, {"argv": ["prog"], "manapy": "0.1.0", "mpirun": None}, entries, bytes(32))


@pytest.mark.parametrize("hosts", [["a"], ["a", "a", "a"], ["a", "b"], ["b", "a", "b", "c", "a"]])
def test_ranks_find_their_images(in_c: Path, tmp_path: Path, hosts: list[str]) -> None:
    checkpoint = published(tmp_path, hosts)
    entries = publish.read_manifest(checkpoint).ranks
    assert [looks(in_c, checkpoint, rank) for rank in range(len(hosts))] == [entry.image for entry in entries]
    assert all((checkpoint / entry.image).is_file() for entry in entries)
    assert (checkpoint / folders.LIST).exists() == (len(set(hosts)) > 1)
    publish.prune(tmp_path, 1)
    assert checkpoint.exists()
    published(tmp_path, hosts)
    assert publish.prune(tmp_path, 1) == [checkpoint] and not checkpoint.exists()


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=12))
def test_a_host_has_one_folder(hosts: list[str]) -> None:
    where = folders.choose(hosts)
    assert len({(host, folder) for host, folder in zip(hosts, where, strict=True)}) == len(set(hosts))
    assert len(set(where)) == len(set(hosts))
    assert all(len(f"{folder}\n") == folders.WIDTH for folder in where) or set(where) == {""}


@pytest.mark.parametrize("text", ["", "node-", "../../../x\n" * 3, "node-0x000\n" * 3, "node-00000\nnode-0000"])
def test_a_damaged_list_leads_nowhere(in_c: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / folders.LIST).write_text(text)
    assert looks(in_c, tmp_path, 1) == "rank-00001.img"
