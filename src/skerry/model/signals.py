"""Signals by number or name, as they count inside sandboxes (Linux). Pure; the table is not this machine's."""

from skerry.model.errors import Invalid

_NAMES = (
    "HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM STKFLT CHLD CONT STOP TSTP TTIN TTOU URG "
    "XCPU XFSZ VTALRM PROF WINCH IO PWR SYS"
)
_NUMBERS = {name: number for number, name in enumerate(_NAMES.split(), 1)}
LAST = 64


def signal_number(given: int | str) -> int:
    """15 for 15, "15", "TERM", "SIGTERM" and "sigterm".

    Raises:
        Invalid: No such signal.
    """
    if isinstance(given, int):
        number = given
    elif given.isascii() and given.isdigit():
        number = int(given[:4])
    else:
        number = _NUMBERS.get(given.upper().removeprefix("SIG"), 0)
    if not 1 <= number <= LAST:
        raise Invalid(f"There is no signal {ascii(given)[:40]}. Give a number from 1 to {LAST} or a name such as TERM.")
    return number
