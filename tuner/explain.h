// Why a profile says what it says, from the profile alone: what was predicted and confirmed, where a token's time goes,
// why every other candidate was not chosen, and what would have to change for the runner-up to win. Pure.
//
// Profiles of older versions are explained as far as they go; `missing` says what they do not record. A profile is data
// that people edit: what contradicts itself is reported in `missing`, never an error here.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/base/json.h"
#include "profiles/profile.h"

namespace ft {

// One cost and the factor at which the runner-up would be chosen.
struct ChangeNeeded {
  std::string term, unit;        // "s_c", "s"
  double value = 0;              // now, of the candidate that it matters to most
  std::optional<double> factor;  // empty: within 1/64 to 64 it never is
  std::string words;  // "the CPU would have to be 1.8x faster per expert (32.0 -> 17.8 us an expert)"; without a factor
                      // what the cost is and its value
};

struct Explanation {
  std::vector<std::string> contradictions;  // where measured contradicted predicted: said first
  std::vector<std::string> choice;          // sentences: strategy, prediction, confirmation, margin, tie, forced
  std::vector<std::string> warnings;        // the profile's own
  std::string runner_up;                    // for people, empty: none
  std::string change_basis;                 // what the changes below start from
  std::vector<ChangeNeeded> changes;        // nearest first, then those that never do
  std::vector<std::string> missing;         // what this profile does not tell, and why
};
Explanation explain(const Profile& profile);

// The chosen candidate, and the one that the decision names as runner-up; null: none.
const Candidate* chosen_candidate(const Profile& profile);
const Candidate* runner_up_candidate(const Profile& profile);
// "hybrid, 16 threads, 1536 slots, fetch at most 1; promote 1".
std::string candidate_name(const Candidate& candidate);
// How to read splits by changes (split_words.h: kSplitByChanges), when a candidate has one; else empty.
std::string split_legend(const Profile& profile);
// "context 128, 1 sequence", per (context, batch) in the order of the conditions.
std::vector<std::string> point_names(const Conditions& conditions);
// Geometric mean of the rates; 0 for an empty list.
double candidate_score(const std::vector<double>& rates);

std::string explain_text(const Profile& profile);
OrderedJson explain_json(const Profile& profile);

}  // namespace ft
