// A program that embeds troika: which ranks of a mesh talk to each other along the data axis.
#include <troika/mesh/mesh.h>

#include <iostream>

int main() {
  const troika::Mesh mesh(troika::Coordinates{1, 1, 2, 1, 3});
  const std::vector<int> peers = mesh.ranks_along(1, troika::Axis::kData);
  std::cout << mesh.describe() << "\nranks " << peers.at(0) << " and " << peers.at(1) << "\n";
}
