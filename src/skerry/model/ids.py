"""Typed identifiers and how they are made. Ids are random and of one fixed length a kind.

The fixed length matters: `runsc` matches container ids by prefix, so no id may be the beginning of another.
"""

import re
import secrets
from typing import NewType

AccountId = NewType("AccountId", str)
ProjectId = NewType("ProjectId", str)
KeyId = NewType("KeyId", str)
SandboxId = NewType("SandboxId", str)
CommandId = NewType("CommandId", str)
ShellId = NewType("ShellId", str)
SnapshotId = NewType("SnapshotId", str)
ArchiveId = NewType("ArchiveId", str)
VaultId = NewType("VaultId", str)
# A tree of files that a provider holds: a sandbox's workspace (`sbx_…`), a snapshot's (`snap_…`), or one that is held
# for as long as a copy is being made (`cap_…`).
TreeId = NewType("TreeId", str)

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base32: nothing to mistake when read aloud
_BODY_LENGTH = 20  # 100 bits
_ID = re.compile(rf"[a-z]{{2,5}}_[{_ALPHABET}]{{{_BODY_LENGTH}}}")


def _new(prefix: str) -> str:
    bits = secrets.randbits(5 * _BODY_LENGTH)
    return prefix + "_" + "".join(_ALPHABET[bits >> shift & 31] for shift in range(0, 5 * _BODY_LENGTH, 5))


def is_id(text: str, prefix: str) -> bool:
    """Whether `text` has the form of an id of the kind `prefix` (`sbx`, `cmd`, …). Says nothing about existence."""
    return text.startswith(prefix + "_") and _ID.fullmatch(text) is not None


def new_account_id() -> AccountId:
    return AccountId(_new("acct"))


def new_project_id() -> ProjectId:
    return ProjectId(_new("proj"))


def new_key_id() -> KeyId:
    return KeyId(_new("key"))


def new_sandbox_id() -> SandboxId:
    return SandboxId(_new("sbx"))


def new_command_id() -> CommandId:
    return CommandId(_new("cmd"))


def new_shell_id() -> ShellId:
    return ShellId(_new("ses"))


def new_snapshot_id() -> SnapshotId:
    return SnapshotId(_new("snap"))


def new_archive_id() -> ArchiveId:
    return ArchiveId(_new("arc"))


def new_vault_id() -> VaultId:
    return VaultId(_new("vlt"))


def new_capture_id() -> TreeId:
    return TreeId(_new("cap"))
