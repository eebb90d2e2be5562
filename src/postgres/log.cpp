#include "postgres/log.hpp"

#include "postgres/guard.hpp"

namespace outbox::postgres {

namespace {

void write_line(int level, int sqlstate, std::string_view message, std::string_view detail,
                std::string_view hint) noexcept {
    PgError ignored;
    pg_try(ignored, [=] {
        const auto length = [](std::string_view text) { return static_cast<int>(text.size()); };
        ereport(level,
                (errcode(sqlstate), errmsg("%.*s", length(message), message.data()),
                 detail.empty() ? 0 : errdetail_internal("%.*s", length(detail), detail.data()),
                 hint.empty() ? 0 : errhint("%.*s", length(hint), hint.data())));
    });
}

}  // namespace

void log_line(std::string_view message, std::string_view detail, std::string_view hint) noexcept {
    write_line(LOG, ERRCODE_SUCCESSFUL_COMPLETION, message, detail, hint);
}

void log_warning(std::string_view message, std::string_view detail, std::string_view hint,
                 int sqlstate) noexcept {
    write_line(WARNING, sqlstate, message, detail, hint);
}

}  // namespace outbox::postgres
