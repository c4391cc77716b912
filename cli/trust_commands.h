// Commands that admit members and users to a cluster and revoke them. docs/trust.md has them in
// order.

#ifndef ATOLL_CLI_TRUST_COMMANDS_H_
#define ATOLL_CLI_TRUST_COMMANDS_H_

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cli/commands.h"

namespace atl::cli {

struct InitFlags {
  bool dev = false;                // a cluster of this machine, without certificates
  std::string state_dir;           // empty: /var/lib/atoll-coordinator
  std::vector<std::string> hosts;  // besides this machine's own names
  std::string cluster;             // of a state folder that is there; empty: a new one
  std::string person;              // who gets the operator's certificate
  std::string context;             // empty: "default"; with `dev`: "dev"
  int port = 7000;
};
void AddInitFlags(CLI::App& app, InitFlags* flags);
// Makes the authority and the coordinator's certificate in the coordinator's state folder, and an
// operator's certificate for the person who runs it. Of an authority that is there, adds hosts and
// makes another operator.
int Init(const Global& global, const InitFlags& flags);

struct TokenFlags {
  std::string action;  // "create", "ls", "rm"
  std::string id;
  std::vector<std::string> roles = {"worker"};
  int uses = 1;
  std::string ttl = "1h";
};
void AddTokenFlags(CLI::App& app, TokenFlags* flags);
int TokenCommand(const Global& global, const TokenFlags& flags);

struct JoinFlags {
  std::string address;  // TOKEN@HOST:PORT
  std::string person;
  std::string role = "operator";
  std::string context = "default";
};
void AddJoinFlags(CLI::App& app, JoinFlags* flags);
int JoinCommand(const Global& global, const JoinFlags& flags);

struct RevokeFlags {
  std::string name, role;
  bool yes = false;
};
void AddRevokeFlags(CLI::App& app, RevokeFlags* flags);
int Revoke(const Global& global, const RevokeFlags& flags);

int Members(const Global& global);
int Audit(const Global& global, int64_t tail);

}  // namespace atl::cli

#endif  // ATOLL_CLI_TRUST_COMMANDS_H_
