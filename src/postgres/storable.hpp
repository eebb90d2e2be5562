#pragma once

namespace outbox::postgres {

/// An error text, which is UTF-8 at best, as this database can hold it: what it cannot hold must
/// not fail the mark, or its event would be sent again and again. In the current memory context;
/// raises PostgreSQL errors.
const char* storable(const char* text);

}  // namespace outbox::postgres
