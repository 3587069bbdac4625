"""Synthetic sysfs trees: PCI devices below bridges and switches, with RNICs and GPUs."""

from __future__ import annotations

import os
from pathlib import Path


class Tree:
    """A /sys in a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for place in ("class/infiniband", "class/net", "bus/pci/devices"):
            (root / place).mkdir(parents=True)

    def pci(self, *path: str, node: int = -1, kind: str = "0x020000", vendor: str = "0x15b3") -> Path:
        """A PCI device. path: the host bridge, the bridges below it, the device. Missing bridges are made."""
        where = self.root / "devices" / path[0]
        for address in path[1:]:
            where = where / address
        where.mkdir(parents=True, exist_ok=True)
        for name, text in (("numa_node", str(node)), ("class", kind), ("vendor", vendor)):
            (where / name).write_text(text + "\n")
        link = self.root / "bus/pci/devices" / path[-1]
        if not link.is_symlink():
            link.symlink_to(os.path.relpath(where, link.parent))
        return where

    def interface(self, name: str, mtu: int = 4200, device: Path | None = None) -> None:
        """A network interface."""
        where = (device if device is not None else self.root / "devices/virtual") / "net" / name
        where.mkdir(parents=True)
        (where / "mtu").write_text(f"{mtu}\n")
        if device is not None:
            (where / "device").symlink_to(os.path.relpath(device, where))
        (self.root / "class/net" / name).symlink_to(os.path.relpath(where, self.root / "class/net"))

    def rnic(
        self,
        name: str,
        device: Path | None,
        *,
        netdev: str = "",
        state: str = "4: ACTIVE",
        link: str = "Ethernet",
        rate: str = "400 Gb/sec (4X NDR)",
        gids: tuple[tuple[str, str], ...] = (
            ("fe80:0000:0000:0000:0000:00ff:fe00:0001", "IB/RoCE v1"),
            ("0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2"),
        ),
    ) -> None:
        """An RNIC with one port. Without a PCI device it is Soft-RoCE over the interface."""
        where = (device if device is not None else self.root / "devices/virtual") / "infiniband" / name
        files = {
            "fw_ver": "28.39.1002",
            "hca_type": "MT4129" if device is not None else "",
            "node_guid": "0000:0000:0000:0001",
        }
        if device is None:
            files["parent"] = netdev
        files |= {
            f"ports/1/{k}": v
            for k, v in {
                "state": state,
                "phys_state": "5: LinkUp",
                "link_layer": link,
                "rate": rate,
                "lid": "0x0",
            }.items()
        }
        for index, (gid, kind) in enumerate(gids):
            files |= {
                f"ports/1/gids/{index}": gid,
                f"ports/1/gid_attrs/types/{index}": kind,
                f"ports/1/gid_attrs/ndevs/{index}": netdev,
            }
        files[f"ports/1/gids/{len(gids)}"] = "0000:0000:0000:0000:0000:0000:0000:0000"
        for path, text in files.items():
            (where / path).parent.mkdir(parents=True, exist_ok=True)
            (where / path).write_text(text + "\n")
        if device is not None:
            (where / "device").symlink_to(os.path.relpath(device, where))
        (self.root / "class/infiniband" / name).symlink_to(os.path.relpath(where, self.root / "class/infiniband"))


def rail_server(root: Path) -> Tree:
    """Two sockets, each with two host bridges; below each of these a switch with two RNICs and two GPUs: 8 of both.
    There is also a slow RNIC for storage and a service processor's console."""
    tree = Tree(root)
    number = 0
    for socket in range(2):
        for half in range(2):
            bus = f"{socket * 8 + half * 4 + 1:x}0"
            above = (f"pci0000:{bus}", f"0000:{bus}:01.0", f"0000:{bus[0]}1:00.0")
            for slot in range(2):
                rnic = tree.pci(*above, f"0000:{bus[0]}2:0{slot}.0", f"0000:{bus[0]}{3 + slot}:00.0", node=socket)
                tree.interface(f"eth{number}", device=rnic)
                tree.rnic(f"mlx5_{number}", rnic, netdev=f"eth{number}")
                tree.pci(
                    *above,
                    f"0000:{bus[0]}2:0{slot + 2}.0",
                    f"0000:{bus[0]}{5 + slot}:00.0",
                    node=socket,
                    kind="0x030200",
                    vendor="0x10de",
                )
                number += 1
    storage = tree.pci("pci0000:00", "0000:00:02.0", "0000:01:00.0", node=0)
    tree.interface("eth8", device=storage)
    tree.rnic("mlx5_8", storage, netdev="eth8", rate="25 Gb/sec (1X EDR)")
    tree.pci("pci0000:00", "0000:00:03.0", "0000:02:00.0", node=0, kind="0x030000", vendor="0x1a03")
    return tree
