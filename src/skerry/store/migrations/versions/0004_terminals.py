"""Commands that take input, terminals among them; tickets for WebSockets."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("commands", sa.Column("takes_input", sa.Integer))
    op.add_column("commands", sa.Column("cols", sa.Integer))
    op.add_column("commands", sa.Column("rows", sa.Integer))
    op.add_column("commands", sa.Column("name", sa.String))
    terminals = sa.text("cols IS NOT NULL")
    op.create_index(
        "commands_terminals", "commands", ["sandbox_id", "seq"], sqlite_where=terminals, postgresql_where=terminals
    )
    op.create_table(
        "tickets",
        sa.Column("secret_hash", sa.LargeBinary, primary_key=True),
        sa.Column("account_id", sa.String, sa.ForeignKey("accounts.id"), nullable=False),
        sa.Column("command_id", sa.String, nullable=False),
        sa.Column("expires_at_us", sa.BigInteger, nullable=False, index=True),
    )
