"""Shell sessions, startup commands and their runs."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sandboxes", sa.Column("startup_command", sa.Text))
    op.add_column("commands", sa.Column("kind", sa.String, nullable=False, server_default="command"))
    # What reconciling reads every few seconds: the few that have one.
    started = sa.text("startup_command IS NOT NULL AND state = 'running'")
    op.create_index("sandboxes_started_up", "sandboxes", ["id"], sqlite_where=started, postgresql_where=started)
    op.create_table(
        "startups",
        sa.Column("sandbox_id", sa.String, sa.ForeignKey("sandboxes.id"), primary_key=True),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("command_id", sa.String),
        sa.Column("ran_at_us", sa.BigInteger),
    )
    op.create_table(
        "shells",
        sa.Column("seq", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("id", sa.String, nullable=False, unique=True),
        sa.Column("sandbox_id", sa.String, sa.ForeignKey("sandboxes.id"), nullable=False, index=True),
        sa.Column("account_id", sa.String, nullable=False),
        sa.Column("created_at_us", sa.BigInteger, nullable=False),
        sa.Column("used_at_us", sa.BigInteger, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("command_id", sa.String),
        sa.Column("token", sa.String),
    )
