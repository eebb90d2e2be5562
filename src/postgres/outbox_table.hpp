#pragma once

#include "postgres/prelude.hpp"

namespace outbox::postgres {

/// The oid of outbox.event. Raises an error when there is none.
Oid event_table();

/// Who a function worked as before act_as. Plain data.
struct SavedUser {
    Oid user;
    int security_context;
    int guc_nest_level;
};

/// Goes on as `user`, the owner of an outbox table, in a security-restricted context: what the
/// owner attached to the table then runs with the owner's rights at most, and settings that it
/// changes are changed back. A transaction or subtransaction that aborts undoes it.
SavedUser act_as(Oid user);
/// The same as the owner of the table.
SavedUser act_as_owner(Oid table);
/// Goes on as the owner of the table likewise, until the function's caller, a SECURITY DEFINER
/// function, ends: that is what undoes it.
void take_role_of_owner(Oid table);
/// Goes on as before act_as, with the settings of before too.
void restore_user(const SavedUser& saved);

}  // namespace outbox::postgres
