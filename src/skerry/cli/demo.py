"""What `up` shows at its end: a sandbox made, used and destroyed through the public client."""

import secrets
from typing import TYPE_CHECKING

from skerry.cli.output import Step, step
from skerry.model.errors import SkerryError

if TYPE_CHECKING:
    from skerry.sdk import Skerry

PROGRAM = "import platform, sys; print(6 * 7, 'from Python', platform.python_version(), 'on', platform.release())"
TEXT = "written from outside\n"


def run_demo(server: "Skerry", steps: list[Step], *, quiet: bool) -> None:
    """Create, run Python, write and read a file, destroy; each with its time.

    Raises:
        SkerryError: A step failed or gave something else than it must; the sandbox is destroyed nevertheless.
    """
    name = f"demo-{secrets.token_hex(4)}"
    try:
        with step("create a sandbox", steps, quiet=quiet) as one:
            box = server.create(name=name)
            one.note = f"{box.id} on {box.runtime}"
    except KeyboardInterrupt:
        # The server makes it all the same. It is on record from the first moment, and can be destroyed from then on.
        for made in server.list():
            if made.name == name:
                made.destroy()
        raise
    try:
        with step("run Python in it", steps, quiet=quiet) as one:
            one.note = box.commands.run(["python3", "-c", PROGRAM]).check().stdout.strip()
        with step("write a file", steps, quiet=quiet) as one:
            one.note = box.files.write("hello.txt", TEXT).path
        with step("read it, from inside and outside", steps, quiet=quiet) as one:
            inside = box.commands.run("cat /workspace/hello.txt").check().stdout
            outside = box.files.read_text("hello.txt")
            if not inside == outside == TEXT:
                raise SkerryError(f"The file came back changed: {inside!r} inside, {outside!r} outside.")
    finally:
        with step("destroy it", steps, quiet=quiet):
            box.destroy()
