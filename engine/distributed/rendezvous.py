"""Meeting: the processes of a run find each other in a store, whatever earlier attempts of the run left there."""

from __future__ import annotations

import hashlib
import time
import uuid
from typing import Protocol

from ...events.errors import RankFailure

_PAUSE = 0.02
_HERE, _PROPOSED = "trainbus/here/", "trainbus/proposed"


class Store(Protocol):
    """What torch's stores do, as far as it is used here: values by name, that all processes see."""

    def set(self, key: str, value: str) -> None:
        """Write a value."""

    def get(self, key: str) -> bytes:
        """Return a value, which is waited for."""
        ...

    def check(self, keys: list[str]) -> bool:
        """Say whether all of these are there."""
        ...


def meet(store: Store, rank: int, world_size: int, seconds: float) -> str:
    """Wait for all processes, and return a name that is the same on all of them and that no earlier attempt had.

    Each process writes down a word of its own. The first puts them together, stale ones of an earlier attempt perhaps
    among them, and does so anew when one changes. A process agrees to what holds its own word, and all have met when
    all agreed to the same.

    Raises:
        RankFailure: if not all come in time, naming who did not.
    """
    word = uuid.uuid4().hex
    ranks = range(world_size)
    here = [f"{_HERE}{other}" for other in ranks]
    agreed: list[str] = []
    store.set(here[rank], word)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if rank == 0 and store.check(here):
            store.set(_PROPOSED, " ".join(store.get(key).decode() for key in here))
        if store.check([_PROPOSED]):
            words = store.get(_PROPOSED).decode().split()
            if len(words) == world_size and words[rank] == word:
                name = hashlib.sha256(" ".join(words).encode()).hexdigest()[:32]
                agreed = [f"{name}/agreed/{other}" for other in ranks]
                store.set(agreed[rank], "")
                if store.check(agreed):
                    return name
        time.sleep(_PAUSE)
    # Whether an earlier attempt wrote what stands under `here` cannot be told, where nobody agreed to anything.
    absent = [other for other in ranks if not store.check([(agreed or here)[other]])]
    raise RankFailure(
        f"The processes did not meet within {seconds:g} seconds (`ddp_timeout`): rank {rank} waits for "
        f"{'rank' if len(absent) == 1 else 'ranks'} {', '.join(map(str, absent)) or 0}. Did they start, and did they "
        "get as far as building the Trainer?"
    )


def together_there(store: Store, name: str, rank: int, world_size: int, seconds: float, *, well: bool) -> bool:
    """Say how something went that all processes do after they met under a name; return whether it went well on all.

    A process that says nothing in time counts as one on which it did not.
    """
    keys = [f"{name}/went/{other}" for other in range(world_size)]
    store.set(keys[rank], "well" if well else "")
    deadline = time.monotonic() + seconds
    while not store.check(keys):
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE)
    return all(store.get(key) for key in keys)
