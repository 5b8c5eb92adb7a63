"""git's network operations on the wire (snake_case), with the published client's members. Answers: `CommandView`."""

from pydantic import Field

from skerry.wire.base import Request
from skerry.wire.files import PathText

WORKSPACE = "/workspace"


class GitAuth(Request):
    """For this one operation: it is kept nowhere."""

    username: str = Field("x-access-token", min_length=1, max_length=256)
    token: str = Field(min_length=1, max_length=4096, repr=False)


class GitClone(Request):
    """POST …/git/clone."""

    url: str = Field(min_length=1, max_length=4096)
    path: PathText | None = None
    branch: str | None = Field(None, min_length=1, max_length=255)
    depth: int | None = Field(None, ge=1, le=2**31 - 1)
    auth: GitAuth | None = None
    timeout_seconds: int | None = Field(None, ge=1)


class GitPull(Request):
    """POST …/git/pull."""

    path: PathText = WORKSPACE
    remote: str | None = Field(None, min_length=1, max_length=100)
    branch: str | None = Field(None, min_length=1, max_length=255)
    auth: GitAuth | None = None
    timeout_seconds: int | None = Field(None, ge=1)


class GitPush(Request):
    """POST …/git/push."""

    path: PathText = WORKSPACE
    remote: str | None = Field(None, min_length=1, max_length=100)
    branch: str | None = Field(None, min_length=1, max_length=255)
    set_upstream: bool = False
    auth: GitAuth | None = None
    timeout_seconds: int | None = Field(None, ge=1)
