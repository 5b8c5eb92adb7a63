"""Sealed secrets, requests that may be repeated, a hint of each key, and lists that skip what is destroyed."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # The ids of the keys that something in here may be sealed with: a key that is missing is noticed at the start.
    op.create_table(
        "sealing_keys",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("created_at_us", sa.BigInteger, nullable=False),
    )
    # What has to be done to the file outside of a transaction, and is not done yet.
    op.create_table("chores", sa.Column("name", sa.String, primary_key=True))
    op.create_table(
        "requests",
        sa.Column("account_id", sa.String, sa.ForeignKey("accounts.id"), primary_key=True),
        sa.Column("key", sa.String, primary_key=True),
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("made", sa.String, nullable=False),
        sa.Column("created_at_us", sa.BigInteger, nullable=False, index=True),
    )
    op.add_column("api_keys", sa.Column("hint", sa.String))
    there = sa.text("state <> 'destroyed'")
    op.create_index(
        "sandboxes_there_by_account", "sandboxes", ["account_id", "seq"], sqlite_where=there, postgresql_where=there
    )
    # Environments were kept in clear until now. Opening the store seals them; what is left of them in unused parts of
    # the file goes when the file is written anew.
    op.execute("INSERT INTO chores (name) SELECT 'compact' WHERE EXISTS (SELECT 1 FROM sandboxes WHERE env <> '{}')")
    op.execute("UPDATE sandboxes SET env = '{}' WHERE state = 'destroyed'")  # needed by nobody any more
