// Why an address cannot be listened on. The HTTP library tells only that it failed; here the address is told from the
// port, and a busy port from one that needs a permission.
#pragma once

#include <string>

#include "kernels/base/error.h"

namespace ft {

// Throws Error(kFailed) that names --host when `host` is neither an address nor a name, or none of this machine. Binds
// no port that is named anywhere. May ask the machine's name service.
void check_listen_host(const std::string& host);

// After host:port could not be listened on: tries again to learn why.
Error listen_failure(const std::string& host, int port);
// The same, from the errno of bind() or listen(); 0 when they work now.
Error listen_failure(const std::string& host, int port, int code);

// "127.0.0.1:8080", "[::1]:8080".
std::string address_text(const std::string& host, int port);

}  // namespace ft
