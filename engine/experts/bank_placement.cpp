#include "engine/experts/bank_placement.h"

#include <vector>

#include "kernels/base/size_text.h"

namespace ft {

std::string place_bank(const ExpertBank& bank, const NumaPlan& plan) {
  if (plan.nodes.size() < 2) return {};
  std::vector<int64_t> blob_bytes;
  blob_bytes.reserve(static_cast<size_t>(bank.layers()));
  for (int layer = 0; layer < bank.layers(); ++layer) blob_bytes.push_back(bank.layout(layer).bytes);
  std::vector<int64_t> placed(plan.nodes.size());
  for (const BankPart& part : bank_parts(plan, blob_bytes, bank.experts())) {
    const auto memory = bank.bytes().subspan(static_cast<size_t>(part.offset), static_cast<size_t>(part.bytes));
    if (!prefer_node(memory, part.os_node)) {
      return "the kernel does not place memory here (mbind): pages stay where they were touched first";
    }
    for (size_t node = 0; node < placed.size(); ++node) {
      if (plan.nodes[node].os_index == part.os_node) placed[node] += part.bytes;
    }
  }
  std::string text;
  for (size_t node = 0; node < placed.size(); ++node) {
    text += (node == 0 ? "" : ", ") + size_text(placed[node]) + " on node " + std::to_string(plan.nodes[node].os_index);
  }
  return text;
}

}  // namespace ft
