"""What every `Guest` does, as tests. Inherit `GuestSuite` and give a fixture `inside` that yields an `Inside`.

Everything here runs against a real sbxd and against `FakeGuest` alike: only common programs, only absolute paths
under `Inside.root`. Each wait has a deadline. One module a noun; what they share is in `inside`.
"""

from skerry.testing.guest_suite.commands import CommandTests
from skerry.testing.guest_suite.files import FileTests
from skerry.testing.guest_suite.inside import DEADLINE_S, Inside, content, follow, pieces, run, start, tar
from skerry.testing.guest_suite.processes import ProcessTests
from skerry.testing.guest_suite.trees import TreeTests

__all__ = ["DEADLINE_S", "GuestSuite", "Inside", "content", "follow", "pieces", "run", "start", "tar"]


class GuestSuite(CommandTests, FileTests, TreeTests, ProcessTests):
    """See the module."""
