"""The records, in SQLite. Enforces the transition table; decides nothing."""
