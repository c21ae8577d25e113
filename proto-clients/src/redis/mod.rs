//! Redis wire client.
