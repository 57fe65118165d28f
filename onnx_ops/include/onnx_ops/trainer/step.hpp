// A step of a trainer: reading its file, and the sessions that run it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "accumulation.hpp"
#include "initializers.hpp"
#include "options.hpp"
#include "state.hpp"

namespace onnx_ops::detail {

/// What is read from the file of a step, and what runs it.
struct Step {
  struct Forward {
    std::unique_ptr<Session> session;
    Batches batches;
  };

  Record record;
  Graph step;                                   // without the state
  std::array<std::optional<Graph>, 2> carried;  // for inference and evaluation
  Named<Prepared> prepared;
  State *state = nullptr;
  Named<std::string> names;       // in the whole state, by those of the step
  std::set<std::string> written;  // names in the whole state that the step changes
  const ort::Options *options = nullptr;
  std::string batch_dimension;
  Batches batches;
  Checks checks;
  std::shared_ptr<StateTensor> check_finite;
  std::unique_ptr<UpdateSession> updates;
  std::unique_ptr<Accumulation> accumulation;
  std::array<Forward, 3> forward;  // inference, evaluation, the reporting part

  /// Reads a step file, and adds its state to that of the trainer.
  void read(const Path &path, const std::string &name, State &whole, const TrainerOptions &given) {
    state = &whole, batch_dimension = given.batch_dimension;
    const LightModel light = read_light(path);
    const Message model(light.bytes);
    const Message graph = model.messages(field::MODEL_GRAPH).at(0);
    Contents contents(path, light);
    contents.check_files(model, graph);
    const auto text = metadata_of(model, STEP_METADATA);
    if (!text) throw StepError(std::string("the model is no training step: its metadata have no entry '") + STEP_METADATA + "'");
    try {
      record = Record::read(*text);
    } catch (const ValueError &error) {
      throw unreadable_entry(STEP_METADATA, error.what());
    }
    step.inputs = types_of(graph.messages(field::GRAPH_INPUTS));
    step.outputs = types_of(graph.messages(field::GRAPH_OUTPUTS));
    record.check(step.inputs, step.outputs);
    Sources start;
    std::string own;
    for (const Field &one : graph.fields()) {
      if (one.number == field::GRAPH_INITIALIZERS) {
        const Message tensor(one.bytes);
        const std::string initializer = tensor.text(field::TENSOR_NAME);
        if (record.roles.has(initializer)) start.set(initializer, contents.source(tensor));
        else own += delimited_bytes(field::GRAPH_INITIALIZERS, contents.whole(tensor, one.bytes));
      } else {
        own += one.whole;
      }
    }
    for (const Field &one : model.fields()) {
      const bool is_carried = one.number == field::MODEL_FUNCTIONS && Message(one.bytes).text(field::FUNCTION_DOMAIN) == CARRIED_DOMAIN;
      if (is_carried) continue;
      step.bytes += one.number == field::MODEL_GRAPH ? delimited_bytes(field::MODEL_GRAPH, own) : std::string(one.whole);
    }
    Named<TensorType> types;
    for (const auto &entry : record.roles) types.set(entry.first, step.inputs.at(entry.first));
    check_state(types, start);
    check_rates(rates(), start);
    carried[0] = carried_graph(model, INFERENCE);
    carried[1] = carried_graph(model, EVALUATION);
    for (const char *one : {IN_PLACE, ACCUMULATION, COUNTERS, UPDATE}) {
      if (auto found = prepared_graph(model, one)) prepared.set(one, std::move(*found));
    }
    names = whole.add(name, record, step, start);
    for (const auto &[input, in_state] : names) {
      if (step.outputs.has(next_name(input))) written.insert(in_state);
    }
    batches = Batches(step.inputs, record, record.bounds, std::nullopt);
    try {
      batches.counted = counted_axis(batches.inputs, batch_dimension);
    } catch (const StepError &) {  // `accumulate` needs it
      if (!batch_dimension.empty()) throw;
    }
    checks.conditions = &record.conditions;
    for (const auto &[output, type] : step.outputs) {
      if (starts_with(output, NEXT)) continue;
      if (given.check_finite && !record.roles.has(GRAD_SCALE) && is_floating(type.type)) checks.loss = output;
      break;
    }
    check_finite = number_of<std::uint8_t>(ElementType::boolean, !checks.loss.empty());
  }

  std::unique_ptr<Session> session(const Graph &graph) const {
    try {
      return std::make_unique<Session>(graph, options);
    } catch (const OnnxruntimeError &error) {
      throw StepError("the step cannot be run: " + one_line(error.what()));
    }
  }

  /// The session of the step in place; null if the file has no graph for it, or if a kernel is missing.
  std::unique_ptr<Session> session_in_place() const {
    const Prepared *found = prepared.find(IN_PLACE);
    if (found == nullptr) return nullptr;
    try {
      return std::make_unique<Session>(found->graph, options);
    } catch (const OnnxruntimeError &) {  // it has no function bodies, which need not read the state before they write it
      return nullptr;
    }
  }

  /// Makes the session of the updates, once the sets of the state are there.
  void make_updates(std::unique_ptr<Session> in_place) {
    const Prepared *found = prepared.find(IN_PLACE);
    auto read = sets();
    for (StateSet &set : read) set.set(CHECK_FINITE, check_finite);
    updates = in_place ? std::make_unique<UpdateSession>(std::move(in_place), found->graph, found->names.at("passed"), read, next_sets(), checks, true)
                       : std::make_unique<UpdateSession>(session(step), step, "", read, next_sets(), checks, false);
    if (found) prepared.set(IN_PLACE, Prepared());  // its bytes
  }

  /// Both sets of tensors, by the names of the step.
  std::array<StateSet, 2> sets() const { return {part_of(state->sets[0], names), part_of(state->sets[1], names)}; }

  /// For each set the tensors that the step writes, by the names of outputs.
  std::array<StateSet, 2> next_sets() const {
    std::array<StateSet, 2> found;
    for (const auto &[input, in_state] : names) {
      if (!written.count(in_state)) continue;
      for (std::size_t turn : {0, 1}) found[turn].set(next_name(input), state->sets[1 - turn].at(in_state));
    }
    return found;
  }

  /// The tensor of an input of the state now.
  const Tensor &now(const std::string &input) const { return state->now().at(names.at(input))->tensor; }

  Accumulation &accumulating() {
    if (accumulation) return *accumulation;
    const Prepared *averaging = prepared.find(ACCUMULATION), *update = prepared.find(UPDATE);
    if (averaging && averaging->names.has("refused")) throw StepError(averaging->names.at("refused"));
    if (!averaging || !update) {
      throw StepError("the step file has no graphs for the accumulation of gradients: write it by Capture.save(..., prepared=True), or by"
                      " onnx-ops prepare");
    }
    const AccumulationParts parts{averaging, update, prepared.find(COUNTERS), sets(), next_sets(), &record, counted_axis(batches.inputs, batch_dimension),
                                  checks, check_finite, !state->keeps_previous};
    accumulation = std::make_unique<Accumulation>(parts, [&](const Graph &graph) { return session(graph); });
    return *accumulation;
  }

  /// The inference graph (0) or the evaluation graph (1).
  const Graph &graph_of(std::size_t number) const {
    if (carried[number]) return *carried[number];
    const std::string name = number == 0 ? INFERENCE : EVALUATION;
    throw StepError("the step has no " + name + " graph: there is no function " + CARRIED_DOMAIN + "." + name +
                    " in its model; capture it with " + (number == 0 ? "inference=, a function of the model" : "evaluation=True"));
  }

  Tensors run_forward(std::size_t number, const Tensors &batch) {
    const StateSet own = part_of(state->now(), names);
    if (!forward[number].session) {
      const Graph graph = number == 2 ? reporting_part(step, record) : graph_of(number);
      Named<Bounds> bounds;
      for (const auto &[dimension, sizes] : record.bounds) bounds.set(dimension, number == 2 ? sizes : sizes.of_other_statistics());
      forward[number] = {session(graph), Batches(graph.inputs, record, bounds, number == 0 ? std::nullopt : batches.counted)};
    }
    forward[number].batches.check(batch);
    return checked_conditions(record.conditions, forward[number].session->run(own, batch));
  }

  /// The settings that are learning rates.
  std::vector<std::string> rates() const {
    std::vector<std::string> found;
    for (const auto &entry : record.roles) {
      if (is_rate(entry.first)) found.push_back(entry.first);
    }
    return found;
  }

  /// The same; StepError if there are none.
  std::vector<std::string> rate_names() const {
    const std::vector<std::string> found = rates();
    if (found.empty()) throw StepError(std::string("the step has no setting '") + LEARNING_RATE + "'");
    return found;
  }

  const Tensor &seed_tensor() const {
    for (const auto &[name, role] : record.roles) {
      if (role == SEED) return now(name);
    }
    throw StepError("the step has no seed: it draws no random numbers");
  }
};

}  // namespace onnx_ops::detail
