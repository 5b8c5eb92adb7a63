"""How long to wait before a call is made again. Pure; the halves of the client do the waiting."""

import random

from skerry.model.errors import SkerryError, TooBusy

FIRST_S, LONGEST_S = 0.1, 3.0


def delay_s(attempt: int, error: SkerryError | None = None) -> float:
    """Seconds before attempt `attempt` + 1: what the server asks for, else doubling with jitter."""
    if isinstance(error, TooBusy):
        return error.retry_after_s * (1 + random.random() / 4)
    return min(FIRST_S * 2**attempt, LONGEST_S) * (0.5 + random.random() / 2)
