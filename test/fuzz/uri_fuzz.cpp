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

void require_printable(std::string_view text) {
    for (const char c : text) {
        require(c >= 0x20 && c < 0x7f);
    }
}

/// What is shown of a broker says all of it but the password, of which it says that there is one.
void check_shown(const BrokerUri& uri, const BrokerUri& shown) {
    require(shown.host == uri.host && shown.port == uri.port && shown.vhost == uri.vhost);
    require(shown.user == uri.user && shown.has_user == uri.has_user);
    require(shown.tls == uri.tls && shown.auth == uri.auth && shown.channel_max == uri.channel_max);
    require(shown.heartbeat == uri.heartbeat && shown.connect_timeout == uri.connect_timeout);
    require(shown.has_password == uri.has_password);
    require(shown.password == (uri.has_password ? "****" : "guest"));
    require_printable(display_name(uri));
    require(display_name(uri).find(' ') == std::string::npos);
}

void check_password_file(std::string_view text, const BrokerUri& uri) {
    const auto found = find_password(text, uri);
    if (const auto* none = std::get_if<NoPassword>(&found)) {
        require(!none->reason.empty() &&
                none->reason.size() <
                    400 + 3 * (uri.host.size() + uri.vhost.size() + uri.user.size()));
        require_printable(none->reason);
    } else {
        const std::string& password = std::get<std::string>(found);
        require(!password.empty() || uri.has_password);
        require(password.size() <= text.size() || password == uri.password);
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
        require_printable(error->reason);
        check_password_file(file, BrokerUri{});
        return 0;
    }
    const auto& brokers = std::get<std::vector<BrokerUri>>(parsed);
    const auto again = parse_broker_list(shown);
    const auto* shown_brokers = std::get_if<std::vector<BrokerUri>>(&again);
    require(shown_brokers != nullptr && shown_brokers->size() == brokers.size());
    for (std::size_t i = 0; i < brokers.size(); i++) {
        check_shown(brokers[i], (*shown_brokers)[i]);
        check_password_file(file, brokers[i]);
    }
    return 0;
}
