#pragma once

#include <cstddef>
#include <vector>

#include "amqp/rabbitmq.hpp"
#include "core/message.hpp"

namespace outbox::amqp {

/// Builds what rabbitmq-c takes for a field table. Keeps its memory from table to table.
class TableEncoder {
  public:
    /// Points into `table` and into this object: valid while the former lives and until the next
    /// call.
    amqp_table_t encode(const Table& table);

  private:
    struct Size {
        std::size_t entries = 0;
        std::size_t values = 0;
    };

    static void measure(const Table& table, Size& size);
    static void measure(const FieldValue& value, Size& size);
    amqp_table_t fill(const Table& table);
    amqp_array_t fill(const Array& array);
    void fill(const FieldValue& value, amqp_field_value_t& out);

    // Entries of all tables and values of all arrays within one table. Both get their full size
    // before the first pointer into them is taken.
    std::vector<amqp_table_entry_t> entries_;
    std::vector<amqp_field_value_t> values_;
    Size used_;
};

/// Builds what rabbitmq-c takes for a message's properties.
class PropertiesEncoder {
  public:
    /// Points into `message` and into this object, as with TableEncoder.
    const amqp_basic_properties_t& encode(const Message& message);

  private:
    TableEncoder headers_;
    amqp_basic_properties_t properties_{};
};

}  // namespace outbox::amqp
