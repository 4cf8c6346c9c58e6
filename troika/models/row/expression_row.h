// A network whose loss is written in the recipe: its one unit gives the quantities of the
// expressions behind its outputs, recorded by autograd as far as its parameters. Internal to
// models.
#pragma once

#include <troika/loss/expression.h>
#include <troika/models/kind.h>
#include <troika/models/row/row_model.h>

namespace troika {

// Returns the row with the loss of the recipe where that is an expression, and as it is otherwise.
// Throws UsageError where the network is several units or has a loss of its own, and as Expressions
// does.
[[nodiscard]] RowModel with_expression(RowModel row, const LossOptions& loss);

// Completes what a kind says of its model by the loss that the recipe writes: targets, outputs, and
// that the network is one unit.
void add_expression(ModelTraits& traits, const ExpressionOptions& options);

}  // namespace troika
