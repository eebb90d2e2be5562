// What a user writes into broker_uri and into a password file: it is parsed or refused with a
// reason, and neither the reason nor what is shown of it holds a password.
//
// An input is the text of broker_uri, then a line "----", then the text of a password file.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "core/broker_uri.hpp"
#include "core/password_lines.hpp"

namespace {

using namespace outbox;

/// The process ends here if the code under test did not keep its word.
void require(bool kept) {
    if (!kept) {
        std::abort();
    }
}

// A password that could stand for something else by accident proves nothing.
bool is_telling(const std::string& password) {
    return password.size() >= 6 && password.find_first_of("*%:/@,?#[]") == std::string::npos;
}

// How often the text appears.
std::size_t count(std::string_view text, std::string_view part) {
    std::size_t found = 0;
    for (std::size_t at = text.find(part); at != std::string_view::npos;
         at = text.find(part, at + 1)) {
        found++;
    }
    return found;
}

void check_broker(std::string_view text, const std::string& shown, const BrokerUri& uri) {
    const std::string name = display_name(uri);
    for (const char c : name) {
        require(c > 0x20 && c < 0x7f);
    }
    // It is shown once less than it was written, for each place in which it is a password; other
    // places, such as a host of that name, may hold it too.
    if (uri.has_password && is_telling(uri.password) && count(text, uri.password) > 0) {
        require(count(shown, uri.password) < count(text, uri.password));
    }
}

void check_password_file(std::string_view text, const BrokerUri& uri) {
    const auto found = find_password(text, uri);
    if (const auto* none = std::get_if<NoPassword>(&found)) {
        require(!none->reason.empty() &&
                none->reason.size() < 400 + uri.host.size() + uri.vhost.size() + uri.user.size());
    } else {
        require(std::get<std::string>(found).size() <= text.size());
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view input(reinterpret_cast<const char*>(data), size);
    constexpr std::string_view border = "\n----\n";
    const std::size_t end = input.find(border);
    const std::string_view text = input.substr(0, end);
    const std::string_view file =
        end == std::string_view::npos ? std::string_view() : input.substr(end + border.size());

    const auto parsed = parse_broker_list(text);
    const std::string shown = redact_uri(text);
    require(shown.size() <= 2 * text.size() + 16);
    require(count_brokers(text) >= 1);
    if (const auto* error = std::get_if<UriError>(&parsed)) {
        require(!error->reason.empty() && error->reason.size() < 600);
        check_password_file(file, BrokerUri{});
        return 0;
    }
    // What is shown names the same brokers.
    const auto& brokers = std::get<std::vector<BrokerUri>>(parsed);
    const auto again = parse_broker_list(shown);
    const auto* shown_brokers = std::get_if<std::vector<BrokerUri>>(&again);
    require(shown_brokers != nullptr && shown_brokers->size() == brokers.size());
    for (std::size_t i = 0; i < brokers.size(); i++) {
        require(display_name((*shown_brokers)[i]) == display_name(brokers[i]));
        require((*shown_brokers)[i].tls == brokers[i].tls);
        check_broker(text, shown, brokers[i]);
        check_password_file(file, brokers[i]);
    }
    return 0;
}
