"""How long to wait before a call is made again. Pure; the halves of the client do the waiting."""

import random

from skerry.model.errors import SkerryError, TooBusy

FIRST_S, LONGEST_S = 0.1, 3.0
MOST_ASKED_S = 30.0


def delay_s(attempt: int, error: SkerryError | None = None, asked_s: float | None = None) -> float:
    """Seconds before attempt `attempt` + 1: what the server asks for, else doubling with jitter."""
    if asked_s is not None:
        return min(asked_s, MOST_ASKED_S) * (1 + random.random() / 4)
    if isinstance(error, TooBusy):
        return error.retry_after_s * (1 + random.random() / 4)
    return min(FIRST_S * 2**attempt, LONGEST_S) * (0.5 + random.random() / 2)


def seconds_of(retry_after: str | None) -> float | None:
    """What a `Retry-After` asks for; None where there is none, or it is a date."""
    try:
        return None if retry_after is None else max(0.0, float(retry_after))
    except ValueError:
        return None
