"""The tables as the code of this version sees them. The schema itself is made by `migrations/` alone.

Times are whole microseconds since 1970 UTC, documents are JSON text: both mean the same in SQLite and PostgreSQL.
"""

from sqlalchemy import BigInteger, Column, Integer, LargeBinary, MetaData, String, Table, Text

metadata = MetaData()

accounts = Table(
    "accounts",
    metadata,
    Column("id", String, primary_key=True),
    Column("name", String, nullable=False),
    Column("plan", String, nullable=False),
    Column("default_project_id", String, nullable=False),
    Column("created_at_us", BigInteger, nullable=False),
)

projects = Table(
    "projects",
    metadata,
    Column("id", String, primary_key=True),
    Column("account_id", String, nullable=False),
    Column("name", String, nullable=False),
    Column("created_at_us", BigInteger, nullable=False),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", String, primary_key=True),
    Column("account_id", String, nullable=False),
    Column("name", String, nullable=False),
    Column("secret_hash", LargeBinary, nullable=False),
    Column("created_at_us", BigInteger, nullable=False),
    Column("last_used_at_us", BigInteger),
    Column("hint", String),  # the beginning of the secret
)

sandboxes = Table(
    "sandboxes",
    metadata,
    Column("seq", Integer, primary_key=True),  # the order of creation, which lists and their pages go by
    Column("id", String, nullable=False),
    Column("account_id", String, nullable=False),
    Column("project_id", String, nullable=False),
    Column("state", String, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("name", String),
    Column("template", String, nullable=False),
    Column("limits", Text, nullable=False),
    Column("timeout_s", Integer, nullable=False),
    Column("network_mode", String, nullable=False),
    Column("created_at_us", BigInteger, nullable=False),
    Column("updated_at_us", BigInteger, nullable=False),
    Column("env", Text, nullable=False),  # sealed
    Column("metadata", Text, nullable=False),
    Column("capabilities", Text, nullable=False),
    Column("model", Text),
    Column("runtime", String),
    Column("template_digest", String),
    Column("cause", String),
    Column("detail", Text, nullable=False),
    Column("startup_command", Text),
    Column("archive", Text),
    Column("active_at_us", BigInteger),
    Column("idle_timeout_s", Integer, nullable=False),
    Column("source", String),
)

# Metadata that can be searched for: one row an entry whose value is a scalar, as text.
sandbox_labels = Table(
    "sandbox_labels",
    metadata,
    Column("sandbox_id", String, primary_key=True),
    Column("key", String, primary_key=True),
    Column("value", Text, nullable=False),
)

# What clients asked for under a key of their own, so that a request sent twice is done once.
requests = Table(
    "requests",
    metadata,
    Column("account_id", String, primary_key=True),
    Column("key", String, primary_key=True),
    Column("fingerprint", Text, nullable=False),  # sealed: a hash of a body could be guessed from, secrets and all
    Column("made", String, nullable=False),
    Column("created_at_us", BigInteger, nullable=False),
)

sealing_keys = Table(
    "sealing_keys",
    metadata,
    Column("id", String, primary_key=True),
    Column("created_at_us", BigInteger, nullable=False),
)

chores = Table("chores", metadata, Column("name", String, primary_key=True))

sandbox_events = Table(
    "sandbox_events",
    metadata,
    Column("seq", Integer, primary_key=True),
    Column("sandbox_id", String, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("event", String, nullable=False),
    Column("from_state", String),
    Column("to_state", String, nullable=False),
    Column("cause", String),
    Column("detail", Text, nullable=False),
    Column("at_us", BigInteger, nullable=False),
)

commands = Table(
    "commands",
    metadata,
    Column("seq", Integer, primary_key=True),
    Column("id", String, nullable=False),
    Column("sandbox_id", String, nullable=False),
    Column("account_id", String, nullable=False),
    Column("command", Text, nullable=False),
    Column("status", String, nullable=False),
    Column("working_directory", Text, nullable=False),
    Column("timeout_s", Integer, nullable=False),
    Column("started_at_us", BigInteger, nullable=False),
    Column("completed_at_us", BigInteger),
    Column("exit_code", Integer),
    Column("signal", Integer),
    Column("timed_out", Integer),
    Column("output_bytes", BigInteger),
    Column("duration_ms", BigInteger),
    Column("cause", String),
    Column("detail", Text),
    Column("kind", String, nullable=False),
    Column("takes_input", Integer),
    Column("cols", Integer),  # a terminal's size; null: it is none
    Column("rows", Integer),
    Column("name", String),
)

# One row a sandbox that was started up, or had nothing to run when it could have been.
startups = Table(
    "startups",
    metadata,
    Column("sandbox_id", String, primary_key=True),
    Column("generation", Integer, nullable=False),
    Column("command_id", String),
    Column("ran_at_us", BigInteger),
)

shells = Table(
    "shells",
    metadata,
    Column("seq", Integer, primary_key=True),
    Column("id", String, nullable=False),
    Column("sandbox_id", String, nullable=False),
    Column("account_id", String, nullable=False),
    Column("created_at_us", BigInteger, nullable=False),
    Column("used_at_us", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("command_id", String),
    Column("token", String),
)

tickets = Table(
    "tickets",
    metadata,
    Column("secret_hash", LargeBinary, primary_key=True),
    Column("account_id", String, nullable=False),
    Column("command_id", String, nullable=False),
    Column("expires_at_us", BigInteger, nullable=False),
)

# One an account, made when it is first needed.
vaults = Table(
    "vaults",
    metadata,
    Column("account_id", String, primary_key=True),
    Column("id", String, nullable=False),
    Column("key", Text, nullable=False),  # sealed
    Column("created_at_us", BigInteger, nullable=False),
)

snapshots = Table(
    "snapshots",
    metadata,
    Column("seq", Integer, primary_key=True),
    Column("id", String, nullable=False),
    Column("account_id", String, nullable=False),
    Column("project_id", String, nullable=False),
    Column("state", String, nullable=False),
    Column("name", String),
    Column("source_sandbox_id", String, nullable=False),
    Column("template", String, nullable=False),
    Column("limits", Text, nullable=False),
    Column("timeout_s", Integer, nullable=False),
    Column("network_mode", String, nullable=False),
    Column("created_at_us", BigInteger, nullable=False),
    Column("updated_at_us", BigInteger, nullable=False),
    Column("env", Text, nullable=False),  # sealed
    Column("startup_command", Text),
    Column("idle_timeout_s", Integer, nullable=False),
    Column("capabilities", Text, nullable=False),
    Column("size_bytes", BigInteger),
    Column("archive", Text),
    Column("detail", Text, nullable=False),
)
