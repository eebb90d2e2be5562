// The drainer's loop: take notice of what others want, take in what the broker says, ask the state
// machine what to do, do it.
#include "worker/drainer.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "postgres/inject_fault.hpp"
#include "postgres/log.hpp"
#include "postgres/relay_settings.hpp"
#include "postgres/session.hpp"
#include "postgres/settings.hpp"
#include "postgres/signals.hpp"
#include "postgres/wait.hpp"

namespace outbox::worker {

namespace {

// The settings a drainer starts with before it has read any: nothing runs on these.
DrainSettings no_settings() {
    DrainSettings settings;
    settings.enabled = false;
    return settings;
}

// Messages that are published before the broker is heard again.
constexpr int BURST = 64;
// How often the shares of the drainers of a database are looked at, unless one is woken.
constexpr Duration SHARE_INTERVAL{100};
// How often ALTER DATABASE ... SET is looked for.
constexpr Duration SETTINGS_LOOK_INTERVAL{5000};

const char* activity_of(DrainerState state) {
    switch (state) {
        case DrainerState::starting:
            return "outbox_drainer: starting";
        case DrainerState::disabled:
            return "outbox_drainer: disabled";
        case DrainerState::misconfigured:
            return "outbox_drainer: misconfigured";
        case DrainerState::connecting:
            return "outbox_drainer: connecting to the broker";
        case DrainerState::idle:
            return "outbox_drainer: idle";
        case DrainerState::publishing:
            return "outbox_drainer: publishing, waiting for confirms";
        case DrainerState::blocked:
            return "outbox_drainer: blocked by the broker";
        case DrainerState::backoff:
            return "outbox_drainer: waiting to try again";
        case DrainerState::paused:
            return "outbox_drainer: paused";
        case DrainerState::stopping:
            return "outbox_drainer: stopping, waiting for confirms";
    }
    return "outbox_drainer";
}

}  // namespace

Drainer::Drainer(postgres::Slot& slot)
    : slot_(slot),
      self_(slot.incarnation()),
      settings_(no_settings()),
      drain_(settings_, self_.server_start ^ (self_.generation << 32) ^
                            static_cast<std::uint64_t>(self_.slot)),
      link_(drain_, slot),
      topology_(link_, slot),
      shares_(slot),
      killer_jitter_(self_.generation) {}

ExitReason Drainer::run() {
    if (!find_extension()) {
        return extension_gone_ ? ExitReason::no_extension : ExitReason::stopped;
    }
    slot_.set_present();
    drain_.hold_claims(true);
    take_settings();
    for (;;) {
        take_notice();
        if (extension_gone_) {
            // When it comes again its numbers begin anew.
            shares_.forget_floors();
            link_.close(postgres::monotonic_now(), "");
            return ExitReason::no_extension;
        }
        const Time now = postgres::monotonic_now();
        link_.pump(now);
        share_buckets_if_due(now);
        report();
        inject_after_pump();
        topology_.look();
        const Command command = publish_burst(now);
        switch (command.kind) {
            case Command::Kind::wait:
                wait(command.until);
                break;
            case Command::Kind::connect:
                link_.open(now, settings_, command.broker);
                break;
            case Command::Kind::disconnect:
                link_.close(now, command.reason);
                break;
            case Command::Kind::publish:  // the burst is full
                break;
            case Command::Kind::ask:
                link_.ask_for_exchange(command.exchange);
                break;
            case Command::Kind::transact:
                transact();
                break;
            case Command::Kind::replay:
                replay();
                break;
            case Command::Kind::exit:
                write_last_floor();
                link_.close(now, "");
                return stored_settings_changed_ ? ExitReason::settings_changed
                                                : ExitReason::stopped;
        }
    }
}

// Publishes up to BURST messages and gives the command that comes after them, or the last publish,
// which is done. They go out together, and before anything else is begun. To listen to the broker
// between two messages costs as much as to send one.
Command Drainer::publish_burst(Time now) {
    Command command;
    for (int i = 0; i < BURST; i++) {
        command = drain_.next(now);
        if (command.kind != Command::Kind::publish) {
            break;
        }
        publish(now, command);
    }
    link_.flush();
    return command;
}

void Drainer::publish(Time now, const Command& command) {
    // By the settings that it was chosen by.
    link_.publish(now, *command.event, command.channel, drain_.settings());
    inject_between_publishes();
}

// True when it is there; false with extension_gone_ when it is not, without when that could not be
// found out.
bool Drainer::find_extension() {
    postgres::Transaction transaction("outbox_drainer: looking for the extension");
    if (!transaction.begin(InvalidOid)) {
        note_database_error(transaction.error());
        return false;
    }
    const std::optional<bool> exists = postgres::extension_exists(transaction);
    if (!exists.has_value() || transaction.commit() == postgres::CommitOutcome::failed) {
        note_database_error(transaction.error());
        return false;
    }
    extension_gone_ = !*exists;
    return *exists;
}

void Drainer::take_notice() {
    const Time now = postgres::monotonic_now();
    if (postgres::stop_requested()) {
        drain_.stop(now);
    }
    if (postgres::reload_if_asked()) {
        take_settings();
        settings_looked_at_ = Time{};
    }
    if (slot_.take_recheck()) {
        find_extension();
    }
    if (slot_.take_relay_changed() && prepared_) {
        read_relay_settings();
    }
    // What it leaves up it finds when it has looked: producers see a drainer that will look.
    if (drain_.wants_waking() && slot_.take_wake()) {
        drain_.woken();
        share_at_ = now;
    }
    if (slot_.take_shares_changed()) {
        drain_.woken();
        share_at_ = now;
    }
    if (!prepared_ && now >= prepare_at_ && !extension_gone_ && !drain_.stopping()) {
        prepared_ = prepare();
        prepare_at_ = now + settings_.poll_interval;
    }
    if (prepared_ && !drain_.stopping()) {
        sweep();
        collect();
        look_at_stored_settings();
    }
}

// A combination that cannot work leaves the last good one running; without one nothing runs.
void Drainer::take_settings() {
    const Time now = postgres::monotonic_now();
    DrainSettings fresh = postgres::current_settings();
    if (relay_.exists) {
        fresh = with_relay(fresh, relay_);
    }
    const std::optional<std::string> problem = find_problem(fresh);
    if (problem.has_value()) {
        if (*problem != settings_problem_) {
            settings_problem_ = *problem;
            slot_.set_error(*problem);
            postgres::log_warning("outbox_drainer: the settings cannot work: " + *problem,
                                  settings_ == no_settings()
                                      ? "Nothing is published until they are corrected."
                                      : "The last good settings stay in force.",
                                  "Correct the settings and reload the configuration.");
        }
        judge_configuration();
        return;
    }
    settings_problem_.clear();
    if (fresh.enabled && fresh.broker_uri.empty()) {
        slot_.set_error("outbox_drainer.broker_uri is not set");
    }
    settings_ = fresh;
    postgres::set_shutdown_timeout(settings_.shutdown_timeout);
    drain_.configure(now, settings_);
    judge_configuration();
}

// After the broker was heard: a connection that has just come up is what makes this drainer able to
// take a part.
void Drainer::share_buckets_if_due(Time now) {
    if (prepared_ && (now >= share_at_ || buckets_ == 0 || reclaim_pending_)) {
        share_buckets(now);
    }
}

// Takes a part of the relay, or gives some of its part to others (core/buckets.hpp). Of what it
// takes it reads from where the former owner was, and first takes back what a dead one held.
void Drainer::share_buckets(Time now) {
    share_at_ = now + SHARE_INTERVAL;
    const BucketShare share = shares_.step({.ordering = ordering(),
                                            .able = drain_.is_able(),
                                            .idle = ~drain_.buckets_in_hand(),
                                            .floor = reached()});
    if (ordering() != shared_ordering_) {
        shared_ordering_ = ordering();
        sweep_at_ = now;
    }
    if (share.taken.buckets != 0) {
        if (share.taken.floor < lane_.cursor()) {
            start_lane(std::min(reached(), share.taken.floor));
        }
        reclaim_pending_ = true;
    }
    buckets_ = share.claimable;
    // Whoever has the others begins at the floor that they were closed with, below these rows.
    left_.keep(buckets_);
    drainers_sharing_ = static_cast<std::size_t>(BUCKETS / std::max(std::popcount(share.owned), 1));
    drain_.share_with(share.owned == 0 ? 1 : drainers_sharing_);
    lead((share.owned & mask_of(0)) != 0);
    if (reclaim_pending_ && reclaim()) {
        reclaim_pending_ = false;
        sweep_groups();
        drain_.woken();
    }
    allow_claims();
}

// What one drainer does for all is done by whoever has the first bucket.
void Drainer::lead(bool leads) {
    drain_.let_replay(leads);
    if (leads && !collects_) {
        retention_position_.reset();
    }
    collects_ = leads;
}

void Drainer::allow_claims() {
    drain_.hold_claims(!prepared_ || buckets_ == 0 || reclaim_pending_);
}

// Up to here all of our part has ended or is deferred, as it is committed.
std::int64_t Drainer::reached() const {
    const std::int64_t open = lane_.lowest_open();
    return std::min({open, drain_.lowest_in_hand().value_or(open), left_.lowest().value_or(open)}) -
           1;
}

void Drainer::start_lane(std::int64_t floor) {
    lane_ = FreshLane(floor);
    left_.clear();
}

// What the relay says goes over the settings of the server, from now on.
void Drainer::read_relay_settings() {
    postgres::Transaction transaction("outbox_drainer: reading the relay's settings");
    std::optional<RelaySettings> relay =
        begin(transaction) ? postgres::read_relay(transaction) : std::nullopt;
    if (!relay.has_value() || transaction.commit() == postgres::CommitOutcome::failed) {
        note_database_error(transaction.error());
        return;
    }
    if (*relay != relay_) {
        relay_ = std::move(*relay);
        take_settings();
    }
}

void Drainer::judge_configuration() {
    const bool no_good_settings = !settings_problem_.empty() && settings_ == no_settings();
    drain_.set_misconfigured(no_good_settings || !table_problem_.empty());
}

void Drainer::wait(Time until) {
    const Time now = postgres::monotonic_now();
    inject_before_wait();
    postgres::report_activity(activity_of(drain_.state()));
    const Duration timeout =
        std::min({until - now, link_.max_wait(), settings_.poll_interval, until_collection(now)});
    const auto wanted = link_.wanted();
    postgres::PgError error;
    if (!postgres::wait_for(link_.fd(), wanted.read, wanted.write, timeout, error)) {
        note_database_error(error);
    }
}

// What test builds can be made to do (postgres/inject_fault.hpp); nothing in others.
void Drainer::inject_after_pump() const {
    const bool acked = drain_.outcomes() > 0;
    postgres::inject(postgres::Phase::some_acked, acked && drain_.in_flight() > 0);
    postgres::inject(postgres::Phase::all_acked, acked && drain_.in_flight() == 0);
}

// The half of a window that was published is sent too, so that the broker has it.
void Drainer::inject_between_publishes() {
    const auto half = static_cast<std::size_t>(std::max(settings_.pipeline_depth / 2, 1));
    if (postgres::is_armed(postgres::Phase::some_sent) && drain_.in_flight() == half) {
        link_.flush();
        postgres::inject(postgres::Phase::some_sent, drain_.in_hand() > drain_.in_flight());
    }
}

void Drainer::inject_before_wait() const {
    postgres::inject(postgres::Phase::idle, drain_.state() == DrainerState::idle);
    postgres::inject(postgres::Phase::all_sent, drain_.in_flight() > 0 && drain_.outcomes() == 0);
}

void Drainer::report() {
    slot_.set_state(drain_.state());
    slot_.set_in_flight(drain_.in_flight());
}

// Logged when it is news. An error that says that a table or function is missing may mean that the
// extension was dropped.
void Drainer::note_database_error(const postgres::PgError& error) {
    if (extension_gone_) {
        return;
    }
    const bool missing =
        error.sqlstate == ERRCODE_UNDEFINED_TABLE || error.sqlstate == ERRCODE_UNDEFINED_SCHEMA ||
        error.sqlstate == ERRCODE_UNDEFINED_FUNCTION || error.sqlstate == ERRCODE_UNDEFINED_OBJECT;
    if (missing) {
        find_extension();
        if (extension_gone_) {
            return;
        }
    }
    const std::string text = std::string("database: ") + error.message;
    slot_.set_error(text);
    if (text != reported_error_) {
        reported_error_ = text;
        postgres::log_warning("outbox_drainer: " + std::string(error.message), error.detail,
                              error.hint);
    }
}

// A running worker does not see ALTER DATABASE/ROLE ... SET; it leaves in good order and a new one
// starts.
void Drainer::look_at_stored_settings() {
    const Time now = postgres::monotonic_now();
    if (settings_looked_at_ != Time{} &&
        now < settings_looked_at_ + std::max(settings_.poll_interval, SETTINGS_LOOK_INTERVAL)) {
        return;
    }
    settings_looked_at_ = now;
    postgres::Transaction transaction("outbox_drainer: looking at its settings");
    if (!transaction.begin(InvalidOid)) {
        note_database_error(transaction.error());
        return;
    }
    const std::optional<std::int64_t> stored = postgres::stored_settings_fingerprint(transaction);
    const std::optional<postgres::TableInfo> table =
        stored.has_value() ? postgres::table_info(transaction) : std::nullopt;
    if (!table.has_value() || transaction.commit() == postgres::CommitOutcome::failed) {
        note_database_error(transaction.error());
        return;
    }
    refuse_table(*table);
    read_relay_settings();
    if (stored_settings_.has_value() && *stored_settings_ != *stored) {
        postgres::log_line("outbox_drainer: restarting for changed settings of database \"" +
                           std::string(slot_.database_name()) + "\"");
        stored_settings_changed_ = true;
        drain_.stop(now);
    }
    stored_settings_ = stored;
}

}  // namespace outbox::worker
