// A connection by libpq for the programs of the benchmark; PGHOST and the like say where to. An
// error ends the program.
#pragma once

#include <libpq-fe.h>

#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "broker.hpp"

namespace bench {

/// The result of a statement; its fields are text.
class Rows {
  public:
    explicit Rows(PGresult* result) : result_(result, PQclear) {}
    int count() const { return PQntuples(result_.get()); }
    const char* field(int row, int column) const { return PQgetvalue(result_.get(), row, column); }
    std::size_t length(int row, int column) const {
        return static_cast<std::size_t>(PQgetlength(result_.get(), row, column));
    }
    /// How many rows the statement changed.
    long changed() const { return std::strtol(PQcmdTuples(result_.get()), nullptr, 10); }

  private:
    std::unique_ptr<PGresult, decltype(&PQclear)> result_;
};

/// One session, in autocommit.
class Database {
  public:
    Database() : connection_(PQconnectdb(""), PQfinish) {
        if (PQstatus(connection_.get()) != CONNECTION_OK) {
            die(std::string("could not connect to the server: ") +
                PQerrorMessage(connection_.get()));
        }
        PQsetNoticeProcessor(
            connection_.get(), [](void*, const char*) {}, nullptr);
    }
    Rows run(const std::string& sql) { return checked(PQexec(connection_.get(), sql.c_str())); }
    void prepare(const std::string& name, const std::string& sql) {
        checked(PQprepare(connection_.get(), name.c_str(), sql.c_str(), 0, nullptr));
    }
    /// Runs a prepared statement with parameters as text.
    Rows run(const std::string& name, std::initializer_list<std::string> parameters) {
        std::vector<const char*> values;
        for (const std::string& parameter : parameters) {
            values.push_back(parameter.c_str());
        }
        return checked(PQexecPrepared(connection_.get(), name.c_str(),
                                      static_cast<int>(values.size()), values.data(), nullptr,
                                      nullptr, 0));
    }

  private:
    Rows checked(PGresult* result) {
        Rows rows(result);
        const ExecStatusType status = PQresultStatus(result);
        if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK) {
            die(PQerrorMessage(connection_.get()));
        }
        return rows;
    }
    std::unique_ptr<PGconn, decltype(&PQfinish)> connection_;
};

}  // namespace bench
