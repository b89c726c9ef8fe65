"""Move the options of a command in front of the program that the command runs."""

from __future__ import annotations

from collections.abc import Collection


def own_first(words: list[str], flags: Collection[str], values: Collection[str] = ()) -> list[str]:
    """Return the words of a command line, with the options of the command moved in front of the program.

    The words after the first `--` belong to the program, so the function does not move them. It removes this `--`.

    Args:
        words: the command, then its options, the program, and the arguments of the program.
        flags: the options of the command without a value.
        values: the options of the command with a value.
    """
    rest, own, others = list(words[1:]), [], []
    while rest and rest[0] != "--":
        word = rest.pop(0)
        name = word.partition("=")[0]
        if name in flags or (name in values and ("=" in word or not rest)):
            own.append(word)
        elif name in values:
            own += [word, rest.pop(0)]
        else:
            others.append(word)
    return [words[0], *own, *others, *rest[1:]]
