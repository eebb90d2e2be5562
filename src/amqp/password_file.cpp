#include "amqp/password_file.hpp"

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string_view>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace outbox::amqp {

namespace {

constexpr std::size_t MAX_PASSWORD_FILE = 4096;

class File {
  public:
    explicit File(const std::string& path)
        : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
    ~File() {
        if (fd_ >= 0) {
            ::close(fd_);
        }
    }
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    int fd() const { return fd_; }

  private:
    int fd_;
};

PasswordError failure(const std::string& path, std::string_view what) {
    return {"password file \"" + path + "\" " + std::string(what)};
}

PasswordError system_failure(const std::string& path, std::string_view what) {
    char buffer[128];
    const char* reason = ::strerror_r(errno, buffer, sizeof(buffer));
    return failure(path, std::string(what) + ": " + reason);
}

}  // namespace

std::variant<std::string, PasswordError> read_password_file(const std::string& path) {
    const File file(path);
    if (file.fd() < 0) {
        return system_failure(path, "could not be opened");
    }
    struct stat status {};
    if (::fstat(file.fd(), &status) != 0) {
        return system_failure(path, "could not be examined");
    }
    if (!S_ISREG(status.st_mode)) {
        return failure(path, "is not a regular file");
    }
    if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
        return failure(path,
                       "may be accessed by group or others; its permissions should be 0600 or less");
    }
    char buffer[MAX_PASSWORD_FILE];
    std::size_t length = 0;
    for (;;) {
        const ::ssize_t got = ::read(file.fd(), buffer + length, sizeof(buffer) - length);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return system_failure(path, "could not be read");
        }
        if (got == 0) {
            break;
        }
        length += static_cast<std::size_t>(got);
        if (length == sizeof(buffer)) {
            return failure(path, "is too long");
        }
    }
    std::string_view line(buffer, length);
    line = line.substr(0, line.find('\n'));
    if (!line.empty() && line.back() == '\r') {
        line.remove_suffix(1);
    }
    std::variant<std::string, PasswordError> result = std::string(line);
    if (line.empty()) {
        result = failure(path, "has no password in its first line");
    } else if (line.find('\0') != std::string_view::npos) {
        result = failure(path, "has a NUL byte in its first line");
    }
    ::explicit_bzero(buffer, sizeof(buffer));
    return result;
}

}  // namespace outbox::amqp
