// outbox.validate(): what a producer would be told of an event.
#include "postgres/producer_checks.hpp"

extern "C" {
#include "access/htup_details.h"
#include "executor/executor.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/typcache.h"
}

namespace outbox::postgres {

namespace {

/// Where the columns are in the rows of the last call: kept from call to call of one query.
struct KnownType {
    std::uint64_t identifier;  ///< another one after each ALTER TABLE
    EventColumns columns;
};

const EventColumns& columns_of(FunctionCallInfo fcinfo, TupleDesc description) {
    const std::uint64_t identifier =
        assign_record_type_identifier(description->tdtypeid, description->tdtypmod);
    auto* known = static_cast<KnownType*>(fcinfo->flinfo->fn_extra);
    if (known == nullptr || known->identifier != identifier) {
        const EventColumns columns =
            find_event_columns(description, format_type_be(description->tdtypeid));
        known =
            static_cast<KnownType*>(MemoryContextAlloc(fcinfo->flinfo->fn_mcxt, sizeof(KnownType)));
        *known = {identifier, columns};
        fcinfo->flinfo->fn_extra = known;
    }
    return known->columns;
}

void judge_row(FunctionCallInfo fcinfo, HeapTupleHeader row, Verdict& verdict) {
    TupleDesc description =
        lookup_rowtype_tupdesc(HeapTupleHeaderGetTypeId(row), HeapTupleHeaderGetTypMod(row));
    HeapTupleData tuple{};
    tuple.t_len = HeapTupleHeaderGetDatumLength(row);
    tuple.t_data = row;
    auto* values = static_cast<Datum*>(palloc(sizeof(Datum) * description->natts));
    auto* nulls = static_cast<bool*>(palloc(sizeof(bool) * description->natts));
    heap_deform_tuple(&tuple, description, values, nulls);
    judge_event(columns_of(fcinfo, description), values, nulls, verdict);
    ReleaseTupleDesc(description);
}

}  // namespace

}  // namespace outbox::postgres

extern "C" {

PG_FUNCTION_INFO_V1(outbox_drainer_validate);

/// outbox.validate(event outbox.event) returns record
OBD_EXPORT Datum outbox_drainer_validate(PG_FUNCTION_ARGS) {
    using namespace outbox::postgres;
    TupleDesc result = nullptr;
    if (get_call_result_type(fcinfo, nullptr, &result) != TYPEFUNC_COMPOSITE) {
        ereport(ERROR,
                (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                 errmsg("function returning record called in a context that cannot take it")));
    }
    Verdict verdict;
    judge_row(fcinfo, PG_GETARG_HEAPTUPLEHEADER(0), verdict);

    Datum values[2] = {};
    bool nulls[2] = {!verdict.refused, !verdict.refused};
    if (verdict.refused) {
        values[0] = CStringGetTextDatum(verdict.code);
        values[1] = CStringGetTextDatum(detail_text(verdict));
    }
    PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(result), values, nulls)));
}

}  // extern "C"
