// The state of all steps of a trainer: onnx_ops/training/state.py, shared_state.py.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <set>
#include <string>

#include "sessions.hpp"
#include "sources.hpp"

namespace onnx_ops::detail {

/// The state of all steps of a trainer: one set of tensors, which steps update in place, or two, of which a step reads one
/// and writes the other; tensors without a next value are in both.
struct State {
  Named<TensorType> types;
  Named<std::string> roles, tied;
  std::set<std::string> changing;  // names with a next value
  std::array<StateSet, 2> sets;
  std::size_t turn = 0;  // the current set
  bool keeps_previous = false;
  std::string lost;       // why, after a step has failed during its update in place
  Path checkpoint;        // the last one that was written or loaded
  Named<std::string> first;  // for each name the step that has brought it

  /// Adds the state of a step; returns the names in the whole state, by those of the step.
  Named<std::string> add(const std::string &step, const Record &record, const Graph &graph, const Sources &start) {
    Named<std::string> names;
    for (const auto &[own, role] : record.roles) {
      const std::string name = is_shared(role) || step.empty() ? own : step + "." + own;
      const TensorType &type = graph.inputs.at(own);
      names.set(own, name);
      if (graph.outputs.has(next_name(own))) changing.insert(name);
      if (first.has(name)) {
        check_same(step, name, type, role, start.at(own));
        continue;
      }
      types.set(name, type);
      roles.set(name, role);
      first.set(name, step);
      sets[0].set(name, std::make_shared<StateTensor>(start.at(own).tensor()));
    }
    for (const auto &[other, name] : record.tied) {
      if (!tied.has(other)) tied.set(other, name);
      if (tied.at(other) == name) continue;
      throw StepError(quoted(other) + " is tied to '" + name + "' in the step '" + step + "', and to '" + tied.at(other) +
                      "' in another; expected steps of the same model");
    }
    for (const auto &[other, name] : tied) {
      if (!types.has(other)) continue;
      throw StepError(quoted(other) + " is tied to '" + name + "' in one step, but is a tensor of its own in the step '" + first.at(other) +
                      "'; expected steps of the same model");
    }
    return names;
  }

  /// Makes the second set: of the same tensors, or where they change of new ones.
  void make_second_set(bool previous) {
    keeps_previous = previous;
    for (const auto &[name, tensor] : sets[0]) {
      const bool added = previous && changing.count(name);
      sets[1].set(name, added ? std::make_shared<StateTensor>(Tensor(tensor->tensor.type(), tensor->tensor.shape())) : tensor);
    }
  }

  /// The current set; StateLostError after a step that has failed during its update.
  const StateSet &now() const {
    if (!lost.empty()) throw StateLostError(lost);
    return sets[turn];
  }

  /// Makes the set that a step has written the current one; `written` are the names that the step changes.
  void stepped(const std::set<std::string> &written) {
    for (const std::string &name : changing) {
      if (keeps_previous && !written.count(name)) Source::of(sets[turn].at(name)->tensor).read_into(sets[1 - turn].at(name)->tensor.memory());
    }
    turn = 1 - turn;
  }

  /// Replaces the values of some names; `known` has those of all names, unless it is a part of the state.
  void load(const Sources &known) {
    const std::size_t target = keeps_previous ? 1 - turn : turn;
    const auto read = [&](bool changes) {
      for (const auto &[name, tensor] : sets[turn]) {
        if ((keeps_previous && changing.count(name) != 0) != changes) continue;
        const Source *source = known.find(name);
        if (source) source->read_into(sets[target].at(name)->tensor.memory());
        else if (changes) Source::of(tensor->tensor).read_into(sets[target].at(name)->tensor.memory());
      }
    };
    read(true);  // into the other set
    lost = "the state is lost, as another one could not be read as a whole; " + how_to_load();
    read(false);
    lost.clear();
    turn = target;
  }

  void lose(const std::string &reason) { lost = "the state is lost, as a step has failed during its update: " + reason + "; " + how_to_load(); }

 private:
  std::string how_to_load() const {
    return "give the trainer a state by " + (checkpoint.empty() ? "load_state" : "load, the last one is " + checkpoint.string());
  }

  void check_same(const std::string &step, const std::string &name, const TensorType &type, const std::string &role, const Source &start) {
    if (!(type == types.at(name)) || role != roles.at(name)) {
      throw StepError(quoted(name) + " is a " + role + ", " + type.text() + ", in the step '" + step + "', and a " + roles.at(name) + ", " +
                      types.at(name).text() + ", in the step '" + first.at(name) +
                      "'; expected one tensor, as steps share parameters and buffers of the same name");
    }
    if (!start.same(Source::of(sets[0].at(name)->tensor))) {
      throw StepError(quoted(name) + ", " + start.text() + ", has other start values in the step '" + step + "' than in '" + first.at(name) +
                      "', expected the same, as steps share parameters and buffers of the same name: capture all steps from the"
                      " same model before it is trained");
    }
  }
};

/// The tensors of a set by the names of a step.
inline StateSet part_of(const StateSet &whole, const Named<std::string> &names) {
  StateSet found;
  for (const auto &[own, name] : names) found.set(own, whole.at(name));
  return found;
}

}  // namespace onnx_ops::detail
