// Notices clients that close their connection while their answer is being made, so that the work for it can end.
//
// The HTTP library says that a peer is gone only when something is written to it, which for an answer that is not
// streamed is when all of it has been made. It does not tell its sockets either, so find_connection() looks for one.
//
// Thread rule: everything from any thread. `gone` runs on the watch's own thread.
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace ft {

struct ConnectionEnds {
  std::string remote_address;  // numeric, as getnameinfo prints it
  int remote_port = 0;
  int local_port = 0;
};

// The socket of this process that connects these ends; -1 when there is none (or no /proc to look in).
int find_connection(const ConnectionEnds& ends);

class ClientWatch {
 public:
  // While it lives, the socket is watched; when its destructor has returned, `gone` neither runs nor will.
  class Guard {
   public:
    ~Guard();

   private:
    friend class ClientWatch;
    Guard(ClientWatch& watch, uint64_t number) : watch_(watch), number_(number) {}
    ClientWatch& watch_;
    uint64_t number_;
  };

  ClientWatch();   // throws Error(kFailed) when the process has no descriptors left
  ~ClientWatch();  // every Guard must be gone

  // Calls `gone` once when the peer of `socket` closes (or has closed) its sending side. A client that only half-closes
  // counts as gone too: the two cannot be told apart. `gone` must not destroy the guard. A negative socket is never
  // gone.
  std::unique_ptr<Guard> add(int socket, std::function<void()> gone);
  // Ends the connections that are watched: a write that waits for a client that does not read fails at once.
  void hang_up();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ft
