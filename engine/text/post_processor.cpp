#include "engine/text/post_processor.h"

#include "engine/text/bpe.h"

namespace ft {
namespace {

constexpr size_t kMaxTemplatePieces = 64;

void add_special_ids(const JsonNode& special_tokens, const std::string& name, std::vector<int32_t>& ids) {
  const JsonNode list = special_tokens.at(name.c_str()).at("ids");
  if (list.size() > kMaxTemplatePieces) list.refuse("too many ids", std::to_string(list.size()), "at most 64");
  for (size_t i = 0; i < list.size(); ++i) {
    ids.push_back(static_cast<int32_t>(list.at(i).integer(0, kMaxTokenId)));
  }
}

AddedIds parse_template(const JsonNode& node) {
  const JsonNode pieces = node.at("single");
  if (pieces.size() > kMaxTemplatePieces) {
    pieces.refuse("too many pieces", std::to_string(pieces.size()), "at most " + std::to_string(kMaxTemplatePieces));
  }
  AddedIds ids;
  bool text_seen = false;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const JsonNode piece = pieces.at(i);
    if (piece.has("SpecialToken")) {
      add_special_ids(node.at("special_tokens"), piece.at("SpecialToken").at("id").text(),
                      text_seen ? ids.after : ids.before);
    } else if (piece.has("Sequence")) {
      const std::string id = piece.at("Sequence").at("id").text();
      if (id != "A" || text_seen) piece.refuse("template not supported", "Sequence " + id, "Sequence A once");
      text_seen = true;
    } else {
      piece.refuse("template piece not supported", piece.path, "SpecialToken, Sequence");
    }
  }
  if (!text_seen) pieces.refuse("template without the text", "", "Sequence A once");
  return ids;
}

}  // namespace

AddedIds parse_post_processor(const JsonNode& node) {
  if (node.is_null()) return {};
  const std::string type = node.at("type").text();
  if (type == "ByteLevel") return {};
  if (type == "TemplateProcessing") return parse_template(node);
  if (type != "Sequence") {
    node.refuse("post-processor not supported", type, "ByteLevel, TemplateProcessing, Sequence");
  }
  AddedIds ids;
  const JsonNode list = node.at("processors");
  for (size_t i = 0; i < list.size(); ++i) {
    const AddedIds inner = parse_post_processor(list.at(i));
    ids.before.insert(ids.before.begin(), inner.before.begin(), inner.before.end());
    ids.after.insert(ids.after.end(), inner.after.begin(), inner.after.end());
  }
  return ids;
}

}  // namespace ft
