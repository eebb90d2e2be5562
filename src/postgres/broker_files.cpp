#include "postgres/broker_files.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "postgres/password_file.hpp"

namespace outbox::postgres {

namespace {

using Problem = std::optional<std::string>;

void add_new(std::vector<std::string>& problems, std::string problem) {
    if (std::find(problems.begin(), problems.end(), problem) == problems.end()) {
        problems.push_back(std::move(problem));
    }
}

// As libpq does for its keys: root may own one that a group may read.
bool is_too_open(const struct stat& status) {
    const ::mode_t others = status.st_uid == 0 ? S_IWGRP | S_IXGRP | S_IRWXO : S_IRWXG | S_IRWXO;
    return (status.st_mode & others) != 0;
}

Problem find_file_problem(std::string_view what, const std::string& path, bool is_key) {
    const std::string file = std::string(what) + " file \"" + path + "\" ";
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat status {};
    if (fd < 0 || ::fstat(fd, &status) != 0) {
        char buffer[128];
        const std::string reason = ::strerror_r(errno, buffer, sizeof(buffer));
        if (fd >= 0) {
            ::close(fd);
        }
        return file + "cannot be read: " + reason;
    }
    ::close(fd);
    if (!S_ISREG(status.st_mode)) {
        return file + "is not a regular file";
    }
    if (is_key && is_too_open(status)) {
        return file + "has group or world access: chmod 0600 (0640 where root owns it)";
    }
    return std::nullopt;
}

}  // namespace

std::vector<std::string> find_tls_file_problems(const std::vector<BrokerUri>& uris) {
    std::vector<std::string> problems;
    const auto check = [&](std::string_view what, const std::string& path, bool is_key) {
        if (path.empty()) {
            return;
        }
        if (Problem problem = find_file_problem(what, path, is_key)) {
            add_new(problems, std::move(*problem));
        }
    };
    for (const BrokerUri& uri : uris) {
        if (!uri.tls) {
            continue;
        }
        if (uri.tls->root_cert != "system") {
            check("root certificate", uri.tls->root_cert, false);
        }
        check("certificate", uri.tls->cert, false);
        check("private key", uri.tls->key, true);
    }
    return problems;
}

std::vector<std::string> find_password_file_problems(const std::string& path,
                                                     const std::vector<BrokerUri>& uris) {
    std::vector<std::string> problems;
    for (const BrokerUri& uri : uris) {
        if (uri.auth != AuthMechanism::plain) {
            continue;
        }
        auto password = read_password_file(path, uri);
        if (auto* error = std::get_if<PasswordError>(&password)) {
            add_new(problems, std::move(error->reason));
        }
    }
    return problems;
}

}  // namespace outbox::postgres
