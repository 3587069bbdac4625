"""The RNICs of this host, their distances to each other and to GPUs, and the backups of each.

Everything comes from sysfs (Documentation/ABI/stable/sysfs-class-infiniband in Linux), whose root is a parameter;
pyverbs, if it can be imported, adds what the kernel tells only through the verbs: the active MTU of an InfiniBand port
and the limits of a device.

Distances of two PCI devices, nearest first: CARD (functions of one device), SWITCH (a bridge above both), BRIDGE (one
host bridge), NODE (one NUMA node), SYSTEM (traffic crosses the sockets), UNKNOWN (one has no place, e.g. Soft-RoCE over
a virtual interface).
"""

from __future__ import annotations

import contextlib
import enum
import importlib
import ipaddress
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

SYSFS = Path("/sys")
BACKUPS_MAX = 3  # SHIFT_PATHS of lowerhalf/rdma/objects/objects.h, less one
_MTUS = (4096, 2048, 1024, 512, 256)
# bytes that the kernel subtracts from the interface's MTU (iboe_get_mtu in Linux' include/rdma/ib_addr.h)
_ROCE_HEADERS = 96
_PCI = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_GPU_VENDORS = {"0x10de", "0x1002", "0x8086"}  # NVIDIA, AMD, Intel; consoles of service processors have other vendors


class Nearness(enum.IntEnum):
    """The distance of two devices: smaller is nearer."""

    CARD = 0
    SWITCH = 1
    BRIDGE = 2
    NODE = 3
    SYSTEM = 4
    UNKNOWN = 5


# The order in which backups are taken. Another card survives what breaks a card; the same one at least doesn't cross
# the sockets.
_PREFERENCE = (Nearness.SWITCH, Nearness.BRIDGE, Nearness.NODE, Nearness.CARD, Nearness.SYSTEM, Nearness.UNKNOWN)


@dataclass(frozen=True)
class Location:
    """The place of a device. pci: the addresses from below the host bridge down to the device; empty if unknown. node:
    None if unknown.
    """

    bridge: str = ""
    pci: tuple[str, ...] = ()
    node: int | None = None

    def nearness(self, other: Location) -> tuple[Nearness, int]:
        """The distance class, and the number of steps through the tree, which distinguishes nested switches."""
        if not self.pci or not other.pci:
            return Nearness.UNKNOWN, 0
        if self.bridge != other.bridge:
            near = Nearness.NODE if self.node is not None and self.node == other.node else Nearness.SYSTEM
            return near, len(self.pci) + len(other.pci)
        common = 0
        while common < min(len(self.pci), len(other.pci)) and self.pci[common] == other.pci[common]:
            common += 1
        steps = len(self.pci) + len(other.pci) - 2 * common
        if self.pci[-1].partition(".")[0] == other.pci[-1].partition(".")[0]:
            return Nearness.CARD, steps
        return (Nearness.SWITCH if common else Nearness.BRIDGE), steps


@dataclass(frozen=True)
class Gid:
    """An entry of a port's table. kind: "RoCE v2", "RoCE v1" or "IB"; netdev: "" for InfiniBand."""

    index: int
    gid: str
    kind: str
    netdev: str

    @property
    def address(self) -> str:
        """The IP address, of an entry that is made from one."""
        found = ipaddress.IPv6Address(self.gid)
        return str(found.ipv4_mapped or found)


@dataclass(frozen=True)
class Port:
    """rate in Gb/s, 0 if unknown; mtu: the active one in bytes, 0 if unknown; link: Ethernet (RoCE, iWARP) or
    InfiniBand."""

    number: int
    state: str
    physical: str
    link: str
    rate: float
    mtu: int
    lid: int
    gids: tuple[Gid, ...]

    @property
    def active(self) -> bool:
        """Can the port carry traffic?"""
        return self.state == "ACTIVE"

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of its GIDs."""
        return frozenset(g.kind for g in self.gids)


@dataclass
class Device:
    """An RNIC. gpus: PCI addresses of the GPUs to which no other RNIC is nearer; backups: names, best first; unfit: why
    other RNICs cannot be backups; limits: from pyverbs."""

    name: str
    kind: str
    firmware: str
    location: Location
    ports: list[Port]
    gpus: list[str] = field(default_factory=list)
    backups: list[str] = field(default_factory=list)
    unfit: dict[str, str] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)


def scan(root: Path = SYSFS) -> list[Device]:
    """All RNICs in natural order of their names, with their backups."""
    found = [
        _device(path, root) for path in sorted((root / "class/infiniband").glob("*"), key=lambda p: _natural(p.name))
    ]
    gpus = {path.name: _location(path) for path in (root / "bus/pci/devices").glob("*") if _is_gpu(path)}
    for gpu in sorted(gpus):
        distances = [gpus[gpu].nearness(device.location) for device in found]
        for device, distance in zip(found, distances, strict=True):
            if distance == min(distances) and distance[0] < Nearness.SYSTEM:
                device.gpus.append(gpu)
    for number, device in enumerate(found):
        _choose_backups(device, number, found)
    return found


def backup_list(devices: Sequence[Device]) -> str:
    """The value of MANAPY_SHIFT_BACKUP: DEVICE:BACKUP:BACKUP...,DEVICE:BACKUP...; "" if no device has one."""
    return ",".join(":".join([device.name, *device.backups[:BACKUPS_MAX]]) for device in devices if device.backups)


def _choose_backups(device: Device, number: int, devices: Sequence[Device]) -> None:
    """Choose backups by speed, then by distance, then in a circle.

    The circle distributes the traffic of several failed devices, and lets similar hosts choose backups on the same
    rail.
    """
    candidates = []
    for other_number, other in enumerate(devices):
        if other is device:
            continue
        if why := _unfit(device, other):
            device.unfit[other.name] = why
            continue
        near, steps = device.location.nearness(other.location)
        slower = _first(other).rate < _first(device).rate
        candidates.append((slower, _PREFERENCE.index(near), steps, (other_number - number) % len(devices), other.name))
    device.backups = [candidate[-1] for candidate in sorted(candidates)]


def _first(device: Device) -> Port:
    """The port that is compared: the first active one."""
    return next((port for port in device.ports if port.active), device.ports[0])


def _unfit(device: Device, other: Device) -> str | None:
    """Why `other` cannot carry the traffic of `device`."""
    if not other.ports or not device.ports:
        return "no ports"
    mine, its = _first(device), _first(other)
    if not its.active:
        return f"port {its.number} is {its.state}"
    if mine.link != its.link:
        return f"{its.link}, not {mine.link}"
    if mine.mtu and its.mtu and its.mtu < mine.mtu:
        return f"MTU {its.mtu}, not {mine.mtu}"
    if mine.kinds and not mine.kinds & its.kinds:
        return f"GIDs of {' and '.join(sorted(its.kinds)) or 'no kind'}, not {' or '.join(sorted(mine.kinds))}"
    return None


# ---- reading sysfs


def _device(path: Path, root: Path) -> Device:
    netdev = _text(path / "parent")  # Soft-RoCE and Soft-iWARP: the interface below
    base = root / "class/net" / netdev / "device" if netdev else path / "device"
    ports = [
        _port(p, root) for p in sorted((path / "ports").glob("*"), key=lambda p: _natural(p.name)) if p.name.isdigit()
    ]
    return Device(path.name, _text(path / "hca_type") or _driver(path), _text(path / "fw_ver"), _location(base), ports)


def _port(path: Path, root: Path) -> Port:
    link = _text(path / "link_layer")
    gids = tuple(_gids(path, link))
    rate = _text(path / "rate").split(" ")[0]
    lid = _text(path / "lid")
    mtu = 0
    if link == "Ethernet":
        sizes = [
            int(text)
            for name in {g.netdev for g in gids if g.netdev}
            if (text := _text(root / "class/net" / name / "mtu")).isdigit()
        ]
        if sizes:
            mtu = next((m for m in _MTUS if m <= min(sizes) - _ROCE_HEADERS), 0)
    state, physical = (_text(path / name).rpartition(": ")[2] for name in ("state", "phys_state"))
    return Port(
        int(path.name),
        state,
        physical,
        link,
        float(rate) if re.fullmatch(r"\d+(\.\d+)?", rate) else 0.0,
        mtu,
        int(lid, 0) if lid else 0,
        gids,
    )


def _gids(port: Path, link: str) -> Iterator[Gid]:
    """The entries in use. Of a thousand entries most may be empty (all zeros); an empty one costs one read."""
    numbers = sorted(int(name) for name in _names(port / "gids") if name.isdigit())
    for number in numbers:
        gid = _text(f"{port}/gids/{number}")
        if gid.replace(":", "").strip("0"):
            kind = _text(f"{port}/gid_attrs/types/{number}")
            if kind == "IB/RoCE v1":
                kind = "RoCE v1" if link == "Ethernet" else "IB"
            yield Gid(number, gid, kind, _text(f"{port}/gid_attrs/ndevs/{number}"))


def _location(device: Path) -> Location:
    """The location of a PCI device, by its directory or a link to it."""
    try:
        parts = device.resolve(strict=True).parts
    except OSError:
        return Location()
    chain = tuple(part for part in parts if _PCI.fullmatch(part))
    node = _text(device / "numa_node")
    if not chain:
        return Location()
    bridge = parts[parts.index(chain[0]) - 1]
    return Location(bridge, chain, int(node) if node.isdigit() else None)


def _is_gpu(device: Path) -> bool:
    kind = _text(device / "class")
    if kind.startswith(("0x0302", "0x1200")):  # 3D controller, processing accelerator
        return True
    return kind.startswith("0x0300") and _text(device / "vendor") in _GPU_VENDORS


def _driver(path: Path) -> str:
    with contextlib.suppress(OSError):
        return (path / "device/driver").resolve(strict=True).name
    return ""


def _names(directory: Path) -> list[str]:
    """The names in a directory; empty if it does not exist."""
    with contextlib.suppress(OSError):
        return os.listdir(directory)
    return []


def _text(path: Path | str) -> str:
    """The first line of a file; "" if it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(fd, 4096).decode(errors="replace").strip()
    except OSError:
        return ""
    finally:
        os.close(fd)


def _natural(name: str) -> list[tuple[int, str]]:
    """A sort key that puts mlx5_2 before mlx5_10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name) if part]


# ---- pyverbs


def ask_verbs(devices: Sequence[Device]) -> None:
    """Add the information of pyverbs, if it can be imported. Debian's pyverbs also works in another Python of its
    version."""
    debian = "/usr/lib/python3/dist-packages"
    sys.path.append(debian)
    try:
        context = importlib.import_module("pyverbs.device").Context
    except Exception:  # pip's pyverbs may raise other errors than ImportError
        return
    finally:
        sys.path.remove(debian)
    for device in devices:
        # ignore all errors: this is only additional information
        with contextlib.suppress(Exception), context(name=device.name) as opened:
            attributes = opened.query_device()
            device.limits = {
                key: int(getattr(attributes, key)) for key in ("max_qp", "max_qp_wr", "max_cq", "max_mr", "max_srq")
            }
            device.ports = [
                replace(port, mtu=128 << opened.query_port(port.number).active_mtu) for port in device.ports
            ]
