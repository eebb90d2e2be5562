#pragma once

#include <string>

#include "postgres/prelude.hpp"

extern "C" {
#include "postmaster/bgworker.h"
}

namespace outbox::postgres {

/// Registers the launcher; called from _PG_init of a preloading server only.
void register_launcher();

/// The launcher's hold on one drainer process. After a restart of the launcher there is none for
/// the drainers that go on, and shared memory has to tell whether they live.
class DrainerHandle {
  public:
    /// Starts a drainer for the slot. False when the server has no free background worker slot.
    bool start(int slot, uint64 generation, const std::string& database);
    /// Whether the process that start() asked for has ended, or will never come.
    bool has_ended() const;
    void forget();
    explicit operator bool() const { return handle_ != nullptr; }

  private:
    BackgroundWorkerHandle* handle_ = nullptr;
};

/// The slot's generation that the launcher gave this drainer process.
uint64 own_generation();

}  // namespace outbox::postgres
