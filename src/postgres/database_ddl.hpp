#pragma once

namespace outbox::postgres {

/// Makes the drainer of a database step aside for commands that need the database for themselves:
/// DROP DATABASE, ALTER DATABASE ... RENAME or SET TABLESPACE, and CREATE DATABASE with it as
/// template. Without this they would fail, as the drainer is a session of the database. Called from
/// _PG_init of a preloading server only.
void install_database_ddl_hook();

}  // namespace outbox::postgres
