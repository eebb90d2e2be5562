#pragma once

#include "postgres/prelude.hpp"

#include "core/settings.hpp"

namespace outbox::postgres {

/// Defines every outbox_drainer.* setting. `preloading`: the server is starting and loads the
/// library by shared_preload_libraries; only then can the settings that need a restart be defined.
void define_settings(bool preloading);

/// The settings that a drainer works by, as they are now in this process. May throw std::bad_alloc;
/// calls nothing that raises a PostgreSQL error.
DrainSettings current_settings();

/// outbox_drainer.databases as it is set: a comma-separated list, or "" for every database.
const char* databases_setting();
int workers_per_database();
bool allow_drop();
/// outbox_drainer.max_message_bytes, also for the producers' side.
int max_message_bytes_setting();

}  // namespace outbox::postgres
