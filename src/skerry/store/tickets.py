"""Tickets for WebSockets, in one transaction each: added, taken once, or void."""

from sqlalchemy import Connection, delete, insert

from skerry.model.ids import AccountId
from skerry.model.ticket import Ticket
from skerry.store import rows
from skerry.store.tables import tickets


def add(connection: Connection, *, ticket: Ticket, now_us: int) -> None:
    """With those removed that are too old by now: nobody comes for them."""
    connection.execute(delete(tickets).where(tickets.c.expires_at_us <= now_us))
    connection.execute(insert(tickets), rows.ticket_row(ticket))


def void(connection: Connection, *, account_id: AccountId) -> None:
    connection.execute(delete(tickets).where(tickets.c.account_id == account_id))


def take(connection: Connection, *, secret_hash: bytes) -> Ticket | None:
    chosen = delete(tickets).where(tickets.c.secret_hash == secret_hash).returning(*tickets.c)
    row = connection.execute(chosen).one_or_none()
    return None if row is None else rows.ticket_of(row)
