#include "postgres/arena.hpp"

extern "C" {
#include "utils/memutils.h"
}

namespace outbox::postgres {

bool Arena::create() noexcept {
    drop();
    PgError error;
    return pg_try(error, [this] {
        context_ =
            AllocSetContextCreate(TopMemoryContext, "outbox_drainer batch", ALLOCSET_DEFAULT_SIZES);
    });
}

void Arena::drop() noexcept {
    if (context_ != nullptr) {
        PgError ignored;
        pg_try(ignored, [this] { MemoryContextDelete(context_); });
        context_ = nullptr;
    }
}

}  // namespace outbox::postgres
