#pragma once

#include <optional>
#include <string>
#include <vector>

#include "postgres/guard.hpp"

namespace outbox::postgres {

struct Database {
    Oid oid = InvalidOid;
    std::string name;
};

/// Every database that takes connections, from the shared catalog, in a transaction of its own.
/// nullopt with the error when it could not be read.
std::optional<std::vector<Database>> list_databases(PgError& error);

}  // namespace outbox::postgres
