// What messages call a node of an exported program, and the module of the user's that it belongs
// to. Internal to this folder.
#pragma once

#include <troika/exported/schema.h>

#include <string>

namespace troika {

// Returns the node's name, with the last line of the user's Python: "node 'conv2d' ('net.py line
// 12: self.conv(x)')".
[[nodiscard]] std::string title_of(const schema::Node& node);

// Returns the dotted path of the module whose forward() the node is of; "" for the whole network.
[[nodiscard]] std::string module_of(const schema::Node& node);

}  // namespace troika
