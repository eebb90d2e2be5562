#pragma once

#include "postgres/prelude.hpp"

extern "C" {
#include "utils/uuid.h"
}

namespace outbox::postgres {

/// What an INSERT into outbox.event ran into. NULL is a null pointer, which finds nothing.
struct EventIdentity {
    const pg_uuid_t* id;
    text* source;
    text* message_id;
};

/// Whether outbox.event has an event with that id, or else with that source and message_id, and
/// which. Sees what was committed since the caller's statement began. Reads with the rights of the
/// table's owner, because a producer may write but not read; the caller must have the right to
/// INSERT.
bool find_duplicate(const EventIdentity& identity, pg_uuid_t& found);

}  // namespace outbox::postgres
