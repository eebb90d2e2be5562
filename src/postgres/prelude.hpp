#pragma once

// The one door to the server's headers. C++ standard headers come first: port.h redefines names
// such as snprintf and strerror as macros.
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

extern "C" {
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"
#if PG_VERSION_NUM >= 160000
#include "varatt.h"
#endif
}

/// Marks what the server looks up in the library by name. Everything else is hidden by the version
/// script.
#define OBD_EXPORT __attribute__((visibility("default")))
