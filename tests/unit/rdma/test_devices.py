"""RNICs of synthetic hosts: distances, and which RNIC may be the backup of which."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from manapy.rdma import devices
from manapy.rdma.devices import Location, Nearness
from sysfs import Tree, rail_server


def by_name(root: Path) -> dict[str, devices.Device]:
    return {device.name: device for device in devices.scan(root)}


def test_eight_rnics_and_gpus_on_two_sockets(tmp_path: Path) -> None:
    found = by_name(rail_server(tmp_path / "sys").root)
    assert list(found) == [f"mlx5_{i}" for i in range(9)]
    assert [found[f"mlx5_{i}"].location.node for i in range(8)] == [0] * 4 + [1] * 4
    assert [len(found[f"mlx5_{i}"].gpus) for i in range(9)] == [2] * 8 + [0], (
        "both GPUs of the switch; the storage's none, and no console is a GPU"
    )
    first = found["mlx5_0"]
    assert first.backups[:3] == ["mlx5_1", "mlx5_2", "mlx5_3"], "the switch, then the socket; the slow one last"
    assert set(first.backups[3:7]) == {"mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7"} and first.backups[7] == "mlx5_8"
    assert first.ports[0].mtu == 4096 and first.ports[0].rate == 400 and first.kind == "MT4129"


def test_backups_go_round(tmp_path: Path) -> None:
    """Within a socket, where distances are equal, each device has a different first choice."""
    tree = Tree(tmp_path / "sys")
    for i in range(4):
        device = tree.pci("pci0000:00", f"0000:00:0{i + 1}.0", f"0000:0{i + 1}:00.0", node=0)
        tree.interface(f"eth{i}", device=device)
        tree.rnic(f"mlx5_{i}", device, netdev=f"eth{i}")
    found = by_name(tree.root)
    assert [device.backups for device in found.values()] == [
        ["mlx5_1", "mlx5_2", "mlx5_3"],
        ["mlx5_2", "mlx5_3", "mlx5_0"],
        ["mlx5_3", "mlx5_0", "mlx5_1"],
        ["mlx5_0", "mlx5_1", "mlx5_2"],
    ]
    assert devices.backup_list(list(found.values())).split(",")[3] == "mlx5_3:mlx5_0:mlx5_1:mlx5_2"


def test_other_card_first_but_not_across_sockets(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "sys")
    places = {"a0": ("01.0", "01:00.0", 0), "a1": ("01.0", "01:00.1", 0), "b": ("02.0", "02:00.0", 0)}
    for name, (bridge, address, node) in places.items():
        tree.rnic(name, tree.pci("pci0000:00", f"0000:00:{bridge}", f"0000:{address}", node=node))
    tree.rnic("far", tree.pci("pci0000:80", "0000:80:01.0", "0000:81:00.0", node=1))
    found = by_name(tree.root)
    assert found["a0"].backups == ["b", "a1", "far"] and found["far"].backups == ["a0", "a1", "b"]
    assert found["a0"].location.nearness(found["a1"].location) == (Nearness.CARD, 2)


def test_what_is_unfit_is_said(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "sys")
    kinds = {
        "good": {},
        "down": {"state": "1: DOWN"},
        "ib": {"link": "InfiniBand", "gids": (("fe80::1", "IB/RoCE v1"),)},
        "v1": {"gids": (("fe80::2", "IB/RoCE v1"),)},
        "small": {},
    }
    for i, (name, more) in enumerate(kinds.items()):
        device = tree.pci("pci0000:00", f"0000:00:0{i + 1}.0", f"0000:0{i + 1}:00.0", node=0)
        tree.interface(f"e{name}", device=device, mtu=1500 if name == "small" else 9000)
        tree.rnic(name, device, netdev=f"e{name}", **more)  # type: ignore[arg-type]
    found = by_name(tree.root)
    assert found["good"].backups == ["v1"] and found["good"].unfit == {
        "down": "port 1 is DOWN",
        "ib": "InfiniBand, not Ethernet",
        "small": "MTU 1024, not 4096",
    }
    assert found["small"].backups == ["v1", "good"] or found["small"].backups == ["good", "v1"]
    assert found["ib"].backups == [] and found["ib"].ports[0].gids[0].kind == "IB"
    assert "ib" not in [entry.split(":")[0] for entry in devices.backup_list(list(found.values())).split(",")]


def test_soft_roce_over_virtual_interfaces(tmp_path: Path) -> None:
    """As in the virtual machine: the devices have no place in the PCI tree, but they are backups for each other."""
    tree = Tree(tmp_path / "sys")
    for i, name in enumerate(("rxa0", "rxa1", "rxb0")):
        tree.interface(f"v{name}")
        tree.rnic(
            name,
            None,
            netdev=f"v{name}",
            rate="2.5 Gb/sec (1X SDR)",
            gids=((f"0000:0000:0000:0000:0000:ffff:0a00:000{i + 1}", "RoCE v2"),),
        )
    found = by_name(tree.root)
    assert (
        found["rxa0"].backups == ["rxa1", "rxb0"]
        and found["rxa0"].location == Location()
        and found["rxa0"].ports[0].mtu == 4096
    )
    assert found["rxb0"].ports[0].gids[0].address == "10.0.0.3"


def test_nothing_there(tmp_path: Path) -> None:
    assert devices.scan(tmp_path) == []


def test_half_a_tree_is_no_crash(tmp_path: Path) -> None:
    """Devices come and go while they are looked at."""
    tree = rail_server(tmp_path / "sys")
    removed = 0
    for number, path in enumerate(sorted((tree.root / "devices").rglob("*"))):
        if number % 3 == 0 and path.is_file() and not path.is_symlink():
            path.unlink()
            removed += 1
        if number % 50 == 0:
            devices.scan(tree.root)
    (tree.root / "class/infiniband/gone").symlink_to("nowhere")
    assert removed > 50 and len(devices.scan(tree.root)) == 10


def test_the_kernels_own_tree() -> None:
    """It works with whatever devices this machine has."""
    assert len(devices.scan()) == len(
        os.listdir("/sys/class/infiniband") if os.path.isdir("/sys/class/infiniband") else []
    )


@pytest.mark.parametrize(("mtu", "roce"), [(1500, 1024), (4200, 4096), (4191, 2048), (9000, 4096), (300, 0)])
def test_roce_mtu(tmp_path: Path, mtu: int, roce: int) -> None:
    """Computed as iboe_get_mtu does it."""
    tree = Tree(tmp_path / "sys")
    tree.interface("e", mtu=mtu)
    tree.rnic("rx", None, netdev="e")
    assert by_name(tree.root)["rx"].ports[0].mtu == roce
