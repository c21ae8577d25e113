//! PostgreSQL wire client.
