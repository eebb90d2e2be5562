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

// Calls action(index, slot) for every slot that a database has.
template <class Action>
void for_each_slot(postgres::SharedState* state, Action action) {
    for (int i = 0; i < state->slot_count && state->slots[i].in_use; i++) {
        if (OidIsValid(state->slots[i].database)) {
            action(i, state->slots[i]);
        }
    }
}

template <class Condition>
int count_slots(postgres::SharedState* state, Condition condition) {
    int count = 0;
    for_each_slot(
        state, [&](int, const postgres::DrainerSlot& slot) { count += condition(slot) ? 1 : 0; });
    return count;
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

// Gives each wanted drainer a slot and takes the slots of the others back.
void Launcher::match_slots(const std::vector<postgres::Database>& databases) {
    if (!reported_error_.empty()) {
        return;
    }
    for_each_slot(state_, [&](int i, postgres::DrainerSlot& slot) {
        const auto database =
            std::find_if(databases.begin(), databases.end(),
                         [&](const auto& each) { return each.oid == slot.database; });
        if (database == databases.end() || !is_wanted(slot)) {
            surplus_.insert(i);
            release_slot(i);
        } else {
            surplus_.erase(i);
            const postgres::SlotLock lock(LW_EXCLUSIVE);
            postgres::rename_slot(slot, database->name.c_str());
        }
    });
    for (const postgres::Database& database : databases) {
        claim_slot(database, 0);
    }
    for (int worker = 1; worker < postgres::workers_per_database(); worker++) {
        claim_further_slots(databases, worker);
    }
}

// The first drainer of a wanted database always is, the others once it has found the extension.
bool Launcher::is_wanted(const postgres::DrainerSlot& slot) const {
    return slot.worker == 0 || (slot.worker < postgres::workers_per_database() &&
                                postgres::first_slot(slot.database)->present);
}

void Launcher::claim_slot(const postgres::Database& database, int worker) {
    int free = -1;
    for (int i = 0; i < state_->slot_count; i++) {
        postgres::DrainerSlot& slot = state_->slots[i];
        if (slot.in_use && slot.database == database.oid && slot.worker == worker) {
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
    postgres::DrainerSlot& slot = state_->slots[free];
    postgres::take_slot(slot, database.oid, database.name.c_str(), worker);
    if (worker > 0) {
        // A database command may just have put the others aside.
        slot.next_start = postgres::first_slot(database.oid)->next_start;
        slot.present = true;
    }
}

// Beyond what can ever run at once there is no use in a slot.
void Launcher::claim_further_slots(const std::vector<postgres::Database>& databases, int worker) {
    for (const postgres::Database& database : databases) {
        const postgres::DrainerSlot* first = postgres::first_slot(database.oid);
        const int further = count_slots(state_, [](const auto& slot) { return slot.worker > 0; });
        if (first != nullptr && first->present && further < postgres::most_drainers()) {
            claim_slot(database, worker);
        }
    }
}

// The database is gone, or not to be drained any more, or by fewer drainers.
void Launcher::release_slot(int index) {
    postgres::DrainerSlot& slot = state_->slots[index];
    if (slot.running && !has_ended(index)) {
        const postgres::SlotLock lock(LW_SHARED);
        if (slot.pid != 0) {
            kill(slot.pid, SIGTERM);
        }
        return;
    }
    // The buckets of all the database's drainers lie in the first slot.
    const auto is_of_it = [&](const auto& each) { return each.database == slot.database; };
    if (slot.worker == 0 && count_slots(state_, is_of_it) > 1) {
        return;
    }
    handles_[static_cast<std::size_t>(index)].forget();
    starved_.erase(index);
    surplus_.erase(index);
    const postgres::SlotLock lock(LW_EXCLUSIVE);
    postgres::free_slot(slot);
    if (making_room_ == index) {
        room_is_made();
    }
}

bool Launcher::has_ended(int index) const {
    const postgres::DrainerHandle& handle = handles_[static_cast<std::size_t>(index)];
    return handle ? handle.has_ended() : state_->slots[index].pid == 0;
}

void Launcher::reap() {
    for_each_slot(state_, [this](int i, postgres::DrainerSlot& slot) {
        if (slot.running && has_ended(i)) {
            handles_[static_cast<std::size_t>(i)].forget();
            const postgres::SlotLock lock(LW_EXCLUSIVE);
            note_end(slot);
            if (making_room_ == i) {
                room_is_made();
            }
        }
    });
}

// Under the lock: the first ones that waited for it need not wait for their next try.
void Launcher::room_is_made() {
    making_room_.reset();
    for (const int index : starved_) {
        if (state_->slots[index].worker == 0) {
            state_->slots[index].next_start = 0;
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
    return count_slots(state_, [](const auto& slot) { return slot.running && !slot.present; });
}

// Whether the first drainer of a database is still to have its place or its look: the others do not
// come before that.
bool Launcher::a_first_one_waits() const {
    const auto is_starved = [this](int i) { return state_->slots[i].worker == 0; };
    const auto is_to_look = [](const auto& slot) {
        return slot.worker == 0 && !slot.present && !slot.absent && slot.failures == 0;
    };
    return std::any_of(starved_.begin(), starved_.end(), is_starved) ||
           count_slots(state_, is_to_look) > 0;
}

bool Launcher::may_start(int index, std::int64_t now) const {
    const postgres::DrainerSlot& slot = state_->slots[index];
    if (slot.running || slot.absent || surplus_.contains(index) || now < slot.next_start) {
        return false;
    }
    if (slot.worker > 0) {
        return !a_first_one_waits();
    }
    return slot.present || looking() < MAX_LOOKING;
}

void Launcher::start_due() {
    for (const bool further : {false, true}) {
        for_each_slot(state_, [&](int i, const postgres::DrainerSlot& slot) {
            if ((slot.worker > 0) == further) {
                start_if_due(i);
            }
        });
    }
}

void Launcher::start_if_due(int index) {
    postgres::DrainerSlot& slot = state_->slots[index];
    // While a drainer still runs the request stays up: it may have looked before what it is asked
    // to see.
    if (!slot.running && pg_atomic_exchange_u32(&slot.start_requested, 0) != 0) {
        const postgres::SlotLock lock(LW_EXCLUSIVE);
        slot.absent = false;
        slot.next_start = 0;
    }
    if (may_start(index, GetCurrentTimestamp())) {
        start(index);
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
    const bool is_news = std::none_of(starved_.begin(), starved_.end(), [&](int other) {
        return slot.worker > 0 || state_->slots[other].worker == 0;
    });
    starved_.insert(index);
    if (is_news) {
        report_starved(slot);
    }
    if (slot.worker == 0) {
        make_room();
    }
}

void Launcher::report_starved(const postgres::DrainerSlot& slot) {
    const std::string name = "\"" + std::string(NameStr(slot.database_name)) + "\"";
    const int wanted = postgres::workers_per_database();
    const int running = count_slots(
        state_, [&](const auto& each) { return each.database == slot.database && each.running; });
    const std::string needed = std::to_string(postgres::most_drainers() + missing_drainers());
    postgres::log_warning(
        "outbox_drainer: out of background worker slots",
        slot.worker == 0 ? "The outbox of database " + name + " is not drained until one is free."
                         : "Database " + name + " has " + std::to_string(running) + " of " +
                               std::to_string(wanted) + " drainers until more are free.",
        "Set max_worker_processes to at least " + needed +
            (wanted > 1 ? ", or lower outbox_drainer.workers_per_database." : "."));
}

// How many drainers that should run do not.
int Launcher::missing_drainers() const {
    int missing = 0;
    for_each_slot(state_, [&](int i, const postgres::DrainerSlot& slot) {
        if (slot.absent || surplus_.contains(i)) {
            return;
        }
        if (slot.worker == 0) {
            missing += slot.present ? postgres::workers_per_database() : 1;
        }
        missing -= slot.running ? 1 : 0;
    });
    return missing;
}

// A database that is not drained at all goes before one that is drained faster: a further drainer
// ends, and its place is the next to be taken.
void Launcher::make_room() {
    if (making_room_.has_value()) {
        return;
    }
    int last = 0;
    for_each_slot(state_, [&](int i, const postgres::DrainerSlot& slot) {
        if (slot.worker > last && slot.pid != 0) {
            last = slot.worker;
            making_room_ = i;
        }
    });
    if (making_room_.has_value()) {
        const postgres::SlotLock lock(LW_SHARED);
        if (state_->slots[*making_room_].pid != 0) {
            kill(state_->slots[*making_room_].pid, SIGTERM);
        }
    }
}

Duration Launcher::time_to_next() const {
    if (pg_atomic_read_u32(&state_->launcher_wake) != 0) {
        return Duration{0};
    }
    const TimestampTz now = GetCurrentTimestamp();
    Duration wait = RESCAN;
    const bool further_may_start = !a_first_one_waits();
    for_each_slot(state_, [&](int i, const postgres::DrainerSlot& slot) {
        const bool is_next = slot.worker == 0 || further_may_start;
        if (is_next && !slot.running && !slot.absent && !surplus_.contains(i)) {
            const TimestampTz left = std::max<TimestampTz>(slot.next_start - now, 0);
            // A database that waits for its turn is started when another look has ended, which
            // wakes us.
            wait = std::min(wait, std::max(Duration{left / 1000 + 1}, Duration{100}));
        }
    });
    return wait;
}

}  // namespace outbox::worker
