#include "postgres/statement.hpp"

#include <iterator>

extern "C" {
#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/uuid.h"
}

namespace outbox::postgres {

void execute(Statement& statement, std::initializer_list<Datum> arguments, Access access,
             Snapshot snapshot) {
    if (statement.plan == nullptr) {
        SPIPlanPtr plan =
            SPI_prepare(statement.sql, statement.argument_count, statement.argument_types);
        if (plan == nullptr) {
            elog(ERROR, "SPI_prepare failed: %s", SPI_result_code_string(SPI_result));
        }
        SPI_keepplan(plan);
        statement.plan = plan;
    }
    Datum values[std::size(statement.argument_types)];
    int count = 0;
    for (Datum value : arguments) {
        values[count++] = value;
    }
    Assert(count == statement.argument_count);
    const int code = SPI_execute_snapshot(statement.plan, values, nullptr, snapshot,
                                          InvalidSnapshot, access == Access::read, true, 0);
    if (code < 0) {
        elog(ERROR, "SPI_execute_snapshot failed: %s", SPI_result_code_string(code));
    }
}

std::size_t row_count() {
    return SPI_processed;
}

Datum column(std::size_t row, int column, bool* is_null) {
    return SPI_getbinval(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, column, is_null);
}

std::int64_t int64_column(std::size_t row, int number) {
    bool is_null = false;
    const Datum value = column(row, number, &is_null);
    return is_null ? 0 : DatumGetInt64(value);
}

bool bool_column(std::size_t row, int number) {
    bool is_null = false;
    const Datum value = column(row, number, &is_null);
    return !is_null && DatumGetBool(value);
}

Uuid uuid_column(std::size_t row, int number) {
    bool is_null = false;
    const Datum value = column(row, number, &is_null);
    Uuid id{};
    if (!is_null) {
        memcpy(id.data(), DatumGetUUIDP(value)->data, id.size());
    }
    return id;
}

std::string_view text_of_datum(Datum value) {
    const varlena* text = PG_DETOAST_DATUM_PACKED(value);
    return {VARDATA_ANY(text), VARSIZE_ANY_EXHDR(text)};
}

std::string_view text_column(std::size_t row, int number) {
    bool is_null = false;
    const Datum value = column(row, number, &is_null);
    if (is_null) {
        return {};
    }
    return TextDatumGetCString(value);
}

std::span<const std::int64_t> returned_seqs() {
    const std::size_t count = row_count();
    auto* seqs = allocate<std::int64_t>(count);
    for (std::size_t i = 0; i < count; i++) {
        seqs[i] = int64_column(i, 1);
    }
    SPI_freetuptable(SPI_tuptable);
    return {seqs, count};
}

Datum bigint_array(std::span<const std::int64_t> values) {
    Datum* elements = allocate<Datum>(values.size());
    for (std::size_t i = 0; i < values.size(); i++) {
        elements[i] = Int64GetDatum(values[i]);
    }
    return PointerGetDatum(construct_array(elements, static_cast<int>(values.size()), INT8OID,
                                           sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
}

}  // namespace outbox::postgres
