#pragma once

#include <set>
#include <string>
#include <vector>

#include "core/time.hpp"
#include "postgres/database_list.hpp"
#include "postgres/drainer_handle.hpp"
#include "postgres/shared_state.hpp"

namespace outbox::worker {

/// Keeps a drainer running for each database that has the extension. It works from what is there
/// (databases, slots, processes), not from events, so a missed wake delays it and never leaves it
/// stuck.
class Launcher {
  public:
    Launcher();

    /// Until the server stops.
    void run();

  private:
    std::vector<postgres::Database> wanted_databases();
    void match_slots(const std::vector<postgres::Database>& databases);
    void claim_slot(const postgres::Database& database);
    void release_slot(int index);
    void reap();
    void note_end(postgres::DrainerSlot& slot);
    void start_due();
    bool may_start(const postgres::DrainerSlot& slot, std::int64_t now) const;
    void start(int index);
    void note_starved(int index);
    bool has_ended(int index) const;
    int looking() const;
    Duration time_to_next() const;

    postgres::SharedState* state_;
    std::vector<postgres::DrainerHandle> handles_;  ///< by slot
    std::set<std::string> unknown_;  ///< named in the settings, not there; logged once
    std::set<int>
        starved_;  ///< slots that found no free background worker; logged when it was empty
    bool out_of_slots_ = false;
    std::string reported_error_;
};

}  // namespace outbox::worker
