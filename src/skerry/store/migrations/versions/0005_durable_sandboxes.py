"""Sandboxes that are stopped and come back: archives, vaults, snapshots, idleness."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sandboxes", sa.Column("archive", sa.Text))
    op.add_column("sandboxes", sa.Column("active_at_us", sa.BigInteger))
    # Those from before had no idle timeout, and whoever made them counts on none.
    op.add_column("sandboxes", sa.Column("idle_timeout_s", sa.Integer, nullable=False, server_default="0"))
    op.add_column("sandboxes", sa.Column("source", sa.String))
    # What reconciling reads every few seconds. A file among a sandbox's own may start it up, too.
    op.drop_index("sandboxes_started_up", "sandboxes")
    started = sa.text("(startup_command IS NOT NULL OR generation > 1 OR source IS NOT NULL) AND state = 'running'")
    op.create_index("sandboxes_started_up", "sandboxes", ["id"], sqlite_where=started, postgresql_where=started)
    stored = sa.text("archive IS NOT NULL AND state <> 'destroyed'")
    op.create_index("sandboxes_stored", "sandboxes", ["account_id"], sqlite_where=stored, postgresql_where=stored)
    op.create_table(
        "vaults",
        sa.Column("account_id", sa.String, sa.ForeignKey("accounts.id"), primary_key=True),
        sa.Column("id", sa.String, nullable=False, unique=True),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("created_at_us", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "snapshots",
        sa.Column("seq", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("id", sa.String, nullable=False, unique=True),
        sa.Column("account_id", sa.String, sa.ForeignKey("accounts.id"), nullable=False),
        sa.Column("project_id", sa.String, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("name", sa.String),
        sa.Column("source_sandbox_id", sa.String, nullable=False),
        sa.Column("template", sa.String, nullable=False),
        sa.Column("limits", sa.Text, nullable=False),
        sa.Column("timeout_s", sa.Integer, nullable=False),
        sa.Column("network_mode", sa.String, nullable=False),
        sa.Column("created_at_us", sa.BigInteger, nullable=False),
        sa.Column("updated_at_us", sa.BigInteger, nullable=False),
        sa.Column("env", sa.Text, nullable=False),
        sa.Column("startup_command", sa.Text),
        sa.Column("idle_timeout_s", sa.Integer, nullable=False),
        sa.Column("capabilities", sa.Text, nullable=False),
        sa.Column("size_bytes", sa.BigInteger),
        sa.Column("archive", sa.Text),
        sa.Column("detail", sa.Text, nullable=False),
    )
    op.create_index("snapshots_account", "snapshots", ["account_id", "seq"])
