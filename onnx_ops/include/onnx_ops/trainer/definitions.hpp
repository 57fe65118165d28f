// The functions of TrainerStep and Trainer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../trainer.hpp"
#include "inference_model.hpp"
#include "step.hpp"

namespace onnx_ops {

inline TrainerStep::TrainerStep(std::unique_ptr<detail::Step> own) : own_(std::move(own)) {}
inline TrainerStep::TrainerStep(TrainerStep &&) noexcept = default;
inline TrainerStep::~TrainerStep() = default;

inline const Named<TensorType> &TrainerStep::batch_inputs() const { return own_->batches.inputs; }
inline bool TrainerStep::has_inference_graph() const { return own_->carried[0].has_value(); }
inline bool TrainerStep::has_evaluation_graph() const { return own_->carried[1].has_value(); }

inline Tensors TrainerStep::step(const Tensors &batch) {
  detail::State &state = *own_->state;
  state.now();
  const bool accumulated = own_->accumulation && own_->accumulation->batches() > 0;
  if (!accumulated || !batch.empty()) own_->batches.check(batch);
  Tensors reported;
  try {
    if (accumulated) {
      const bool last = !batch.empty() || own_->batches.inputs.empty();
      const Tensors found = own_->accumulation->update(state.turn, last ? &batch : nullptr);
      for (const auto &entry : own_->step.outputs) {
        if (const Tensor *tensor = found.find(entry.first)) reported.set(entry.first, *tensor);
      }
    } else {
      reported = own_->updates->run(state.turn, batch);
    }
  } catch (const detail::UpdateFailed &error) {
    state.lose(error.what());
    state.now();
  }
  state.stepped(own_->written);
  return reported;
}

inline Tensors TrainerStep::accumulate(const Tensors &batch) {
  own_->state->now();
  own_->batches.check(batch);
  return own_->accumulating().add(own_->state->turn, batch);
}

inline Tensors TrainerStep::evaluate(const Tensors &batch, const std::string &mode) {
  if (mode != "eval" && mode != "train") throw StepError("the mode is '" + mode + "', expected 'eval' or 'train'");
  return own_->run_forward(mode == "eval" ? 1 : 2, batch);
}

inline Tensors TrainerStep::infer(const Tensors &inputs) { return own_->run_forward(0, inputs); }

inline void TrainerStep::export_model(const std::filesystem::path &path, bool averaged) const {
  using namespace detail;
  const Graph &graph = own_->graph_of(0);
  const Named<std::string> &roles = own_->record.roles;
  const auto average = [&](const std::string &name) { return std::string(AVERAGED) + "module." + name; };
  const auto has_average = [&](auto &entry) { return roles.has(average(entry.first)); };
  if (averaged && std::none_of(roles.begin(), roles.end(), has_average)) {
    throw StepError("the step has no averages of weights: capture it with training_step(..., averaged=)");
  }
  Sources weights;
  for (const auto &entry : graph.inputs) {
    if (!roles.has(entry.first)) continue;
    weights.set(entry.first, Source::of(own_->now(averaged && has_average(entry) ? average(entry.first) : entry.first)));
  }
  write_inference_model(path, graph, weights);
}

inline std::vector<double> TrainerStep::learning_rates() const {
  std::vector<double> found;
  for (const std::string &name : own_->rate_names()) {
    const Tensor &tensor = own_->now(name);
    found.push_back(detail::floating(tensor.type(), tensor.memory()));
  }
  return found;
}
inline double TrainerStep::learning_rate() const { return learning_rates().at(0); }

inline void TrainerStep::set_learning_rates(const std::vector<double> &rates) {
  const std::vector<std::string> names = own_->rate_names();
  if (rates.size() != names.size()) {
    throw StepError(std::to_string(rates.size()) + " learning rates are given, expected " + std::to_string(names.size()) + ", one for each group");
  }
  for (std::size_t i = 0; i < rates.size(); ++i) detail::cast_rate(rates[i], own_->now(names[i]).type());
  for (std::size_t i = 0; i < rates.size(); ++i) {
    const Tensor &tensor = own_->now(names[i]);
    if (tensor.type() == ElementType::float32) *tensor.data<float>() = static_cast<float>(rates[i]);
    else *tensor.data<double>() = rates[i];
  }
}
inline void TrainerStep::set_learning_rate(double rate) { set_learning_rates(std::vector<double>(own_->rate_names().size(), rate)); }

inline std::int64_t TrainerStep::seed() const { return *own_->seed_tensor().data<std::int64_t>(); }
inline void TrainerStep::set_seed(std::int64_t seed) { *own_->seed_tensor().data<std::int64_t>() = seed; }

inline Tensors TrainerStep::state() const {
  Tensors found;
  for (const auto &[own, tensor] : detail::part_of(own_->state->now(), own_->names)) found.set(own, tensor->tensor.clone());
  return found;
}

struct Trainer::Own {
  detail::State state;
  ort::Owned<ort::Options> options;
  std::vector<std::pair<std::string, TrainerStep>> steps;

  Own(const Named<std::filesystem::path> &files, const TrainerOptions &given) {
    using namespace detail;
    if (files.size() != 1 && (files.empty() || files.has(""))) {
      throw StepError("the steps are [" + joined(files, [](auto &entry) { return quoted(entry.first); }) + "], expected at least one, each with a name");
    }
    make_options(given);
    for (const auto &[name, path] : files) {
      auto own = std::make_unique<Step>();
      own->options = options.get();
      try {
        own->read(path, name, state, given);
      } catch (const Damaged &error) {
        throw ModelError(path.string() + " is no ONNX model: " + error.what());
      }
      steps.emplace_back(name, TrainerStep(std::move(own)));
    }
    std::vector<std::unique_ptr<Session>> in_place;
    for (auto &[name, step] : steps) {
      in_place.push_back(given.keep_previous || given.kernels.empty() ? nullptr : step.own_->session_in_place());
      if (!in_place.back()) {
        in_place.clear();
        break;
      }
    }
    state.make_second_set(in_place.empty());
    in_place.resize(steps.size());
    for (std::size_t i = 0; i < steps.size(); ++i) steps[i].second.own_->make_updates(std::move(in_place[i]));
  }

  void make_options(const TrainerOptions &given) {
    options = ort::made<ort::Options>(ort::api().CreateSessionOptions);
    ort::check(ort::api().DisableMemPattern(options.get()));  // else a block for all values is added to what the first run has used
    ort::check(ort::api().SetIntraOpNumThreads(options.get(), given.threads));
    ort::check(ort::api().SetSessionLogSeverityLevel(options.get(), given.log_severity));
    for (const auto &[key, value] : given.session_config) ort::check(ort::api().AddSessionConfigEntry(options.get(), key.c_str(), value.c_str()));
    if (!given.kernels.empty()) ort::check(ort::api().RegisterCustomOpsLibrary_V2(options.get(), given.kernels.c_str()));
  }

  IncompatibleKeys load(const detail::Sources &given, bool strict) {
    using namespace detail;
    Sources untied;
    for (const auto &[name, source] : given) {
      if (!state.tied.has(name)) untied.set(name, source);
    }
    for (const auto &[other, first] : state.tied) {
      const Source *own = given.find(other);
      if (own == nullptr) continue;
      if (!untied.has(first)) untied.set(first, *own);
      if (!untied.at(first).same(*own)) throw StepError(quoted(other) + " differs from '" + first + "', to which it is tied");
    }
    IncompatibleKeys keys;
    Sources known;
    Named<TensorType> wanted;
    for (const auto &[name, type] : state.types) {
      if (!untied.has(name)) keys.missing.push_back(name);
      if (strict || untied.has(name)) wanted.set(name, type);
    }
    for (const auto &[name, source] : untied) {
      if (!state.types.has(name)) keys.unexpected.push_back(name);
      if (strict || state.types.has(name)) known.set(name, source);
    }
    check_state(wanted, known);
    for (const auto &step : steps) {
      std::vector<std::string> rates = step.second.own_->rates();
      for (std::string &rate : rates) rate = step.second.own_->names.at(rate);
      check_rates(rates, known);
    }
    if (!strict) state.now();  // what is missing must be there
    for (const auto &step : steps) {
      if (step.second.own_->accumulation) step.second.own_->accumulation->discard();
    }
    state.load(known);
    return keys;
  }
};

inline Trainer::Trainer(const std::filesystem::path &path, const TrainerOptions &options) : Trainer(Named<std::filesystem::path>{{"", path}}, options) {}
inline Trainer::Trainer(const Named<std::filesystem::path> &steps, const TrainerOptions &options) : own_(std::make_unique<Own>(steps, options)) {}
inline Trainer::Trainer(Trainer &&) noexcept = default;
inline Trainer &Trainer::operator=(Trainer &&) noexcept = default;
inline Trainer::~Trainer() = default;

inline TrainerStep &Trainer::operator[](const std::string &step) {
  std::string known;
  for (auto &[name, found] : own_->steps) {
    if (name == step && !name.empty()) return found;
    known += name.empty() ? "one step, which has no name" : (known.empty() ? "" : ", ") + detail::quoted(name);
  }
  throw StepError("there is no step '" + step + "': the trainer has " + known);
}

inline TrainerStep &Trainer::only() const {
  if (own_->steps.size() == 1) return own_->steps.front().second;
  throw StepError("the trainer has the steps " + detail::joined(own_->steps, [](auto &entry) { return detail::quoted(entry.first); }) +
                  ", expected one of them by its name, such as trainer['" + own_->steps.front().first + "'].step(...)");
}

inline bool Trainer::keeps_previous() const { return own_->state.keeps_previous; }

inline Tensors Trainer::state() const {
  Tensors found;
  for (const auto &[name, tensor] : own_->state.now()) found.set(name, tensor->tensor.clone());
  return found;
}

inline IncompatibleKeys Trainer::load_state(const Tensors &state, bool strict) {
  detail::Sources sources;
  for (const auto &[name, tensor] : state) sources.set(name, detail::Source::of(tensor));
  return own_->load(sources, strict);
}

inline void Trainer::save(const std::filesystem::path &path, const Metadata &metadata, bool frozen) const {
  const detail::State &state = own_->state;
  detail::Sources sources;
  for (const auto &[name, tensor] : state.now()) {
    if (frozen || state.changing.count(name) || !detail::is_shared(state.roles.at(name))) sources.set(name, detail::Source::of(tensor->tensor));
  }
  detail::write_checkpoint(path, sources, metadata);
  own_->state.checkpoint = path;
}

inline Metadata Trainer::load(const std::filesystem::path &path, bool strict) {
  using namespace detail;
  const State &state = own_->state;
  const Safetensors found = open_checkpoint(path);
  const auto known = [&](auto &entry) { return state.roles.has(entry.first) || state.tied.has(entry.first); };
  if (!found.tensors.empty() && !strict && std::none_of(found.tensors.begin(), found.tensors.end(), known)) {
    throw StepError(path.string() + " has no name of the step: it has '" + found.tensors.begin()->first + "' and " +
                    std::to_string(found.tensors.size() - 1) + " others, expected names such as '" + state.roles.begin()->first + "'");
  }
  std::vector<std::string> others;
  for (const auto &[name, role] : state.roles) {
    if (!is_shared(role)) others.push_back(name);
  }
  const bool weights = std::none_of(others.begin(), others.end(), [&](auto &name) { return found.tensors.has(name); });
  if (strict && !found.tensors.empty() && !others.empty() && weights) {
    throw StepError(path.string() + " has neither optimizer state nor settings, such as '" + others[0] +
                    "': a file of weights is loaded with strict = false");
  }
  try {
    own_->load(found.tensors, strict);
  } catch (const StateLostError &error) {
    throw StateLostError(path.string() + ": " + error.what());
  } catch (const StepError &error) {
    throw StepError(path.string() + ": " + error.what());
  }
  own_->state.checkpoint = path;
  return found.metadata;
}

inline Tensors read_tensors(const std::filesystem::path &path) {
  Tensors found;
  for (const auto &[name, source] : detail::open_checkpoint(path).tensors) found.set(name, source.tensor());
  return found;
}

}  // namespace onnx_ops
