"""The files that the machine boots: Debian's kernel, and a small initramfs of busybox and the modules that Soft-RoCE
needs.

The kernel is kept uncompressed. QEMU boots it by its PVH entry, so no emulated processor has to unpack it.

The directory ~/.cache/manapy/vm (XDG_CACHE_HOME) keeps the downloaded package of the kernel, and an image for each
package and version of this source. An image appears by one rename, so several tests may make it at the same time. This
file computes the directory itself, because tools/vm/run works without manapy installed (manapy/core/files.py has the
same for the package).
"""

from __future__ import annotations

import functools
import hashlib
import lzma
import os
import shlex
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
INIT = HERE / "guest" / "init"

FILES_MODULES = ("virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay")
# crc32-pclmul, crc32_generic: when a device is made, rxe requests a "crc32" by name, and nothing would load it then.
RDMA_MODULES = ("crc32_generic", "crc32-pclmul", "ib_uverbs", "rdma_ucm", "veth", "bridge", "sch_netem", "rdma_rxe")

PROGRAMS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "cpio": "cpio",
    "modprobe": "kmod",
    "apt-get": "apt",
    "dpkg": "dpkg",
    "strip": "binutils",
}
SYSTEM_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))


class ImageError(Exception):
    """No image could be made; the text is one line with the reason."""


@dataclass(frozen=True)
class Image:
    """Two files for QEMU."""

    kernel: Path
    initramfs: Path


def missing() -> str | None:
    """The programs that this machine lacks to boot the virtual machine; None if it has all."""
    lacking = [(name, package) for name, package in PROGRAMS.items() if shutil.which(name, path=SYSTEM_PATH) is None]
    if not lacking:
        return None
    return f"no {', '.join(name for name, _ in lacking)} (apt install {' '.join(package for _, package in lacking)})"


def image() -> Image:
    """The image of the newest kernel that apt offers. If it does not exist yet, it is made (a download of 70 MB, and
    some seconds). Raises ImageError if that isn't possible."""
    if reason := missing():
        raise ImageError(reason)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "manapy" / "vm"
    cache.mkdir(parents=True, exist_ok=True)
    package = _package(cache)
    source = hashlib.sha256(INIT.read_bytes() + Path(__file__).read_bytes()).hexdigest()[:12]
    place = cache / f"{package.stem}-{source}"
    if not place.exists():
        with tempfile.TemporaryDirectory(dir=cache, prefix="making-") as name:
            _make(package, Path(name))
            made = Path(name) / "image"
            try:
                made.rename(place)
            except OSError:
                if not place.exists():
                    raise
    return Image(place / "vmlinux", place / "initramfs")


@functools.cache  # apt takes seconds to give the same answer again
def _package(cache: Path) -> Path:
    """The kernel's package, downloaded. Without a network: the newest one in the cache."""
    for up_to_date in (False, True):
        if up_to_date:
            _command("apt-get", "-qq", "update", check=False)  # the lists are empty or older than the mirror
        words = _command("apt-cache", "depends", "linux-image-amd64", check=False).split()
        name = next((word for word in words if word.startswith("linux-image-") and word != "linux-image-amd64"), None)
        if name is None:
            continue
        uri = shlex.split(_command("apt-get", "download", "--print-uris", name, check=False))
        if len(uri) < 2:
            continue
        package = cache / uri[1].replace("%3a", ":")
        if package.exists():
            return package
        with tempfile.TemporaryDirectory(dir=cache, prefix="download-") as where:
            _command("apt-get", "-qq", "download", name, cwd=Path(where), check=False)
            for file in Path(where).glob("*.deb"):
                return file.rename(cache / file.name)
    if here := sorted(cache.glob("linux-image-*.deb"), key=lambda path: path.stat().st_mtime):
        return here[-1]
    raise ImageError("apt offers no linux-image-amd64 (apt-get update)")


def _make(package: Path, where: Path) -> None:
    """Make where/image from the package."""
    _command("dpkg", "-x", package, where / "package")
    (kernel,) = (where / "package" / "boot").glob("vmlinuz-*")
    version = kernel.name.removeprefix("vmlinuz-")
    _command("depmod", "-b", where / "package", version)
    root = where / "root"
    for name in ("bin", "proc", "sys", "dev", "host", "memory", "root", "modules"):
        (root / name).mkdir(parents=True)
    busybox = shutil.which("busybox", path=SYSTEM_PATH)
    assert busybox is not None
    shutil.copy(busybox, root / "bin" / "busybox")
    shutil.copy(INIT, root / "init")
    files = _closure(where / "package", version, (*FILES_MODULES, *RDMA_MODULES))
    for file in files:
        _command("strip", "-g", file, "-o", root / "modules" / file.name)
    (root / "modules" / "order").write_text("".join(f"{file.name}\n" for file in files))
    (where / "image").mkdir()
    (where / "image" / "vmlinux").write_bytes(_unpacked(kernel.read_bytes()))
    names = "\0".join(str(path.relative_to(root)) for path in sorted(root.rglob("*")))
    packed = subprocess.run(
        ["cpio", "--create", "--null", "--format=newc", "--quiet"],
        cwd=root,
        input=names.encode(),
        stdout=subprocess.PIPE,
        check=True,
    )
    (where / "image" / "initramfs").write_bytes(packed.stdout)


def _unpacked(kernel: bytes) -> bytes:
    """The ELF file in a bzImage (Documentation/arch/x86/boot.rst: setup_sects, payload_offset, payload_length)."""
    if kernel[0x202:0x206] != b"HdrS":
        raise ImageError("the kernel's package holds no bzImage")
    start = (kernel[0x1F1] + 1) * 512
    offset, length = struct.unpack_from("<II", kernel, 0x248)
    payload = kernel[start + offset : start + offset + length]
    try:
        unpacked = lzma.LZMADecompressor().decompress(payload)
    except lzma.LZMAError as error:
        raise ImageError(f"the kernel is not compressed by xz: {error}") from None
    if not unpacked.startswith(b"\x7fELF"):
        raise ImageError("the kernel's package holds no ELF file")
    return unpacked


def _closure(root: Path, version: str, modules: Sequence[str]) -> list[Path]:
    """Files of the modules and of all modules that they need, in the order in which they can be loaded; without those
    that are built in."""
    files: dict[Path, None] = {}
    for module in modules:
        for line in _command("modprobe", "-d", root, "-S", version, "--show-depends", module).splitlines():
            kind, name = line.split()[:2]
            if kind == "insmod":
                files[Path(name)] = None
    return list(files)


def _command(*arguments: str | Path, cwd: Path | None = None, check: bool = True) -> str:
    """The output of a command. Raises ImageError with the output if it fails and must not."""
    done = subprocess.run(
        [str(a) for a in arguments],
        cwd=cwd,
        env={**os.environ, "PATH": SYSTEM_PATH, "LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if check and done.returncode:
        raise ImageError(
            f"{arguments[0]}: "
            f"{done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f'exit status {done.returncode}'}"
        )
    return done.stdout
