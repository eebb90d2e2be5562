#pragma once

#include <string_view>

#include "postgres/prelude.hpp"

namespace outbox::postgres {

/// Writes a line to the server's log, at level LOG. Never fails: what cannot be logged is dropped.
void log_line(std::string_view message, std::string_view detail = {},
              std::string_view hint = {}) noexcept;
/// The same at level WARNING, with a SQLSTATE.
void log_warning(std::string_view message, std::string_view detail = {}, std::string_view hint = {},
                 int sqlstate = ERRCODE_WARNING) noexcept;

}  // namespace outbox::postgres
