#include <troika/base/text.h>
#include <troika/nn/named_unit.h>

#include <algorithm>
#include <set>

namespace troika {
namespace {

void check_flow(const NamedUnit& unit) {
  if (unit.flow.gives.empty()) {
    throw UsageError("unit " + quote(unit.name, 200) + " gives no tensor");
  }
  std::set<std::string> names;
  for (const UnitTensor& each : unit.flow.gives) {
    if (names.insert(each.name).second) continue;
    throw UsageError("unit " + quote(unit.name, 200) + " gives two tensors called " +
                     quote(each.name, 200));
  }
}

bool gives(const NamedUnit& unit, const std::string& name) {
  return std::ranges::count(unit.flow.gives, name, &UnitTensor::name) > 0;
}

// Names that unit `index` takes and some unit before it gives.
std::set<std::string> takes(std::span<const NamedUnit> units, std::size_t index) {
  const std::vector<std::string>& taken = units[index].flow.takes;
  std::set<std::string> names(taken.begin(), taken.end());
  std::erase_if(names, [&](const std::string& name) {
    return std::ranges::none_of(units.first(index),
                                [&](const NamedUnit& unit) { return gives(unit, name); });
  });
  return names;
}

}  // namespace

std::vector<NamedUnit> with_default_takes(std::vector<NamedUnit> units) {
  for (std::size_t i = 1; i < units.size(); ++i) {
    std::vector<std::string>& takes = units[i].flow.takes;
    if (!takes.empty()) continue;
    for (const UnitTensor& each : units[i - 1].flow.gives) takes.push_back(each.name);
  }
  return units;
}

std::vector<std::vector<UnitTensor>> flows_of(std::span<const NamedUnit> given) {
  const std::vector<NamedUnit> resolved = with_default_takes({given.begin(), given.end()});
  const std::span<const NamedUnit> units = resolved;
  for (const NamedUnit& unit : units) check_flow(unit);
  std::vector<std::vector<UnitTensor>> flows(units.size() + 1);
  if (units.empty()) return flows;
  flows.back() = units.back().flow.gives;
  std::set<std::string> needed;  // behind the cut
  for (std::size_t cut = units.size() - 1; cut > 0; --cut) {
    for (const UnitTensor& each : units[cut].flow.gives) needed.erase(each.name);
    needed.merge(takes(units, cut));
    // Each from the unit that gave it last, in the order in which they were given.
    std::set<std::string> left = needed;
    for (std::size_t giver = cut; giver-- > 0;) {
      const auto& given = units[giver].flow.gives;
      std::vector<UnitTensor> from_here;
      std::ranges::copy_if(given, std::back_inserter(from_here),
                           [&](const UnitTensor& each) { return left.contains(each.name); });
      for (const UnitTensor& each : from_here) left.erase(each.name);
      flows[cut].insert(flows[cut].begin(), from_here.begin(), from_here.end());
    }
  }
  return flows;
}

}  // namespace troika
