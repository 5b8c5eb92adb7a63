"""A ticket opens one WebSocket, once, soon: for a browser, which cannot send a key along and must not hold one."""

import secrets
from dataclasses import dataclass
from datetime import datetime

from skerry.model.ids import AccountId, CommandId

TICKET_S = 30
_PREFIX = "skerry_ticket_"


@dataclass(frozen=True, slots=True)
class Ticket:
    """`secret_hash` is SHA-256 of the whole ticket: 256 random bits that exist in its holder's hands alone."""

    secret_hash: bytes
    account_id: AccountId
    command_id: CommandId
    expires_at: datetime


def new_ticket_secret() -> str:
    return _PREFIX + secrets.token_urlsafe(32)
