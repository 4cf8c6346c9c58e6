#include <troika/config/component.h>

namespace troika {

void Component::derive(Options&, const Origins&) const {}

void Component::check(const Options&, const Origins&) const {}

}  // namespace troika
