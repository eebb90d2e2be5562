#pragma once

#include "postgres/prelude.hpp"

namespace outbox::postgres {

/// The oid of outbox.event. Raises an error when there is none.
Oid event_table();

/// Who a function worked as before act_as_owner. Plain data.
struct SavedUser {
    Oid user;
    int security_context;
    int guc_nest_level;
};

/// Goes on as the owner of a table, in a security-restricted context: what the owner attached to
/// the table then runs with the owner's rights at most. A transaction or subtransaction that aborts
/// undoes it.
SavedUser act_as_owner(Oid table);
/// Goes on as before act_as_owner, with the settings of before too.
void restore_user(const SavedUser& saved);

}  // namespace outbox::postgres
