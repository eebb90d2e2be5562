#include "postgres/storable.hpp"

#include "postgres/prelude.hpp"

extern "C" {
#include "mb/pg_wchar.h"
}

namespace outbox::postgres {

const char* storable(const char* text) {
    const int length = static_cast<int>(strlen(text));
    if (GetDatabaseEncoding() == PG_UTF8 && pg_verify_mbstr(PG_UTF8, text, length, true)) {
        return text;
    }
    char* ascii = pstrdup(text);
    for (char* c = ascii; *c != '\0'; c++) {
        if (IS_HIGHBIT_SET(*c)) {
            *c = '?';
        }
    }
    return ascii;
}

}  // namespace outbox::postgres
