#include <troika/param/shape_text.h>

#include <sstream>

namespace troika {

std::string shape_text(at::IntArrayRef shape) {
  std::ostringstream text;
  text << shape;
  return text.str();
}

}  // namespace troika
