#pragma once

namespace outbox::postgres {

/// Registers the transaction callback that does what the notes below ask for, once in a process's
/// life.
void install_wake_callback();

/// An outbox row was written: wakes this database's drainers when the transaction has ended. At
/// abort too, since an aborted writer may be what a gap in the sequence was waiting for.
void note_event_written();
/// Wakes the launcher and this database's drainers when the transaction commits.
void note_wake();
/// A relay was altered: drainers read its settings again when the transaction commits.
void note_relay_changed();
/// The extension came: wakes the launcher when the transaction commits.
void note_extension_created();
/// A database's drainer was put aside for a command: it may come back when the transaction has
/// ended.
void note_database_command(unsigned int database);
/// The extension goes: this database's drainers look for it again when the transaction commits.
void note_extension_dropped();

}  // namespace outbox::postgres
