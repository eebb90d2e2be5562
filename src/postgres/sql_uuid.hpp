#pragma once

#include "postgres/prelude.hpp"

extern "C" {
#include "utils/uuid.h"
}

namespace outbox::postgres {

/// Writes a new UUID of version 7, greater than every one that this process has made before. Raises
/// an error when the operating system gives no random bytes.
void new_uuid(pg_uuid_t& id);

}  // namespace outbox::postgres
