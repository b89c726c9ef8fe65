"""Rendezvous: ranks find each other in a store that may hold keys of earlier attempts of the run."""

from __future__ import annotations

import hashlib
import time
import uuid
from typing import Protocol

from ...events.errors import RankFailure

_POLL_INTERVAL = 0.02
_TOKEN_KEY, _PROPOSAL_KEY = "trainbus/here/", "trainbus/proposed"


class Store(Protocol):
    """The methods of a `torch.distributed.Store` that the rendezvous uses. A store is a dict that all ranks share."""

    def set(self, key: str, value: str) -> None:
        """Store `value` under `key`."""

    def get(self, key: str) -> bytes:
        """Wait until `key` exists, and return its value."""
        ...

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys exist."""
        ...


def join_attempt(store: Store, rank: int, world_size: int, seconds: float) -> str:
    """Wait for all ranks, and return a name for this attempt. The name is equal on all ranks and new in each attempt.

    Each rank writes a random token. Rank 0 writes the list of all tokens, again and again, because a token may be from
    an earlier attempt. The rendezvous is complete when all ranks find their own token in the same list.

    Args:
        store: the store of the launcher.
        rank: this rank.
        world_size: the number of ranks.
        seconds: the time limit.

    Raises:
        RankFailure: if a rank does not join in time. The error names the ranks that this rank waits for.
    """
    token = uuid.uuid4().hex
    ranks = range(world_size)
    token_keys = [f"{_TOKEN_KEY}{other}" for other in ranks]
    accepted_keys: list[str] = []
    store.set(token_keys[rank], token)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if rank == 0 and store.check(token_keys):
            store.set(_PROPOSAL_KEY, " ".join(store.get(key).decode() for key in token_keys))
        if store.check([_PROPOSAL_KEY]):
            tokens = store.get(_PROPOSAL_KEY).decode().split()
            if len(tokens) == world_size and tokens[rank] == token:
                name = hashlib.sha256(" ".join(tokens).encode()).hexdigest()[:32]
                accepted_keys = [f"{name}/agreed/{other}" for other in ranks]
                store.set(accepted_keys[rank], "")
                if store.check(accepted_keys):
                    return name
        time.sleep(_POLL_INTERVAL)
    # If this rank accepted no list, it cannot tell tokens of an earlier attempt from present ones. It then names only
    # the ranks without any token.
    missing = [other for other in ranks if not store.check([(accepted_keys or token_keys)[other]])]
    raise RankFailure(
        f"The rendezvous was not complete within {seconds:g} seconds (`ddp_timeout`). Rank {rank} waits for "
        f"{'rank' if len(missing) == 1 else 'ranks'} {', '.join(map(str, missing)) or 0}. Check that every rank "
        "started and built its Trainer."
    )


def all_succeeded(store: Store, name: str, rank: int, world_size: int, seconds: float, *, success: bool) -> bool:
    """Return whether an operation succeeded on all ranks. Each rank sends its own result.

    Call the function after `join_attempt`. A rank that does not answer in time counts as failed.

    Args:
        store: the store of the launcher.
        name: the name that `join_attempt` returned.
        rank: this rank.
        world_size: the number of ranks.
        seconds: the time limit.
        success: whether the operation succeeded on this rank.
    """
    keys = [f"{name}/went/{other}" for other in range(world_size)]
    store.set(keys[rank], "well" if success else "")
    deadline = time.monotonic() + seconds
    while not store.check(keys):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_INTERVAL)
    return all(store.get(key) for key in keys)
