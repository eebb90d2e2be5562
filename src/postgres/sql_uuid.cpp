// outbox.uuid_v7() and outbox.typeid().
#include "postgres/sql_uuid.hpp"

#include "core/uuid.hpp"
#include "postgres/guard.hpp"

extern "C" {
#include "utils/builtins.h"
#include "utils/timestamp.h"
}

namespace outbox::postgres {

namespace {

constexpr int MAX_PREFIX = 63;
constexpr int SUFFIX = 26;

// One for the process: what makes ids increase is what it remembers.
constinit UuidV7Generator generator;

using RandomBytes = std::array<std::uint8_t, 10>;

/// Random bytes in store, since fetching ten costs nearly as much as fetching a thousand. A process
/// that is forked from one with a store would hand out the same bytes, so a store belongs to the
/// process that filled it.
struct RandomStore {
    int owner;  ///< process id; 0: never filled
    std::size_t used;
    std::uint8_t bytes[1000];
};

RandomStore store;

void fill(RandomStore& store) {
    // Void until it is full: an error in here leaves nothing that could be handed out twice.
    store.owner = 0;
    if (!pg_strong_random(store.bytes, sizeof(store.bytes))) {
        ereport(ERROR, (errcode(ERRCODE_INTERNAL_ERROR),
                        errmsg("could not generate random values for a UUID")));
    }
    store.used = 0;
    store.owner = MyProcPid;
}

void take_random(RandomBytes& random) {
    static_assert(sizeof(store.bytes) % sizeof(random) == 0);
    if (store.owner != MyProcPid || store.used == sizeof(store.bytes)) {
        fill(store);
    }
    std::uint8_t* bytes = store.bytes + store.used;
    memcpy(random.data(), bytes, random.size());
    // What is in an id need not stay here for others to find.
    memset(bytes, 0, random.size());
    store.used += random.size();
}

std::uint64_t unix_milliseconds() {
    constexpr TimestampTz EPOCH_OFFSET =
        static_cast<TimestampTz>(POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * USECS_PER_DAY;
    return static_cast<std::uint64_t>((GetCurrentTimestamp() + EPOCH_OFFSET) / 1000);
}

struct TypeIdText {
    char text[MAX_PREFIX + 1 + SUFFIX + 1];
};

// TypeID's own rules allow more, an empty prefix and underscores: what is minted here is narrower.
void require_prefix(const text* prefix) {
    std::string_view chars(VARDATA_ANY(prefix), VARSIZE_ANY_EXHDR(prefix));
    if (!is_typeid_prefix(chars)) {
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("invalid TypeID prefix \"%s\"", text_to_cstring(prefix)),
                        errhint("A prefix consists of 1 to 63 lower-case letters from a to z.")));
    }
}

Datum make_typeid(const text* prefix, const pg_uuid_t& id) {
    require_prefix(prefix);
    TypeIdText result{};
    entry_point([&] {
        Uuid bytes{};
        memcpy(bytes.data(), id.data, bytes.size());
        std::string_view chars(VARDATA_ANY(prefix), VARSIZE_ANY_EXHDR(prefix));
        strlcpy(result.text, typeid_text(chars, bytes).c_str(), sizeof(result.text));
    });
    return PointerGetDatum(cstring_to_text(result.text));
}

}  // namespace

void new_uuid(pg_uuid_t& id) {
    RandomBytes random{};
    take_random(random);
    Uuid bytes = generator.next(unix_milliseconds(), random);
    static_assert(sizeof(id.data) == sizeof(bytes));
    memcpy(id.data, bytes.data(), bytes.size());
}

}  // namespace outbox::postgres

extern "C" {

PG_FUNCTION_INFO_V1(outbox_drainer_uuid_v7);
PG_FUNCTION_INFO_V1(outbox_drainer_typeid_new);
PG_FUNCTION_INFO_V1(outbox_drainer_typeid);

/// outbox.uuid_v7() returns uuid
OBD_EXPORT Datum outbox_drainer_uuid_v7(PG_FUNCTION_ARGS) {
    (void)fcinfo;
    auto* id = static_cast<pg_uuid_t*>(palloc(sizeof(pg_uuid_t)));
    outbox::postgres::new_uuid(*id);
    PG_RETURN_UUID_P(id);
}

/// outbox.typeid(prefix text) returns text
OBD_EXPORT Datum outbox_drainer_typeid_new(PG_FUNCTION_ARGS) {
    pg_uuid_t id{};
    outbox::postgres::new_uuid(id);
    return outbox::postgres::make_typeid(PG_GETARG_TEXT_PP(0), id);
}

/// outbox.typeid(prefix text, id uuid) returns text
OBD_EXPORT Datum outbox_drainer_typeid(PG_FUNCTION_ARGS) {
    return outbox::postgres::make_typeid(PG_GETARG_TEXT_PP(0), *PG_GETARG_UUID_P(1));
}

}  // extern "C"
