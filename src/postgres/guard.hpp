#pragma once

#include "postgres/prelude.hpp"

namespace outbox::postgres {

/// A PostgreSQL error turned into a value. Plain data: it is filled where destructors may not run.
struct PgError {
    int sqlstate = 0;
    char message[512] = "";
    char detail[512] = "";
    char hint[256] = "";
};

/// Copies the error being handled into `error` and clears PostgreSQL's error state. Only for
/// pg_try.
void take_error(PgError& error, MemoryContext context) noexcept;

/// The inner guard: runs `body`, which may raise a PostgreSQL error, and returns false with the
/// error as a value if it does. The only PG_TRY of the project.
///
/// ereport jumps over destructors, so this must sit deeper on the stack than every object that has
/// one: `body` holds plain data only (its captures are checked here, its locals by review) and
/// throws nothing. The caller must abort the transaction or subtransaction in which an error was
/// caught.
template <class Body>
bool pg_try(PgError& error, const Body& body) noexcept {
    static_assert(std::is_trivially_destructible_v<Body>, "ereport would skip this destructor");
    MemoryContext context = CurrentMemoryContext;
    volatile bool ok = true;
    PG_TRY();
    { body(); }
    PG_CATCH();
    {
        take_error(error, context);
        ok = false;
    }
    PG_END_TRY();
    return ok;
}

/// Raises the PostgreSQL error for a C++ exception that reached an entry point.
[[noreturn]] void raise_exception(const char* what);

/// The outer guard of every entry point that uses C++ objects: a C++ exception must not reach the
/// server's C frames, where it would end the cluster. The error is raised after the try block, when
/// no object is alive. `body` may call what raises PostgreSQL errors only while it holds no object
/// with a destructor.
template <class Body>
auto entry_point(const Body& body) -> decltype(body()) {
    char what[256];
    try {
        return body();
    } catch (const std::exception& e) {
        strlcpy(what, e.what(), sizeof(what));
    } catch (...) {
        strlcpy(what, "unknown C++ exception", sizeof(what));
    }
    raise_exception(what);
}

}  // namespace outbox::postgres
