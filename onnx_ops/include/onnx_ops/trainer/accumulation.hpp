// Accumulated gradients: onnx_ops/training/accumulation.py.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "batches.hpp"
#include "prepared.hpp"
#include "rounding.hpp"
#include "seeds.hpp"
#include "updates.hpp"

namespace onnx_ops::detail {

/// Prefix of a value that is what the loss writes to a parameter or buffer, and the update reads.
constexpr const char *WRITTEN = "written.";

/// The graphs of a step for the accumulation of gradients, and what they are run with.
struct AccumulationParts {
  const Prepared *averaging, *update;
  const Prepared *counters;  // null if no state changes with each batch
  std::array<StateSet, 2> sets, written;
  const Record *record;
  Counted counted;
  Checks checks;
  std::shared_ptr<StateTensor> check_finite;
  bool in_place;
};

/// The gradients of the batches since the last update, and the update from their mean.
class Accumulation {
 public:
  template <class MakeSession>
  Accumulation(const AccumulationParts &parts, MakeSession session) : parts_(parts) {
    const Graph &graph = parts.averaging->graph, &update = parts.update->graph;
    samples_ = number_of(ElementType::float64, 0.0), count_ = number_of(ElementType::float64, 0.0);
    checked_ = number_of(ElementType::float64, 0.0), value_ = number_of(ElementType::float64, 0.0);
    StateSet given, averages;
    for (const auto &[gradient, name] : parts.averaging->means) {
      const auto mean = means_.emplace_back(tensor_of_type(graph.inputs.at(name)));
      given.set(name, mean);
      const TensorType &own = update.inputs.at(gradient);
      if (own.type != mean->tensor.type()) rounded_.emplace_back(tensor_of_type(own), mean);
      averages.set(gradient, own.type == mean->tensor.type() ? mean : rounded_.back().first);
    }
    for (const auto &[name, type] : update.inputs) {
      if (parts.record->roles.has(name)) continue;
      for (const char *prefix : {WRITTEN, NEXT}) {
        if (!starts_with(name, prefix)) continue;
        loss_written_.emplace_back(name.substr(std::strlen(prefix)), tensor_of_type(type));
        averages.set(name, loss_written_.back().second);
        break;
      }
    }
    given.set(parts.averaging->names.at("samples"), samples_);
    StateSet written = conditions_ = Checks{"", parts.checks.conditions}.tensors(graph);
    for (const auto &[name, tensor] : given) written.set(next_name(name), tensor);
    written.set(parts.averaging->names.at("checked"), checked_);
    written.set(parts.averaging->names.at("value"), value_);
    written_ = {written, written};
    given.set(parts.averaging->names.at("count"), count_);
    given.set(CHECK_FINITE, parts.check_finite);
    averages.set(CHECK_FINITE, parts.check_finite);
    for (const auto &[name, role] : parts.record->roles) {
      if (role != SEED) continue;
      seed_name_ = name, seed_ = number_of<std::int64_t>(ElementType::int64, 0);
      given.set(name, seed_);
    }
    for (const auto &entry : graph.outputs) {
      if (starts_with(entry.first, NEXT) && !written.has(entry.first)) buffers_.push_back(entry.first.substr(std::strlen(NEXT)));
    }
    for (std::size_t turn : {0, 1}) inputs_[turn] = joined_sets(parts.sets[turn], given);
    averaging_ = session(graph);
    if (parts.counters) {
      counters_ = session(parts.counters->graph);
      for (const auto &entry : parts.counters->graph.outputs) counted_state_.push_back(entry.first.substr(std::strlen(NEXT)));
    }
    std::array<StateSet, 2> read = {joined_sets(parts.sets[0], averages), joined_sets(parts.sets[1], averages)};
    const std::string *passed = parts.update->names.find("passed");
    update_ = std::make_unique<UpdateSession>(session(update), update, passed ? *passed : "", read, parts.written,
                                              Checks{update.outputs.has(parts.checks.loss) ? parts.checks.loss : "", parts.checks.conditions},
                                              parts.in_place);
  }

  int batches() const { return batches_; }
  void discard() { batches_ = 0; }

  /// Adds the gradients of a batch, and changes the buffers; returns the reported outputs that do not depend on the gradients.
  Tensors add(std::size_t turn, const Tensors &batch) {
    Tensors changed, found = added(turn, batch, changed);
    count(turn, changed);
    write(changed, parts_.sets[turn]);
    return found;
  }

  /// Computes the update from the mean of the gradients, and forgets them; `batch` is a last one, null for no further one.
  Tensors update(std::size_t turn, const Tensors *batch) {
    Tensors changed, found;
    if (batch) {
      found = added(turn, *batch, changed);
      count(turn, changed);
    } else {
      for (const std::string &name : buffers_) changed.set(name, parts_.sets[turn].at(name)->tensor);
      for (const std::string &name : counted_state_) changed.set(name, parts_.sets[turn].at(name)->tensor);
    }
    for (const auto &[name, tensor] : loss_written_) Source::of(changed.at(name)).read_into(tensor->tensor.memory());
    for (const auto &[rounded, mean] : rounded_) round_into(rounded->tensor, mean->tensor);
    for (const auto &[name, tensor] : update_->run(turn, {})) found.set(name, tensor);
    batches_ = 0;
    Tensors replaced;
    for (const auto &[name, tensor] : changed) {
      if (!parts_.update->graph.outputs.has(next_name(name))) replaced.set(name, tensor);
    }
    write(replaced, parts_.sets[1 - turn]);
    return found;
  }

 private:
  /// Adds the next values of what each batch changes that do not depend on it to `changed`.
  void count(std::size_t turn, Tensors &changed) const {
    if (!counters_) return;
    for (const auto &[name, tensor] : counters_->run(parts_.sets[turn], {})) changed.set(name.substr(std::strlen(NEXT)), tensor);
  }

  static void write(const Tensors &changed, const StateSet &set) {
    for (const auto &[name, tensor] : changed) Source::of(tensor).read_into(set.at(name)->tensor.memory());
  }

  /// Adds the gradients of a batch; returns the reported outputs, and adds the next values of buffers to `changed`.
  Tensors added(std::size_t turn, const Tensors &batch, Tensors &changed) {
    if (batches_ == 0) {
      for (const auto &mean : means_) std::memset(mean->tensor.memory(), 0, mean->tensor.bytes());
      *samples_->tensor.data<double>() = 0;
    }
    if (seed_) *seed_->tensor.data<std::int64_t>() = derived_seed(*parts_.sets[turn].at(seed_name_)->tensor.data<std::int64_t>(), batches_);
    const Counted &counted = parts_.counted;
    *count_->tensor.data<double>() = counted ? static_cast<double>(batch.at(counted->first).shape().at(counted->second)) : 1;
    *checked_->tensor.data<double>() = *value_->tensor.data<double>() = 0;
    reset(conditions_);
    Tensors found;
    try {
      found = averaging_->run(inputs_[turn], batch, written_[turn]);
    } catch (const OnnxruntimeError &error) {
      if (*checked_->tensor.data<double>() != 0) {
        discard();
        throw StepError("the accumulated gradients are lost, as a batch has failed while its gradients were added: " + one_line(error.what()));
      }
      checked_conditions(*parts_.checks.conditions, tensors_of(conditions_));
      if (!parts_.checks.loss.empty()) check_loss(parts_.checks.loss, value_->tensor);
      throw;
    }
    ++batches_;
    Tensors reported;
    for (const auto &[name, tensor] : found) {
      if (starts_with(name, NEXT)) changed.set(name.substr(std::strlen(NEXT)), tensor);
      else reported.set(name, tensor);
    }
    return reported;
  }

  AccumulationParts parts_;
  std::vector<std::shared_ptr<StateTensor>> means_;
  std::vector<std::pair<std::shared_ptr<StateTensor>, std::shared_ptr<StateTensor>>> rounded_;  // 16-bit gradients, with their means
  std::shared_ptr<StateTensor> samples_, count_, checked_, value_, seed_;
  std::string seed_name_;
  StateSet conditions_;
  std::array<StateSet, 2> inputs_, written_;
  std::vector<std::pair<std::string, std::shared_ptr<StateTensor>>> loss_written_;  // by state, for the update that reads it
  std::vector<std::string> buffers_, counted_state_;
  std::unique_ptr<Session> averaging_, counters_;
  std::unique_ptr<UpdateSession> update_;
  int batches_ = 0;
};

}  // namespace onnx_ops::detail
