"""Text in files, whatever its encoding: what a byte order mark says, else UTF-8, decompressed as it is read.

Every reader of text and tables opens its files here, so that what one reads the others read too. A byte order mark of
UTF-8, UTF-16 or UTF-32 is followed and dropped. Bytes that are no UTF-8 become U+FFFD, each counted. A file that is no
text at all is refused: UTF-16 without its mark, an archive, a picture.
"""

import codecs
import io
import re
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, NamedTuple, TextIO

from fastadv.data.sources.compressed import open_binary
from fastadv.errors import UserError

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    # The mark of UTF-32 begins with that of UTF-16.
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_LOOKED_AT = 1 << 16
"""bytes of the beginning that tell what a file holds"""
_CONTROL_BYTES = bytes(byte for byte in range(32) if byte not in b"\t\n\v\f\r\x1b")
_MIN_ZEROS, _MIN_JUDGED = 4, 256
"""zero bytes, and bytes in all, below which a few control characters say nothing"""
# How `surrogateescape` keeps a byte that is no UTF-8.
_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")
_REPLACEMENT = "\ufffd"


class OpenText(NamedTuple):
    """The text of a file."""

    file: TextIO
    """yields text in which `decoded` replaces what is no UTF-8"""
    line_end: str
    """what ends a line: a line feed, or a carriage return where the file's beginning has these alone"""


@contextmanager
def open_text(path: Path, is_by_line: bool = True) -> Iterator[OpenText]:
    """The file's text, its line ends as they are.

    Args:
        is_by_line: lines end at ``line_end`` alone; else at a line feed, a carriage return or both, as the csv module
            wants them.

    Raises:
        UserError: the file cannot be read, is damaged, or holds no text.
    """
    with open_binary(path) as file:
        head = file.read(_LOOKED_AT)
        file.seek(0)
        encoding = next((name for mark, name in _MARKS if head.startswith(mark)), "utf-8")
        is_utf8 = encoding.startswith("utf-8")
        if is_utf8 and _is_no_text(head):
            raise UserError(
                f"{path} holds no text, for many of its bytes are control characters; expected UTF-8, or UTF-16 or "
                "UTF-32 with a byte order mark"
            )
        start = head.decode(encoding, "ignore")
        # Of a \r\n that is cut in two the second half was not looked at.
        start = start.removesuffix("\r") if len(head) == _LOOKED_AT else start
        line_end = "\r" if "\r" in start and "\n" not in start else "\n"
        errors = "surrogateescape" if is_utf8 else "strict"
        try:
            yield OpenText(io.TextIOWrapper(file, encoding, errors, line_end if is_by_line else ""), line_end)
        except UnicodeDecodeError as error:
            raise UserError(f"{path} is damaged: {encoding.upper()} by its byte order mark, {error.reason}") from error


def _is_no_text(head: bytes) -> bool:
    num_control = len(head) - len(head.translate(None, _CONTROL_BYTES))
    # Every other byte of English in UTF-16 is 0; of random bytes one in ten is a control character.
    is_utf16 = head.count(0) >= max(_MIN_ZEROS, len(head) // 4)
    return is_utf16 or (len(head) >= _MIN_JUDGED and 12 * num_control > len(head))


def num_bytes(text: str) -> int:
    """The length of a text of `open_text` in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogateescape"))


def decoded(text: str) -> tuple[str, int]:
    """A text of `open_text` with its malformed bytes replaced, and how many sequences of them there were."""
    if text.isascii() or not _ESCAPED_BYTE.search(text):
        return text, 0
    replaced = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return replaced, replaced.count(_REPLACEMENT) - text.count(_REPLACEMENT)


def utf8_or_latin1(text: str) -> str:
    """A text of `open_text`, in Latin-1 where it is no UTF-8."""
    return text.encode("utf-8", "surrogateescape").decode("latin-1") if _ESCAPED_BYTE.search(text) else text
