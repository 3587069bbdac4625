"""The protocol of agents, programs and commands: the mirror of lowerhalf/rdma/kv/kv_protocol.h. A test compares
them."""

from __future__ import annotations

import re
from typing import NamedTuple

from ..core.errors import AgentError
from ..core.handshake import Service

VERSION = 2
LINE_MAX = 1 << 16  # bytes of a request, newline included
ANSWER_MAX = 1 << 26  # bytes of an answer to a command
KEY_MAX = 255  # characters
VALUE_MAX = 256  # bytes
BATCH = 64  # keys of one request

AGENT = Service("MANAPY-SHIFT", VERSION, ("program", "command"), "agent", AgentError, sealed=False)

# Number of fields, of those in SEVERAL up to BATCH times as many; what stands in TO_END has blanks in its last one.
FROM_PROGRAM = {"HELLO": 3, "PUT": 2, "GET": 1, "DEL": 1, "EVENT": 1, "BYE": 0}
FROM_COMMAND = {"STATUS": 0, "EVENTS": 1, "WATCH": 1, "MOVE": 3, "STAY": 1, "GUARD": 1}
TO_END = frozenset({"EVENT", "GUARD"})
SEVERAL = frozenset({"PUT", "GET", "DEL"})

_KEY = re.compile(rf"[!-~]{{1,{KEY_MAX}}}")
_VALUE = re.compile(rf"(?:[0-9a-f]{{2}}){{1,{VALUE_MAX}}}")
_CLIENT = re.compile(r"[0-9a-f]{32}")
_RANK = re.compile(r"-|[0-9]{1,9}")
_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PROCESS = re.compile(r"-|[0-9]{1,10}")
_GUARDED = re.compile(r"[0-9]{1,10} /.*")
_QP = re.compile(r"\*|[0-9]{1,9}")
_TARGET = re.compile(r"\*|[0-9]{1,10}")
_DEVICE = re.compile(r"[A-Za-z0-9_.-]{1,63}")
_SEQUENCE = re.compile(r"-1|[0-9]{1,18}")
_JSON = re.compile(r"\{.*\}|\[.*\]")

_FORMS = {
    "HELLO": (_JOB, _CLIENT, _RANK),
    "PUT": (_KEY, _VALUE),
    "GET": (_KEY,),
    "DEL": (_KEY,),
    "EVENT": (_JSON,),
    "EVENTS": (_SEQUENCE,),
    "WATCH": (_SEQUENCE,),
    "STAY": (_PROCESS,),
    "GUARD": (_GUARDED,),
    "MOVE": (_TARGET, _QP, _DEVICE),
}


class Request(NamedTuple):
    """One request. The answer repeats its number."""

    number: int
    kind: str
    fields: list[str]


class Malformed(ValueError):
    """The line is not a request. `number` is the request's number, for the answer; None if it cannot be read."""

    def __init__(self, text: str, number: int | None) -> None:
        super().__init__(text)
        self.number = number


def parse(line: bytes, kinds: dict[str, int]) -> Request:
    """One line, with or without its newline. Raises Malformed."""
    try:
        text = line.removesuffix(b"\n").decode("utf-8")
    except UnicodeDecodeError:
        raise Malformed("not UTF-8", None) from None
    head, _, rest = text.partition(" ")
    if not (head.isascii() and head.isdigit() and len(head) <= 18):
        raise Malformed("no request number", None)
    number = int(head)
    kind, blank, rest = rest.partition(" ")
    if kind not in kinds:
        raise Malformed(f"no request {kind[:32]!a}", number)
    fields = ([rest] if kind in TO_END else rest.split(" ")) if blank else []
    forms = _FORMS.get(kind, ())
    times, left = divmod(len(fields), kinds[kind]) if kind in SEVERAL else (1, len(fields) - kinds[kind])
    if (
        left
        or not 1 <= times <= BATCH
        or not all(form.fullmatch(field) for form, field in zip(forms * times, fields, strict=True))
    ):
        raise Malformed(f"{kind}: its fields are not what they should be", number)
    return Request(number, kind, fields)


def is_job(name: str) -> bool:
    """Is this a valid name of a job? Letters and digits, after the first also . _ -; at most 64."""
    return _JOB.fullmatch(name) is not None


def is_move(target: str, qp: str, device: str) -> bool:
    """Are these valid fields of a MOVE?"""
    return all(form.fullmatch(field) for form, field in zip(_FORMS["MOVE"], (target, qp, device), strict=True))


def is_device(name: str) -> bool:
    """Is this a valid name of an RNIC?"""
    return _DEVICE.fullmatch(name) is not None
