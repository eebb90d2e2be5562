#pragma once

namespace outbox::postgres {

/// Keeps passwords that somebody writes into outbox_drainer.broker_uri out of the server's log: the
/// line about a setting that a reload has changed shows it without the password, and a statement
/// that sets it is not repeated beside the error that it has caused. (A statement that the server
/// was told to log, by log_statement or log_min_duration_statement, is logged as it is.)
void install_log_guard();

/// What the present statement says, and where it was called, is not to be logged with any message:
/// it may hold a password.
void keep_statement_out_of_log();

}  // namespace outbox::postgres
