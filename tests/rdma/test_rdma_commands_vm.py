"""`manapy rdma` where there are RNICs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from vm import VM

MANAPY = Path(sys.executable).parent / "manapy"


def test_devices(rdma_vm: VM) -> None:
    """Names and addresses are those of the rails. MTU and limits are those of verbs (pyverbs, if it is installed)."""
    found = {
        device["name"]: device
        for device in json.loads(rdma_vm.run([str(MANAPY), "rdma", "devices", "--json"], check=True).stdout)
    }
    assert sorted(found) == ["rxa0", "rxa1", "rxa2", "rxb0", "rxb1", "rxb2"]
    (port,) = found["rxb1"]["ports"]
    assert (port["state"], port["mtu"], port["link"]) == ("ACTIVE", 4096, "Ethernet")
    assert port["gids"][1]["gid"].endswith("ffff:0a00:0102") and port["gids"][1]["kind"] == "RoCE v2"
    assert found["rxa0"]["backups"][:2] == ["rxa1", "rxa2"] and found["rxa0"]["unfit"] == {}
