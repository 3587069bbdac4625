"""Text in a line of the control protocol (control.h). It has its own module, so that commands need not import the
messages of the clock."""

from __future__ import annotations

from urllib.parse import quote_from_bytes, unquote_to_bytes


def encode_text(text: str) -> str:
    """Percent-encode (':' and ',' too, so that it fits into a row); the empty string is '%'."""
    return quote_from_bytes(text.encode("utf-8", "surrogateescape"), safe="!#$&()*+/;<=>?@[]^_`{|}~'\"\\") or "%"


def decode_text(text: str) -> str:
    """The text that was encoded."""
    if "%" not in text:
        return text
    return "" if text == "%" else unquote_to_bytes(text).decode("utf-8", "surrogateescape")
