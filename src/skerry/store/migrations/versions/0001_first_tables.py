"""Accounts, projects, keys, sandboxes with their labels and events, commands."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    _accounts()
    _sandboxes()
    _commands()


def _accounts() -> None:
    op.create_table(
        "accounts",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("plan", sa.String, nullable=False),
        sa.Column("default_project_id", sa.String, nullable=False),
        sa.Column("created_at_us", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "projects",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("account_id", sa.String, sa.ForeignKey("accounts.id"), nullable=False),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("created_at_us", sa.BigInteger, nullable=False),
        sa.UniqueConstraint("account_id", "name"),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("account_id", sa.String, sa.ForeignKey("accounts.id"), nullable=False, index=True),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("secret_hash", sa.LargeBinary, nullable=False, unique=True),
        sa.Column("created_at_us", sa.BigInteger, nullable=False),
        sa.Column("last_used_at_us", sa.BigInteger),
    )


def _sandboxes() -> None:
    op.create_table(
        "sandboxes",
        sa.Column("seq", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("id", sa.String, nullable=False, unique=True),
        sa.Column("account_id", sa.String, sa.ForeignKey("accounts.id"), nullable=False),
        sa.Column("project_id", sa.String, sa.ForeignKey("projects.id"), nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("name", sa.String),
        sa.Column("template", sa.String, nullable=False),
        sa.Column("limits", sa.Text, nullable=False),
        sa.Column("timeout_s", sa.Integer, nullable=False),
        sa.Column("network_mode", sa.String, nullable=False),
        sa.Column("created_at_us", sa.BigInteger, nullable=False),
        sa.Column("updated_at_us", sa.BigInteger, nullable=False),
        sa.Column("env", sa.Text, nullable=False),
        sa.Column("metadata", sa.Text, nullable=False),
        sa.Column("capabilities", sa.Text, nullable=False),
        sa.Column("model", sa.Text),
        sa.Column("runtime", sa.String),
        sa.Column("template_digest", sa.String),
        sa.Column("cause", sa.String),
        sa.Column("detail", sa.Text, nullable=False),
        sa.Index("sandboxes_by_account", "account_id", "seq"),
    )
    # What reconciling reads every few seconds: the few that are not at their end.
    unfinished = sa.text("state <> 'destroyed'")
    op.create_index("sandboxes_alive", "sandboxes", ["state"], sqlite_where=unfinished, postgresql_where=unfinished)
    op.create_table(
        "sandbox_labels",
        sa.Column("sandbox_id", sa.String, sa.ForeignKey("sandboxes.id"), primary_key=True),
        sa.Column("key", sa.String, primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
        sa.Index("sandbox_labels_by_value", "key", "value"),
    )
    op.create_table(
        "sandbox_events",
        sa.Column("seq", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("sandbox_id", sa.String, sa.ForeignKey("sandboxes.id"), nullable=False, index=True),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("event", sa.String, nullable=False),
        sa.Column("from_state", sa.String),
        sa.Column("to_state", sa.String, nullable=False),
        sa.Column("cause", sa.String),
        sa.Column("detail", sa.Text, nullable=False),
        sa.Column("at_us", sa.BigInteger, nullable=False),
    )


def _commands() -> None:
    op.create_table(
        "commands",
        sa.Column("seq", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("id", sa.String, nullable=False, unique=True),
        sa.Column("sandbox_id", sa.String, sa.ForeignKey("sandboxes.id"), nullable=False),
        sa.Column("account_id", sa.String, nullable=False),
        sa.Column("command", sa.Text, nullable=False),
        sa.Column("status", sa.String, nullable=False),
        sa.Column("working_directory", sa.Text, nullable=False),
        sa.Column("timeout_s", sa.Integer, nullable=False),
        sa.Column("started_at_us", sa.BigInteger, nullable=False),
        sa.Column("completed_at_us", sa.BigInteger),
        sa.Column("exit_code", sa.Integer),
        sa.Column("signal", sa.Integer),
        sa.Column("timed_out", sa.Integer),
        sa.Column("output_bytes", sa.BigInteger),
        sa.Column("duration_ms", sa.BigInteger),
        sa.Column("cause", sa.String),
        sa.Column("detail", sa.Text),
        sa.Index("commands_by_sandbox", "sandbox_id", "seq"),
    )
    running = sa.text("status = 'running'")
    op.create_index("commands_running", "commands", ["sandbox_id"], sqlite_where=running, postgresql_where=running)
