"""Recognise the errors of native code that could not write a file, such as the writers of torch and safetensors.

Python's own functions raise an `OSError`. Native code raises other errors, and some of them do not say what happened.
"""

from __future__ import annotations

import errno
import os
import re

from safetensors import SafetensorError

_NUMBER = re.compile(r"\(os error (\d+)\)")
_SIGNS = (
    re.compile(r"inline_container\.cc.*(unexpected pos|PytorchStreamWriter failed writing)", re.DOTALL),  # `torch.save`
    re.compile(r"^write\(\): fd \d+ failed with (?P<text>.+)$"),  # `torch.save` in its former format
)
_NUMBERS = {os.strerror(number): number for number in errno.errorcode}
"""Text of an error of the system, such as `No space left on device` -> its number."""

_INCOMPLETE = (
    "torch could not write all bytes of a file. Either the disk is full, or the file exceeds a limit (`ulimit -f`)"
)


def is_disk_error(error: BaseException) -> bool:
    """Return whether an error says that a file could not be written."""
    if isinstance(error, (OSError, SafetensorError)):
        return True
    return isinstance(error, RuntimeError) and any(sign.search(str(error)) for sign in _SIGNS)


def errno_of(error: BaseException) -> int | None:
    """Return the number of the system's error, such as `errno.ENOSPC`; None if it is unknown.

    Args:
        error: an error for which `is_disk_error` returns True.
    """
    for each in (error, error.__cause__, error.__context__):
        if isinstance(each, OSError) and each.errno is not None:
            return each.errno
    if found := _NUMBER.search(str(error)):
        return int(found[1])
    former = _SIGNS[1].search(str(error))
    return _NUMBERS.get(former["text"]) if former else None


def reason_of_disk_error(error: BaseException) -> str:
    """Return what happened: the text of the error, or another text if the error does not say it."""
    if isinstance(error, RuntimeError) and _SIGNS[0].search(str(error)):
        number = errno_of(error)
        return _INCOMPLETE if number is None else os.strerror(number)
    return str(error).rstrip(".")
