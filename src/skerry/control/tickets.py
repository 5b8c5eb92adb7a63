"""Tickets for WebSockets: issued to whoever may open a command's, redeemed once."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from skerry.control.deps import Deps
from skerry.model.account import hash_secret
from skerry.model.command import Command
from skerry.model.errors import Unauthorized
from skerry.model.ticket import TICKET_S, Ticket, new_ticket_secret


@dataclass(frozen=True, slots=True)
class Issued:
    """The secret is nowhere else from here on."""

    secret: str = field(repr=False)
    expires_at: datetime


async def issue(deps: Deps, command: Command) -> Issued:
    """A new ticket for this command's WebSocket."""
    secret, expires_at = new_ticket_secret(), deps.clock.now() + timedelta(seconds=TICKET_S)
    await deps.store.add_ticket(Ticket(hash_secret(secret), command.account_id, command.id, expires_at))
    return Issued(secret, expires_at)


async def redeem(deps: Deps, secret: str) -> Ticket:
    """Use a ticket up.

    Raises:
        Unauthorized: There is no such ticket, it was used, or it is too old.
    """
    ticket = await deps.store.take_ticket(hash_secret(secret))
    if ticket is None or ticket.expires_at <= deps.clock.now():
        raise Unauthorized(f"This ticket was used or is older than {TICKET_S} s. Ask for another one.")
    return ticket
