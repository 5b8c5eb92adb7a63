"""Object stores, and the archives of trees that are kept in them. Knows no sandbox, no account and no database."""
