// Feeds files to a fuzz target: the corpus as a test, for compilers without libFuzzer, and an input
// that a fuzzer has found. Arguments are files and directories.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

bool read_file(const std::filesystem::path& path, std::vector<std::uint8_t>& out) {
    std::FILE* const file = std::fopen(path.c_str(), "rb");
    if (file == nullptr) {
        return false;
    }
    std::error_code error;
    out.resize(static_cast<std::size_t>(std::filesystem::file_size(path, error)));
    const std::size_t got = error ? 0 : std::fread(out.data(), 1, out.size(), file);
    std::fclose(file);
    return !error && got == out.size();
}

/// How many inputs went through; -1: one could not be read.
int feed(const std::filesystem::path& path) {
    if (std::filesystem::is_directory(path)) {
        int fed = 0;
        for (const auto& entry : std::filesystem::directory_iterator(path)) {
            const int more = feed(entry.path());
            if (more < 0) {
                return more;
            }
            fed += more;
        }
        return fed;
    }
    std::vector<std::uint8_t> input;
    // The last line on the screen names the input that did not go well.
    std::fprintf(stderr, "%s\n", path.c_str());
    if (!read_file(path, input)) {
        return -1;
    }
    LLVMFuzzerTestOneInput(input.data(), input.size());
    return 1;
}

}  // namespace

int main(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
        const int fed = feed(argv[i]);
        if (fed <= 0) {
            std::fprintf(stderr, "no inputs could be read from %s\n", argv[i]);
            return 1;
        }
        std::printf("%d inputs\n", fed);
    }
    return argc > 1 ? 0 : 1;
}
