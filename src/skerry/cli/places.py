"""SANDBOX:PATH, as `cp` and `files` take it. Asks nobody."""


def place(word: str) -> tuple[str | None, str]:
    """The sandbox (None: this machine; empty: the one in use here) and the path, which may be empty.

    What begins with `/` or `.` is always on this machine, and so is what has no colon.
    """
    box, colon, path = word.partition(":")
    if not colon or "/" in box or box.startswith("."):
        return None, word
    return box, path
