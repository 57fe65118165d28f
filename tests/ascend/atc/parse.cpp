// Parses nodes with a plugin: a line is the type of a node, then inputs and outputs, "-" for an omitted one, then
// attributes: `aclnn::1::Hardshrink self | out | lambd:f=0.25`. Prints the operator or graph, or FAILED, for each.
#include <iostream>
#include <sstream>

#include PLUGIN

namespace {
std::string Text(const ge::Value &value) {
  std::ostringstream out;
  if (const auto *flag = std::get_if<bool>(&value)) {
    out << (*flag ? "true" : "false");
  } else if (const auto *number = std::get_if<int64_t>(&value)) {
    out << *number;
  } else if (const auto *real = std::get_if<float>(&value)) {
    out << *real << "f";
  } else if (const auto *text = std::get_if<ge::AscendString>(&value)) {
    out << '"' << text->GetString() << '"';
  } else {
    for (const auto item : std::get<std::vector<int64_t>>(value)) {
      out << (out.tellp() == 0 ? "" : ",") << item;
    }
    return "[" + out.str() + "]";
  }
  return out.str();
}

void Print(const ge::Operator &op) {
  std::cout << op.state().type << "(";
  const char *between = "";
  for (const auto &[name, source] : op.state().inputs) {
    std::cout << between << name << "=";
    between = " ";
    Print(source);
  }
  for (const auto &[name, value] : op.state().attributes) {
    std::cout << between << name << "=" << Text(value);
    between = " ";
  }
  std::cout << ")";
}
}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string type;
    words >> type;
    ge::onnx::NodeProto node;
    node.name_ = "node";
    int part = 0;
    for (std::string word; words >> word;) {
      if (word == "|") {
        ++part;
      } else if (part < 2) {
        (part == 0 ? node.inputs_ : node.outputs_).push_back(word == "-" ? "" : word);
      } else {
        ge::onnx::AttributeProto attribute;
        const auto colon = word.find(':'), equals = word.find('=');
        attribute.name_ = word.substr(0, colon);
        const auto kind = word.substr(colon + 1, equals - colon - 1), value = word.substr(equals + 1);
        if (kind == "f") {
          attribute.f_ = std::stof(value);
        } else if (kind == "i") {
          attribute.i_ = std::stoll(value);
        } else {
          std::istringstream numbers(value);
          for (std::string number; std::getline(numbers, number, ',');) {
            attribute.ints_.push_back(std::stoll(number));
          }
        }
        node.attributes_.push_back(attribute);
      }
    }
    const auto found = domi::Registered().find(type);
    if (found == domi::Registered().end() || found->second.framework != domi::ONNX) {
      std::cout << "UNKNOWN\n";
      continue;
    }
    ge::Operator target("node", found->second.type);
    ge::Graph graph;
    if (found->second.parse(&node, target) != domi::SUCCESS ||
        (found->second.build != nullptr && found->second.build(target, graph) != domi::SUCCESS)) {
      std::cout << "FAILED\n";
      continue;
    }
    Print(found->second.build == nullptr ? target : graph.outputs.front().first);
    std::cout << "\n";
  }
}
