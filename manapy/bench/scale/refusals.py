"""Connections that are refused at first, as on busy nodes."""

from __future__ import annotations

import socket


def refuse(listener: socket.socket, count: int) -> None:
    """Close the next connections as soon as they are made: who has made them must try again."""
    for _ in range(count):
        listener.accept()[0].close()
