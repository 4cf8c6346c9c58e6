// Every rank adds its number, from 1, to those of the others.
#include <troika/session/session.h>

#include <iostream>

int main() {
  const troika::Session session = troika::Session::from_environment();
  const double sum = session.sum(session.rank() + 1, "sum");
  std::cout << "rank " << session.rank() << " of " << session.size() << ": sum " << sum << "\n";
  session.leave();
}
