// A backend that computes nothing: what notes a family's calls derives from it.
#pragma once

#include "engine/runtime/backend.h"

namespace ft {

class SilentBackend : public Backend {
 public:
  void embed(const EmbedSpec&) override {}
  void linear(Slot, const Norm&, std::initializer_list<Linear>) override {}
  void linear_add(Slot, const Linear&) override {}
  void attention(const AttentionSpec&) override {}
  void glu(const GluSpec&) override {}
  void moe(const MoeSpec&) override {}
  void logits(const LogitsSpec&) override {}
  void norm(Slot, const Norm&, Slot) override {}
  void add(const AddSpec&) override {}
  void delta_net(const DeltaNetSpec&) override {}
  void streams_read(const StreamsSpec&, Slot) override {}
  void streams_write(const StreamsSpec&, Slot) override {}
  void embed_ngrams(const NgramEmbedSpec&) override {}
  void add_ngrams(const NgramAddSpec&) override {}
  void compressed_attention(const CompressedAttentionSpec&) override {}
  void grouped_linear(Slot, MatrixId, int, Slot) override {}
};

}  // namespace ft
