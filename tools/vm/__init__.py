"""Virtual machines with RDMA devices, for tests: see machine.py."""

from .image import ImageError, image, missing
from .machine import GuestProcess, GuestTimeout, VM, VMDied, VMError

__all__ = ["VM", "GuestProcess", "GuestTimeout", "ImageError", "VMDied", "VMError", "image", "missing"]
