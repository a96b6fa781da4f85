#include "probes/prompts.h"

#include <algorithm>
#include <string>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/random.h"

namespace ft {
namespace {

constexpr size_t kSeededTokens = 96;  // of one sequence without a tokenizer
constexpr size_t kLeadTokens = 4;     // of each sequence go through prefill: the first choices are the beginning's

constexpr Prompt kPrompts[] = {
    {"prose",
     "The lighthouse keeper counted the ships by their lanterns. On still nights there were nine or ten of them, "
     "strung "
     "along the dark like beads, and he would write each one into the long book with the hour and the weather beside "
     "it. "
     "When the fog came he wrote nothing, and lit the lamp an hour early, and sat listening for the bell on the reef. "
     "In "
     "the spring a boat from the mainland brought flour, oil and letters, and the news, which was always older than "
     "the "
     "bread."},
    {"code",
     "def moving_average(values, width):\n    \"\"\"Mean of every window of `width` neighbours.\"\"\"\n    if width < "
     "1 or "
     "width > len(values):\n        raise ValueError('width must be between 1 and the number of values')\n    total = "
     "sum(values[:width])\n    result = [total / width]\n    for i in range(width, len(values)):\n        total += "
     "values[i] - values[i - width]\n        result.append(total / width)\n    return result\n\n\nclass Counter:\n    "
     "def "
     "__init__(self):\n        self.counts = {}\n\n    def add(self, key):\n        self.counts[key] = "
     "self.counts.get(key, 0) + 1\n"},
    {"chat",
     "User: My bread comes out flat and dense. What am I doing wrong?\nAssistant: Most often the yeast is too old or "
     "the "
     "dough has not risen long enough. Stir a spoon of it into warm water with a little sugar; if it does not foam "
     "within "
     "ten minutes, buy fresh yeast.\nUser: It does foam. I let the dough rise for half an hour.\nAssistant: Then give "
     "it "
     "more time. In a cool kitchen a dough may need two hours until it has doubled. Press it with a finger: if the "
     "dent "
     "comes back slowly, it is ready.\nUser: Should I knead it again after that?\n"},
    {"maths",
     "Let a and b be positive numbers with a + b = 10. We want the largest value of the product ab. Since b = 10 - a, "
     "the "
     "product is p(a) = a(10 - a) = 10a - a^2. Its derivative is p'(a) = 10 - 2a, which is zero at a = 5. The second "
     "derivative is -2, so this is a maximum, and p(5) = 25. In general, for a + b = s the product is at most s^2 / 4, "
     "with equality when a = b. Proof: (a - b)^2 >= 0, so a^2 + b^2 >= 2ab, hence s^2 = a^2 + 2ab + b^2 >= 4ab."},
    {"table",
     "station,month,rain_mm,mean_c,frost_days\nNorth,Jan,82,-1.4,21\nNorth,Feb,61,-0.9,17\nNorth,Mar,70,2.8,11\n"
     "North,Apr,54,6.9,4\nSouth,Jan,118,4.2,6\nSouth,Feb,96,4.9,5\nSouth,Mar,87,7.7,2\nSouth,Apr,73,10.6,0\n"
     "Coast,Jan,104,5.8,2\nCoast,Feb,88,6.0,1\nCoast,Mar,79,7.9,0\nCoast,Apr,62,10.1,0\n"},
    {"instructions",
     "To change the filter, first switch the pump off at the wall and close both valves. Place a bucket under the "
     "housing "
     "and turn the ring to the left until it comes loose. Lift the old cartridge out, wipe the seal, and check it for "
     "cracks. Put the new cartridge in with the arrow pointing up. Tighten the ring by hand only, open the valves "
     "slowly, "
     "and look for drops before you switch the pump on again."},
    {"scripture",
     "And it came to pass in those days that a certain man went up from the valley to the hill country, he and his "
     "sons, "
     "to seek water for the flocks. And they digged a well, and found it not; and they digged another, and behold, the "
     "water was bitter. Then said the youngest, Let us go yet a little further. And they hearkened unto him, and went, "
     "and "
     "found a spring in the rock, and called the name of that place Patience unto this day."},
    {"manual",
     "The open() function returns a file object. Its first argument is a string with the file name, the second one a "
     "mode: "
     "'r' when the file will only be read, 'w' for writing, where an existing file is emptied, and 'a' for appending. "
     "The "
     "mode is optional; 'r' is assumed when it is left out. It is good practice to use the with keyword: the file is "
     "then "
     "closed after its suite ends, even when an exception is raised on the way."},
};

}  // namespace

std::span<const Prompt> prompts() { return kPrompts; }

std::vector<std::vector<int32_t>> prompt_ids(const Tokenizer* tokenizer, int64_t vocab, uint64_t seed) {
  std::vector<std::vector<int32_t>> sequences;
  Random random(seed);
  for (const Prompt& prompt : kPrompts) {
    std::vector<int32_t> ids;
    if (tokenizer != nullptr) {
      ids = tokenizer->encode(prompt.text, false);
      std::erase_if(ids, [vocab](int32_t id) { return id < 0 || id >= vocab; });
    } else {
      for (size_t i = 0; i < kSeededTokens; ++i) {
        ids.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(vocab))));
      }
    }
    if (!ids.empty()) sequences.push_back(std::move(ids));
  }
  return sequences;
}

std::vector<int32_t> joined(const std::vector<std::vector<int32_t>>& sequences) {
  std::vector<int32_t> ids;
  for (const auto& sequence : sequences) ids.insert(ids.end(), sequence.begin(), sequence.end());
  return ids;
}

RecordedTrace record_trace(Engine& engine, const std::vector<std::vector<int32_t>>& sequences,
                           const RecordOptions& options) {
  RecordedTrace recorded;
  RoutingTrace& trace = recorded.trace;
  trace.source = "recorded: " + std::string(kPromptsVersion);
  const ModelGeometry& geometry = engine.geometry();
  const int64_t per_token = static_cast<int64_t>(geometry.moe_layers.size()) * geometry.expert.top_k;
  const int64_t most = std::min({options.max_tokens, kMaxTraceTokens, kMaxTracePicks / per_token});
  const auto texts = static_cast<int64_t>(sequences.size());
  const int64_t least = texts == 0 ? 0 : (options.min_tokens + texts - 1) / texts;  // of every text
  const double start = now_seconds();
  int64_t text_begin = 0;
  for (size_t s = 0; s < sequences.size(); ++s) {
    // What earlier sequences left unused is shared among the later ones.
    const auto left = static_cast<double>(sequences.size() - s);
    const auto tokens = static_cast<int64_t>(static_cast<double>(most - trace.tokens) / left);
    const double spent = now_seconds() - start;
    const double until = now_seconds() + (options.seconds - spent) / left;
    const int sequence = engine.open_sequence();
    FT_CHECK(sequence >= 0);
    const std::vector<int32_t>& ids = sequences[s];
    const size_t lead = std::min(kLeadTokens, ids.size() - 1);
    if (lead > 0) engine.prefill(sequence, std::span(ids).first(lead));
    engine.record_routing(&trace);
    const auto end = std::min<int64_t>(static_cast<int64_t>(ids.size()), engine.config().max_context);
    for (int64_t p = static_cast<int64_t>(lead); p < end && p - static_cast<int64_t>(lead) < tokens; ++p) {
      if (options.seconds > 0 && now_seconds() > until && p - static_cast<int64_t>(lead) >= least) break;
      if (options.interrupted && options.interrupted()) break;
      const TokenRun run{sequence, p, std::span(ids).subspan(static_cast<size_t>(p), 1), false, true};
      engine.step({&run, 1});
      recorded.text_at.push_back(text_begin + p);
    }
    engine.record_routing(nullptr);
    engine.close_sequence(sequence);
    text_begin += static_cast<int64_t>(ids.size());
  }
  if (trace.tokens < 1) {
    throw Error(ErrorKind::kFailed, {.what = "no routing was recorded",
                                     .value = std::to_string(sequences.size()) + " texts",
                                     .allowed = "at least one decoded token",
                                     .action = "give more time (--budget) or a longer context"});
  }
  return recorded;
}

}  // namespace ft
