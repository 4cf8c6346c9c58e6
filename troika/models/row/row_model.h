// A model that is given as a row of named units, what it takes and its loss: what a plug-in
// declares, made into what recipes train.
#pragma once

#include <troika/models/kind.h>
#include <troika/nn/named_unit.h>

#include <cstdint>
#include <vector>

namespace troika {

struct RowModel {
  SampleSpec sample;             // with an input and a target
  std::vector<NamedUnit> units;  // at least one
  UnitLoss loss;                 // empty: the recipe's
};

// Throws UsageError naming what is missing, the unit that gives no tensor or takes one that is not
// there, or a name that two units have.
void check_row(const RowModel& row);

// Makes the modules one by one, and passes two random samples through them and the loss, on the
// CPU. Throws UsageError naming the unit that throws, or gives other tensors than it says.
void try_row(const RowModel& row, const LossOptions& loss);

// Tries a row of one unit whose loss a recipe has written on two random samples, always the same:
// together and one by one, as an evaluation does, and backward. Throws UsageError naming what one
// sample has of another (where [samples, 1] and [samples] meet, torch makes [samples, samples] of
// them), and where the loss is not finite, draws random numbers or has no gradient.
void try_expression(const RowModel& row);

// Returns its traits. A pipeline may cut between any two units.
[[nodiscard]] ModelTraits traits_of_row(const RowModel& row);

// Builds the units. The initial values are those that the modules are made with, from draws that
// `seed` and the unit's name key, so that every layout starts from the same. Where the run has fp64
// the modules and their inputs are fp64; where it has bf16 or fp16 they compute under Autocast, and
// their outputs are fp32. Throws UsageError naming a unit or a parameter as ModuleUnit does.
[[nodiscard]] Model build_row(const RowModel& row, const LossOptions& loss, std::uint64_t seed,
                              const ModelLayout& layout);

}  // namespace troika
