"""The control protocol: the mirror of lowerhalf/include/manapy/control.h (tests/unit/ckpt/test_protocol.py compares
them).

The names of all messages are here. manapy.clock.messages has the fields of the collective clock's messages; this file
has those of all others.
"""

from __future__ import annotations

from ..core.handshake import SECRET_BYTES, VERSION
from ..core.wire_text import decode_text, encode_text

__all__ = [
    "ANSWER_MAX",
    "EXIT_CHECKPOINTED",
    "FROM_BELOW",
    "FROM_COMMAND",
    "FROM_NODE",
    "FROM_RANK",
    "INIT_MS",
    "LINE_MAX",
    "SECRET_BYTES",
    "TO_BELOW",
    "TO_COMMAND",
    "TO_NODE",
    "TO_RANK",
    "VERSION",
    "decode_text",
    "encode_text",
    "join",
]

LINE_MAX = 1 << 20  # without its seal
ANSWER_MAX = 1 << 28  # JSON to a command
EXIT_CHECKPOINTED = 0
INIT_MS = 2000  # a rank reports an MPI_Init that takes as long

FROM_RANK = frozenset(
    (
        "HELLO PROGRAM CHECKED REFUSED DISABLED ROWS RAISE RETRACT STATE FROZEN NOTFROZEN CALLED STOPPED DRAINED "
        "WRITTEN CAPTURED FAILED RESUMED READY REQUEST TREE PLACE DONE"
    ).split()
)
TO_RANK = frozenset(
    (
        "CHECK INTENT TARGETS TARGET ADVANCE WITHDRAW FREEZE THAW CALL STOP DRAIN WRITE CAPTURE RESUME ABORT "
        "TICKET TREE GO NOTED SAY KILL UNLED"
    ).split()
)
FROM_NODE = frozenset(
    "NODE STAY LISTENS JOINED PARTED FROM LINES LOST GONE TIME PIECE ENDED SERVES KEYS STORED".split()
)
TO_NODE = frozenset("DIRECT BELOW LISTEN FOR LINES COLLECT ASK MORE LEAVE SERVE KEYED STORE".split())
FROM_BELOW = frozenset("JOIN LINES TIME PIECE ENDED SERVES KEYS STORED".split())
TO_BELOW = frozenset("LINES COLLECT ASK MORE LEAVE SERVE KEYED STORE UNLED".split())
FROM_COMMAND = frozenset("CHECKPOINT RECENT STATUS STOP COLLECT ASK SERVE FETCH".split())
TO_COMMAND = frozenset("PROGRESS RESULT JSON COLLECTING PIECE FOUND".split())

GRACE_DEFAULT = -1  # child_grace_ms: as given at launch


def join(kind: str, *fields: int | str) -> str:
    """One line without its newline; strings are encoded."""
    return " ".join([kind, *(str(f) if isinstance(f, int) else encode_text(f) for f in fields)])
