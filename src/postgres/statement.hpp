#pragma once

#include <algorithm>
#include <initializer_list>
#include <span>

#include "core/event.hpp"
#include "core/time.hpp"
#include "postgres/prelude.hpp"

extern "C" {
#include "executor/spi.h"
#include "utils/snapshot.h"
}

namespace outbox::postgres {

/// An SQL statement of the worker, planned once per process. Every name in `sql` is
/// schema-qualified.
struct Statement {
    const char* sql;
    int argument_count;
    Oid argument_types[5];
    SPIPlanPtr plan;
};

enum class Access : std::uint8_t { read, write };

/// Runs the statement in the connected SPI context; rows are in SPI_tuptable. `snapshot`: the one
/// to read under, or NULL for a new one. Raises PostgreSQL errors.
void execute(Statement& statement, std::initializer_list<Datum> arguments, Access access,
             Snapshot snapshot = nullptr);

/// Number of rows that the last statement gave or touched.
std::size_t row_count();
/// Column `column` (from 1) of row `row` (from 0).
Datum column(std::size_t row, int column, bool* is_null);
std::int64_t int64_column(std::size_t row, int number);
bool bool_column(std::size_t row, int number);
Uuid uuid_column(std::size_t row, int number);
/// The bytes of a text value, where it lies or, if it had to be decompressed, in a copy.
std::string_view text_of_datum(Datum value);
/// A copy in the current memory context; empty when NULL.
std::string_view text_column(std::size_t row, int number);

/// The bigint in the first column of each row; frees the rows.
std::span<const std::int64_t> returned_seqs();

/// A bigint[] value.
Datum bigint_array(std::span<const std::int64_t> values);

/// Room for `count` plain values in the current memory context.
template <class T>
T* allocate(std::size_t count) {
    static_assert(std::is_trivially_destructible_v<T>);
    return static_cast<T*>(palloc0(sizeof(T) * std::max<std::size_t>(count, 1)));
}

}  // namespace outbox::postgres
