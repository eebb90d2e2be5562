// Inserts events into a drainer's outbox, one at a time and each with a commit of its own, at a
// steady pace.
//
//   producer --count N --interval-us T --size BYTES --out FILE
//
// PGHOST and the like say where to. A payload begins with the monotonic time just before its INSERT
// was sent. FILE gets a line for each event: that time, as the payload has it, and the monotonic
// time at which its commit had been acknowledged. Prints count=N and p50_ms= p99_ms= max_ms= of the
// time from the one to the other.
#include "postgres.hpp"

#include <unistd.h>

int main(int argc, char** argv) {
    using namespace bench;
    const Arguments arguments(argc, argv);
    const long count = arguments.number("count", 1000);
    const double interval = static_cast<double>(arguments.number("interval-us", 20000)) / 1e6;
    std::string payload(static_cast<std::size_t>(arguments.number("size", 512)), ' ');
    std::FILE* out = std::fopen(arguments.text("out", "producer.out").c_str(), "w");
    if (out == nullptr) {
        die("could not make " + arguments.text("out", "producer.out"));
    }
    Database database;
    database.prepare("insert",
                     "INSERT INTO outbox.event (event_type, payload)"
                     " VALUES ('order.placed', convert_to($1::text, 'UTF8'))");

    std::vector<double> durations;
    const double start = monotonic_seconds();
    for (long i = 0; i < count; i++) {
        const double ahead = start + static_cast<double>(i) * interval - monotonic_seconds();
        if (ahead > 0) {
            usleep(static_cast<useconds_t>(ahead * 1e6));
        }
        char stamp[32];
        const double sent = monotonic_seconds();
        std::snprintf(stamp, sizeof(stamp), "%.7f", sent);
        payload.replace(0, std::strlen(stamp), stamp);
        database.run("insert", {payload});
        const double committed = monotonic_seconds();
        std::fprintf(out, "%s %.7f\n", stamp, committed);
        durations.push_back((committed - sent) * 1e3);
    }
    if (std::fclose(out) != 0) {
        die("could not write the times");
    }
    std::sort(durations.begin(), durations.end());
    std::printf("count=%ld p50_ms=%.4f p99_ms=%.4f max_ms=%.4f\n", count,
                percentile(durations, 0.5), percentile(durations, 0.99), percentile(durations, 1));
    return 0;
}
