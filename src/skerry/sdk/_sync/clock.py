"""Waiting, in the manner of this half of the client."""

import time


def sleep(seconds: float) -> None:
    time.sleep(seconds)
