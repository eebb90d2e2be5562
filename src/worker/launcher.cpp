#include "worker/launcher.hpp"

#include <algorithm>
#include <csignal>

#include "core/backoff.hpp"
#include "postgres/log.hpp"
#include "postgres/process.hpp"
#include "postgres/session.hpp"
#include "postgres/settings.hpp"
#include "postgres/wait.hpp"

namespace outbox::worker {

namespace {

// New databases do not wake us.
constexpr Duration RESCAN{10000};
// A drainer that lived this long was a good one: its next failure is a first failure again.
constexpr TimestampTz HEALTHY_AFTER = 60 * USECS_PER_SEC;
constexpr Backoff RESTART_BACKOFF{Duration{1000}, 2, Duration{60000}};
// How many databases are looked at at once for the extension: a server with hundreds of them must
// not spend all its background workers on the first look.
constexpr int MAX_LOOKING = 2;

std::vector<std::string> split_names(const char* list) {
    std::vector<std::string> names;
    std::string name;
    const auto finish = [&] {
        const std::size_t first = name.find_first_not_of(" \t\n");
        if (first != std::string::npos) {
            names.push_back(name.substr(first, name.find_last_not_of(" \t\n") - first + 1));
        }
        name.clear();
    };
    for (const char* c = list; *c != '\0'; c++) {
        if (*c == ',') {
            finish();
        } else {
            name += *c;
        }
    }
    finish();
    return names;
}

}  // namespace

Launcher::Launcher()
    : state_(postgres::shared_state()),
      handles_(static_cast<std::size_t>(postgres::shared_state()->slot_count)) {}

void Launcher::run() {
    for (;;) {
        if (postgres::shutdown_requested()) {
            return;
        }
        postgres::reload_if_asked();
        pg_atomic_write_u32(&state_->launcher_wake, 0);
        match_slots(wanted_databases());
        reap();
        start_due();
        postgres::PgError error;
        postgres::wait_for(-1, false, false, time_to_next(), error);
    }
}

std::vector<postgres::Database> Launcher::wanted_databases() {
    postgres::PgError error;
    auto all = postgres::list_databases(error);
    if (!all.has_value()) {
        if (reported_error_ != error.message) {
            reported_error_ = error.message;
            postgres::log_warning("outbox_drainer launcher: " + reported_error_, error.detail,
                                  error.hint);
        }
        return {};
    }
    reported_error_.clear();
    const std::vector<std::string> names = split_names(postgres::databases_setting());
    if (names.empty()) {
        return *all;
    }
    std::vector<postgres::Database> wanted;
    for (const std::string& name : names) {
        const auto found = std::find_if(
            all->begin(), all->end(), [&](const auto& database) { return database.name == name; });
        if (found != all->end()) {
            wanted.push_back(*found);
            unknown_.erase(name);
        } else if (unknown_.insert(name).second) {
            postgres::log_warning(
                "outbox_drainer: database \"" + name + "\" does not exist or takes no connections",
                "",
                "It is named in outbox_drainer.databases and is drained as soon as it is there.");
        }
    }
    return wanted;
}

// Gives each wanted database a slot and takes the slots of the others back.
void Launcher::match_slots(const std::vector<postgres::Database>& databases) {
    if (!reported_error_.empty()) {
        return;
    }
    for (int i = 0; i < state_->slot_count && state_->slots[i].in_use; i++) {
        const Oid oid = state_->slots[i].database;
        const bool wanted = std::any_of(databases.begin(), databases.end(),
                                        [&](const auto& database) { return database.oid == oid; });
        if (OidIsValid(oid) && !wanted) {
            release_slot(i);
        }
    }
    for (const postgres::Database& database : databases) {
        claim_slot(database);
    }
}

void Launcher::claim_slot(const postgres::Database& database) {
    int free = -1;
    for (int i = 0; i < state_->slot_count; i++) {
        postgres::DrainerSlot& slot = state_->slots[i];
        if (slot.in_use && slot.database == database.oid) {
            const postgres::SlotLock lock(LW_EXCLUSIVE);
            postgres::rename_slot(slot, database.name.c_str());
            return;
        }
        if (free < 0 && (!slot.in_use || !OidIsValid(slot.database))) {
            free = i;
        }
        if (!slot.in_use) {
            break;
        }
    }
    if (free < 0) {
        if (!out_of_slots_) {
            out_of_slots_ = true;
            postgres::log_warning("outbox_drainer: out of drainer slots",
                                  "Database \"" + database.name + "\" is not looked at.",
                                  "Name the databases to drain in outbox_drainer.databases.");
        }
        return;
    }
    const postgres::SlotLock lock(LW_EXCLUSIVE);
    postgres::take_slot(state_->slots[free], database.oid, database.name.c_str());
}

// The database is gone, or not to be drained any more.
void Launcher::release_slot(int index) {
    postgres::DrainerSlot& slot = state_->slots[index];
    if (slot.running && !has_ended(index)) {
        const postgres::SlotLock lock(LW_SHARED);
        if (slot.pid != 0) {
            kill(slot.pid, SIGTERM);
        }
        return;
    }
    handles_[static_cast<std::size_t>(index)].forget();
    starved_.erase(index);
    const postgres::SlotLock lock(LW_EXCLUSIVE);
    slot.database = InvalidOid;
    slot.running = false;
}

bool Launcher::has_ended(int index) const {
    const postgres::DrainerHandle& handle = handles_[static_cast<std::size_t>(index)];
    return handle ? handle.has_ended() : state_->slots[index].pid == 0;
}

void Launcher::reap() {
    for (int i = 0; i < state_->slot_count && state_->slots[i].in_use; i++) {
        postgres::DrainerSlot& slot = state_->slots[i];
        if (slot.running && has_ended(i)) {
            handles_[static_cast<std::size_t>(i)].forget();
            const postgres::SlotLock lock(LW_EXCLUSIVE);
            note_end(slot);
        }
    }
}

// Decides, under the lock, when the slot's next drainer may start.
void Launcher::note_end(postgres::DrainerSlot& slot) {
    slot.running = false;
    if (slot.absent || slot.restart_now) {
        slot.failures = 0;
        return;
    }
    const TimestampTz now = GetCurrentTimestamp();
    slot.failures = now - slot.last_started >= HEALTHY_AFTER ? 1 : slot.failures + 1;
    Random random(static_cast<std::uint64_t>(now));
    slot.next_start = std::max<TimestampTz>(
        slot.next_start,
        TimestampTzPlusMilliseconds(now, RESTART_BACKOFF.delay(slot.failures, random).count()));
}

int Launcher::looking() const {
    int count = 0;
    for (int i = 0; i < state_->slot_count && state_->slots[i].in_use; i++) {
        count += state_->slots[i].running && !state_->slots[i].present ? 1 : 0;
    }
    return count;
}

bool Launcher::may_start(const postgres::DrainerSlot& slot, std::int64_t now) const {
    if (!OidIsValid(slot.database) || slot.running) {
        return false;
    }
    if (slot.absent) {
        return false;
    }
    return now >= slot.next_start && (slot.present || looking() < MAX_LOOKING);
}

void Launcher::start_due() {
    for (int i = 0; i < state_->slot_count && state_->slots[i].in_use; i++) {
        postgres::DrainerSlot& slot = state_->slots[i];
        // While a drainer still runs the request stays up: it may have looked before what it is
        // asked to see.
        if (!slot.running && pg_atomic_exchange_u32(&slot.start_requested, 0) != 0) {
            const postgres::SlotLock lock(LW_EXCLUSIVE);
            slot.absent = false;
            slot.next_start = 0;
        }
        if (may_start(slot, GetCurrentTimestamp())) {
            start(i);
        }
    }
}

void Launcher::start(int index) {
    postgres::DrainerSlot& slot = state_->slots[index];
    {
        const postgres::SlotLock lock(LW_EXCLUSIVE);
        slot.generation++;
        slot.restart_now = false;
        slot.last_started = GetCurrentTimestamp();
        slot.running = true;
    }
    if (handles_[static_cast<std::size_t>(index)].start(index, slot.generation,
                                                        NameStr(slot.database_name))) {
        starved_.erase(index);
    } else {
        note_starved(index);
    }
}

void Launcher::note_starved(int index) {
    postgres::DrainerSlot& slot = state_->slots[index];
    {
        const postgres::SlotLock lock(LW_EXCLUSIVE);
        note_end(slot);
        strlcpy(slot.last_error, "out of background worker slots", sizeof(slot.last_error));
        slot.last_error_at = slot.last_started;
    }
    pg_atomic_fetch_add_u64(&slot.counters.start_failures, 1);
    const bool is_first = starved_.empty();
    starved_.insert(index);
    if (is_first) {
        postgres::log_warning("outbox_drainer: out of background worker slots",
                              "The outbox of database \"" +
                                  std::string(NameStr(slot.database_name)) +
                                  "\" is not drained until one is free.",
                              "You might need to increase max_worker_processes.");
    }
}

Duration Launcher::time_to_next() const {
    if (pg_atomic_read_u32(&state_->launcher_wake) != 0) {
        return Duration{0};
    }
    const TimestampTz now = GetCurrentTimestamp();
    Duration wait = RESCAN;
    for (int i = 0; i < state_->slot_count && state_->slots[i].in_use; i++) {
        const postgres::DrainerSlot& slot = state_->slots[i];
        if (OidIsValid(slot.database) && !slot.running && !slot.absent) {
            const TimestampTz left = std::max<TimestampTz>(slot.next_start - now, 0);
            // A database that waits for its turn is started when another look has ended, which
            // wakes us.
            wait = std::min(wait, std::max(Duration{left / 1000 + 1}, Duration{100}));
        }
    }
    return wait;
}

}  // namespace outbox::worker
